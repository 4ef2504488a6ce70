package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Layout of a value. A claim is 'c' and the token. A record is
//
//	kind 1 · time 6 · tag 5 · fingerprint 16 · outputs
//
// Settled, it has 28 bytes: the most that Redis keeps, with its own header, in an
// allocation of 48. One byte more costs sixteen.
const (
	kindClaim      = 'c'
	kindDone       = 'd'
	kindDoneNoSum  = 'e' // no fingerprint; its place is zero
	tagBytes       = 5
	tagAt          = 1 + 6
	fingerprintAt  = tagAt + tagBytes
	recordBytes    = fingerprintAt + dedupe.DigestBytes
	recordPrefix   = "idem:done:"
	maxOutputBytes = 512 << 20 // proto-max-bulk-len, unless the server has another
	minBulkLen     = 1 << 20   // the least that it can be
)

// Name is the key of a record in Redis: idem:done:<namespace>:<topic>:<handler>:<key>,
// with colons, percent signs and opening braces in the parts escaped. Braces are,
// since a topic with a hash tag would put all records of the topic into one slot of a
// cluster.
func Name(k dedupe.Key) string {
	return recordPrefix + strings.ReplaceAll(k.String(), "{", "%7B")
}

// parseName is the inverse of Name.
func parseName(name string) (dedupe.Key, error) {
	rest, ok := strings.CutPrefix(name, recordPrefix)
	if !ok {
		return dedupe.Key{}, fmt.Errorf("%w: %q is not the name of a record", dedupe.ErrCorrupt, name)
	}
	k, err := dedupe.ParseKey(rest)
	if err != nil {
		return k, fmt.Errorf("%w: %w", dedupe.ErrCorrupt, err)
	}
	return k, nil
}

func claimValue(token string) string { return string(kindClaim) + token }

// tagOf tells tokens apart. It is only asked for a claim that was lost: that another
// token has the same tag then is one in 10¹².
func tagOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return string(sum[:tagBytes])
}

// record is a value, read.
type record struct {
	claim   bool
	token   string // of a claim
	at      time.Time
	tag     string
	digest  []byte
	outputs [][]byte
}

func corrupt(format string, args ...any) (record, error) {
	return record{}, fmt.Errorf("%w: "+format, append([]any{dedupe.ErrCorrupt}, args...)...)
}

func parseRecord(value string) (r record, err error) {
	if value == "" {
		return corrupt("it is empty")
	}
	switch value[0] {
	case kindClaim:
		return record{claim: true, token: value[1:]}, nil
	case kindDone, kindDoneNoSum:
	default:
		return corrupt("it begins with %q", value[0])
	}
	if len(value) < recordBytes {
		return corrupt("%d bytes are too few", len(value))
	}
	var ms [8]byte
	copy(ms[2:], value[1:tagAt])
	r.at = time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
	r.tag = value[tagAt:fingerprintAt]
	if value[0] == kindDone {
		r.digest = []byte(value[fingerprintAt:recordBytes])
	}
	if r.outputs, err = dedupe.SplitOutputs([]byte(value[recordBytes:])); err != nil {
		return record{}, err
	}
	return r, nil
}

// encode makes what commit.lua puts behind the time and the tag.
func encode(digest []byte, outputs [][]byte) (kind string, body []byte, err error) {
	kind = string(kindDoneNoSum)
	var sum [dedupe.DigestBytes]byte
	if len(digest) > 0 {
		kind = string(kindDone)
		copy(sum[:], digest)
	}
	body = append(sum[:], dedupe.JoinOutputs(outputs)...)
	if len(body) > maxOutputBytes {
		return "", nil, fmt.Errorf("%w: %d bytes of outputs are more than a value of Redis holds", dedupe.ErrTooLarge, len(body))
	}
	return kind, body, nil
}
