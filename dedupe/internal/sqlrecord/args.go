package sqlrecord

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// ID is the primary key of the row of k.
func ID(k dedupe.Key) []byte {
	sum := sha256.Sum256([]byte(k.String()))
	return sum[:]
}

// Lock names a key among the server's advisory locks: PostgreSQL's are numbers, MySQL's
// names. The table is put to it by the server, which knows the same one under two names,
// so that stores of two tables don't wait for each other: see Insert, and
// takeLock in package sqlstore.
func Lock(id []byte) (number int64, name string) {
	return int64(binary.BigEndian.Uint64(id)), "idem:" + hex.EncodeToString(id[:20])
}

// InsertArgs are the parameters of Insert, the first statement of a claim's transaction. One
// row affected: it is claimed. None: there is a record, or another transaction has the claim.
func (s Statements) InsertArgs(id []byte, k dedupe.Key, token string) []any {
	args := []any{id, []byte(k.Namespace), []byte(k.Topic), []byte(k.Handler), []byte(k.Event), []byte(token)}
	if s.locks {
		number, _ := Lock(id)
		args = append(args, number)
	}
	return args
}

// CommitArgs are the parameters of Commit, which makes the record of the claim's row as the
// last statement before COMMIT. One row affected, or the transaction is not the one that
// inserted it. outputs are joined.
func CommitArgs(k dedupe.Key, id []byte, o dedupe.ClaimOptions, outputs []byte) []any {
	return []any{
		o.Retention.Milliseconds(), nullable(storeutil.Digest(o.Fingerprint)), nullable(outputs), groupColumn(k.Namespace, o.Group), id, []byte(o.Token),
	}
}

// nullable makes NULL of no bytes.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// groupColumn is what a record keeps of the group of its run: nothing where it is not
// known, no bytes where it is named as the namespace.
func groupColumn(namespace, group string) any {
	switch group {
	case "":
		return nil
	case namespace:
		return []byte{}
	}
	return []byte(group)
}

// PurgeKey is the key of a row that is no record: the store that purges has it. No claim
// can have this key, since it has no namespace. The row's committed_at is when the last
// purge began, its expires_at how long the one that runs has the row, both by the
// server's clock.
func PurgeKey() dedupe.Key { return dedupe.Key{Event: "purge"} }

// PurgeLease is how long a store has that row without a sign of life.
const PurgeLease = time.Minute

// TakePurgeArgs are the parameters of TakePurge. One row affected: this store purges now.
// None: another does, or the last purge began less than gap ago, or there is no row yet.
// A store that has failed with the row gets it back by its token.
// A row that is held for longer than anybody asks for, or of a purge that began in the
// future, is of a clock that was set back since.
func TakePurgeArgs(token string, gap time.Duration) []any {
	lease := PurgeLease.Milliseconds()
	return []any{[]byte(token), lease, ID(PurgeKey()), lease, []byte(token), gap.Milliseconds()}
}

// IDs puts the IDs into Free.
func IDs(text string, ids [][]byte) (string, []any) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return strings.Replace(text, "{ids}", strings.TrimSuffix(strings.Repeat("?, ", len(ids)), ", "), 1), args
}
