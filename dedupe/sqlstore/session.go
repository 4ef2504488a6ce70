package sqlstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// session is a connection with a transaction on it, prepared so that the transaction
// can't end unnoticed, and put back as it was.
type session struct {
	store *Store
	conn  *sql.Conn
	tx    *sql.Tx
	undo  []string // statements that put the connection back as it was
}

func idOf(k dedupe.Key) []byte {
	sum := sha256.Sum256([]byte(k.String()))
	return sum[:]
}

// lockOf names a key among the server's advisory locks: PostgreSQL's are numbers,
// MySQL's names of at most 64 bytes.
func lockOf(id []byte) (number int64, name string) {
	return int64(binary.BigEndian.Uint64(id)), "idem:" + hex.EncodeToString(id[:24])
}

// begin opens a session. The transaction does not end with ctx: a handler that has done
// its work while the process shuts down may still be recorded.
func (s *Store) begin(ctx context.Context, id []byte, wait time.Duration) (_ *session, taken bool, err error) {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	sess := &session{store: s, conn: conn}
	defer func() {
		if err != nil || taken {
			sess.end(ctx)
		}
	}()
	switch s.cfg.Dialect {
	case MySQL:
		_, name := lockOf(id)
		var got sql.NullInt64
		if err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 0)", name).Scan(&got); err != nil {
			return nil, false, err
		}
		if got.Int64 != 1 {
			return nil, true, nil
		}
		sess.undo = append(sess.undo, "DO RELEASE_LOCK('"+name+"')")
		// A deadlock's victim has its transaction ended by the server, and each
		// statement after it would commit by itself: an effect without a record.
		if _, err = conn.ExecContext(ctx, "SET autocommit = 0"); err != nil {
			return nil, false, err
		}
		sess.undo = append([]string{"SET autocommit = 1"}, sess.undo...)
	case SQLite:
		var before int
		if err = conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
			return nil, false, err
		}
		if _, err = conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", max(wait.Milliseconds(), 1))); err != nil {
			return nil, false, err
		}
		sess.undo = append(sess.undo, fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}
	sess.tx, err = conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: s.cfg.Isolation})
	return sess, false, err
}

// end gives the connection back. The transaction, if there is one, has ended or is
// rolled back here. A connection that can't be put back as it was is closed.
func (sess *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	ok := true
	if sess.tx != nil {
		if err := sess.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			ok = false
		}
	}
	if sess.store.cfg.Dialect == MySQL && ok {
		// After the server has ended a transaction, what followed it is in another
		// one, which database/sql knows nothing of.
		_, err := sess.conn.ExecContext(ctx, "ROLLBACK")
		ok = err == nil
	}
	for _, text := range sess.undo {
		if ok {
			_, err := sess.conn.ExecContext(ctx, text)
			ok = err == nil
		}
	}
	if !ok {
		_ = sess.conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
	_ = sess.conn.Close() // it went back, or is closed already
}

// cleanUp bounds what is done for a connection that is given back.
const cleanUp = 5 * time.Second
