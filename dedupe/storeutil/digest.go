package storeutil

import "crypto/sha256"

// DigestBytes is the length of a [Digest].
const DigestBytes = 16

// Digest is what stores keep of a fingerprint: 128 bits of its SHA-256, enough that
// two of them are never equal by chance; nil for a fingerprint of no bytes.
func Digest(fingerprint []byte) []byte {
	if len(fingerprint) == 0 {
		return nil
	}
	sum := sha256.Sum256(fingerprint)
	return sum[:DigestBytes]
}

// SameDigest reports whether two digests are equal; nil equals any.
func SameDigest(a, b []byte) bool {
	return len(a) == 0 || len(b) == 0 || string(a) == string(b)
}
