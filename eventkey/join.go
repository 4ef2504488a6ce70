package eventkey

import "strings"

// Join makes a key out of parts, for code that has them in typed fields:
//
//	eventkey.Join("pay", order.ID, payment.ID) // pay:1001:p9001
//
// The parts are separated by a colon. Colons and percent signs in them are
// written as %3A and %25, so that two lists of parts never give the same key,
// except that Join() and Join("") are both empty, which is no key. Join does
// not refuse an empty part: where one can be missing, check it or let a
// [Template] do so.
func Join(parts ...string) string {
	size := len(parts)
	for _, p := range parts {
		size += len(p) + 2*(strings.Count(p, ":")+strings.Count(p, "%"))
	}
	var b strings.Builder
	b.Grow(size)
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		if strings.ContainsAny(p, "%:") {
			var buf [128]byte // mostly enough
			b.Write(appendEscaped(buf[:0], p, &joinEscapes))
		} else {
			b.WriteString(p)
		}
	}
	return b.String()
}

// byteSet is a set of ASCII characters.
type byteSet [2]uint64

func (s *byteSet) add(c byte)      { s[c>>6&1] |= 1 << (c & 63) }
func (s *byteSet) has(c byte) bool { return c < 0x80 && s[c>>6]&(1<<(c&63)) != 0 }

func setOf(chars string) byteSet {
	var s byteSet
	for i := range len(chars) {
		s.add(chars[i])
	}
	return s
}

// joinEscapes is what has to be escaped in every part: the separator, and the
// sign that begins an escape.
var joinEscapes = setOf("%:")

// appendEscaped appends v with the characters of set percent-encoded. It is
// injective in v as long as set contains the percent sign.
func appendEscaped[T string | []byte](dst []byte, v T, set *byteSet) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(v) {
		c := v[i]
		if set.has(c) {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// isPunct reports ASCII punctuation, the characters that a template can separate
// its fields with.
func isPunct(c byte) bool {
	return strings.IndexByte("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c) >= 0
}
