package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// Layout of a value. A claim is 'c' and the token. A record is
//
//	kind 1 · time 6 · tag 5 · fingerprint 16 · [length 2 · group] · outputs
//
// Settled and without a group of its own, it has 28 bytes: the most that Redis keeps, with
// its own header, in an allocation of 48. One byte more costs sixteen.
const (
	kindClaim      = 'c'
	tagBytes       = 5
	tagAt          = 1 + 6
	fingerprintAt  = tagAt + tagBytes
	recordBytes    = fingerprintAt + storeutil.DigestBytes
	maxOutputBytes = 512 << 20 // proto-max-bulk-len, unless the server has another
	minBulkLen     = 1 << 20   // the least that it can be
)

// The kinds of a record say which group made it; the first of each has a fingerprint, of
// the second its place is zero.
const (
	kindsNoGroup  = "de" // it is not known
	kindsSameName = "DE" // named as the key's namespace
	kindsOwnName  = "gh" // its name follows
)

// prefix begins the names of a store's records.
type prefix string

// name is the key of a record in Redis: <prefix><namespace>:<topic>:<handler>:<key>, with
// colons, percent signs and opening braces in the parts escaped. Braces are, since a topic
// with a hash tag would put all records of the topic into one slot of a cluster.
func (p prefix) name(k dedupe.Key) string {
	return string(p) + strings.ReplaceAll(k.String(), "{", "%7B")
}

// parse is the inverse of name.
func (p prefix) parse(name string) (dedupe.Key, error) {
	rest, ok := strings.CutPrefix(name, string(p))
	if !ok {
		return dedupe.Key{}, fmt.Errorf("%w: %q is not the name of a record", dedupe.ErrCorrupt, name)
	}
	k, err := dedupe.ParseKey(rest)
	if err != nil {
		return k, fmt.Errorf("%w: %w", dedupe.ErrCorrupt, err)
	}
	return k, nil
}

// pattern narrows a SCAN down as far as the filter's parts are the first ones.
func (p prefix) pattern(f dedupe.Filter) string {
	n := 0
	for _, part := range []string{f.Namespace, f.Topic, f.Handler} {
		if part == "" {
			break
		}
		n++
	}
	if n == 0 {
		return string(p) + "*"
	}
	// Parts have their colons escaped, so a name splits where it was joined.
	name := prefix("").name(dedupe.Key{Namespace: f.Namespace, Topic: f.Topic, Handler: f.Handler})
	return string(p) + globEscape.Replace(strings.Join(strings.Split(name, ":")[:n], ":")) + ":*"
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

func claimValue(token string) string { return string(kindClaim) + token }

// tagOf distinguishes tokens. It is only asked for a claim that was lost: that another
// token has the same tag then is one in 10¹².
func tagOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return string(sum[:tagBytes])
}

// record is a value, read.
type record struct {
	claim     bool
	token     string // of a claim
	at        time.Time
	tag       string
	digest    []byte
	group     string // where it has a name of its own
	sameGroup bool   // it is named as the namespace
	outputs   [][]byte
}

func corrupt(format string, args ...any) (record, error) {
	return record{}, fmt.Errorf("%w: "+format, append([]any{dedupe.ErrCorrupt}, args...)...)
}

func parseRecord(value string) (r record, err error) {
	if value == "" {
		return corrupt("it is empty")
	}
	kind := strings.IndexByte(kindsNoGroup+kindsSameName+kindsOwnName, value[0])
	switch {
	case value[0] == kindClaim:
		return record{claim: true, token: value[1:]}, nil
	case kind < 0:
		return corrupt("it begins with %q", value[0])
	case len(value) < recordBytes:
		return corrupt("%d bytes are too few", len(value))
	}
	var ms [8]byte
	copy(ms[2:], value[1:tagAt])
	r.at = time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
	r.tag, r.sameGroup = value[tagAt:fingerprintAt], kind/2 == 1
	if kind%2 == 0 {
		r.digest = []byte(value[fingerprintAt:recordBytes])
	}
	rest := value[recordBytes:]
	if kind/2 == 2 {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16([]byte(rest))) {
			return corrupt("its group is cut off")
		}
		end := 2 + int(binary.BigEndian.Uint16([]byte(rest)))
		r.group, rest = rest[2:end], rest[end:]
	}
	if r.outputs, err = storeutil.SplitOutputs([]byte(rest)); err != nil {
		return record{}, err
	}
	return r, nil
}

// groupOf is the group that made the record of a key in this namespace.
func (r record) groupOf(namespace string) string {
	if r.sameGroup {
		return namespace
	}
	return r.group
}

// encode makes the kind of a record, and what commit.lua puts behind the time.
func encode(namespace string, o dedupe.ClaimOptions, outputs [][]byte) (kind string, body []byte, err error) {
	kinds := kindsOwnName
	switch o.Group {
	case "":
		kinds = kindsNoGroup
	case namespace:
		kinds = kindsSameName
	}
	var sum [storeutil.DigestBytes]byte
	kind = kinds[1:]
	if digest := storeutil.Digest(o.Fingerprint); len(digest) > 0 {
		kind = kinds[:1]
		copy(sum[:], digest)
	}
	body = append(make([]byte, 0, tagBytes+len(sum)), tagOf(o.Token)...)
	body = append(body, sum[:]...)
	if kinds == kindsOwnName {
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(o.Group))), o.Group...) //nolint:gosec // Validate bounds it
	}
	body = append(body, storeutil.JoinOutputs(outputs)...)
	if len(body) > maxOutputBytes {
		return "", nil, fmt.Errorf("%w: %d bytes of outputs are more than a value of Redis holds", dedupe.ErrTooLarge, len(body))
	}
	return kind, body, nil
}
