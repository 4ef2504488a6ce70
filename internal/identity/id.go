package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// maxPlainID is the length, in bytes, up to which an idempotent ID is readable.
// Redis keeps each ID of the window in memory.
const maxPlainID = 128

// originEscapes keeps the parts in front of the key apart.
var originEscapes = strings.NewReplacer("%", "%25", ":", "%3A", "@", "%40")

// IdempotentID is what a server compares in order to recognise a repeated
// publish: an injective encoding of key, attempt and poison origin.
//
// The first publish of a key has the key itself for its ID, so that it can be
// found by reading. Everything else begins with a tilde: "~1.0:pay:1001" is the
// first deliberate republish of pay:1001, "~0.2@orders@charge:pay:1001" its second
// requeue after the handler charge gave up on it in topic orders, "~0.0!" and a digest
// begin that of a dead letter that was copied back, and an encoding above 128 bytes is
// replaced by "~sha256:" and its digest.
func IdempotentID(key string, a Attempt, o Origin) string {
	id := key
	// A key that begins with a tilde could be taken for one of the other forms.
	if a != (Attempt{}) || o.Poisoned || key != "" && key[0] == '~' {
		b := make([]byte, 0, maxPlainID)
		b = append(b, '~')
		b = strconv.AppendUint(b, a.Raised, 10)
		b = append(b, '.')
		b = strconv.AppendUint(b, a.Requeued, 10)
		if a.DeadLetter != "" {
			b = append(append(b, '!'), originEscapes.Replace(a.DeadLetter)...)
		}
		if o.Poisoned {
			b = append(append(b, '@'), originEscapes.Replace(o.Topic)...)
			b = append(append(b, '@'), originEscapes.Replace(o.Handler)...)
		}
		id = string(append(append(b, ':'), key...))
	}
	if len(id) > maxPlainID {
		return "~sha256:" + digest(id)
	}
	return id
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

var uuidNamespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/onceward/watermill-idempotent"))

// StableUUID names a message after its key: a UUID of version 5, the same for the
// same key, in every process.
func StableUUID(key string) string { return uuid.NewSHA1(uuidNamespace, []byte(key)).String() }
