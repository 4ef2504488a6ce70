package jsonpath

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is the kind of a JSON value; the zero kind stands for a missing one.
type Kind byte

// The kinds of JSON values.
const (
	String Kind = iota + 1
	Number
	Bool
	Null
	Object
	Array
)

// String says what a value is: "a number".
func (k Kind) String() string {
	return [...]string{"nothing", "a string", "a number", "a boolean", "null", "an object", "an array"}[k]
}

// maxDepth bounds nesting, as encoding/json does.
const maxDepth = 10_000

// scanner reads one JSON text. It accepts what encoding/json accepts, with or
// without a byte order mark, keeps numbers as they are written and allocates nothing,
// which encoding/json's decoder can't.
type scanner struct {
	data []byte
	pos  int
}

// byteOrderMark is U+FEFF in UTF-8. At the beginning of a text a parser may ignore it
// (RFC 8259, section 8.1).
const byteOrderMark = "\ufeff"

func newScanner(data []byte) scanner {
	return scanner{data: bytes.TrimPrefix(data, []byte(byteOrderMark))}
}

// Blank reports whether there is nothing in the data but white space and a byte order
// mark.
func Blank(data []byte) bool { return len(bytes.TrimSpace(newScanner(data).data)) == 0 }

// Value is a value as it stands in a JSON text: for a string, raw is what stands between the
// quotes, with or without escapes in it.
type Value struct {
	Kind    Kind
	raw     []byte
	escaped bool
}

// Text is the value of a string, or the literal of any other scalar.
func (v Value) Text() []byte {
	if v.escaped {
		return unescape(v.raw)
	}
	return v.raw
}

func (s *scanner) fail(what string) error {
	if s.pos >= len(s.data) {
		return fmt.Errorf("not valid JSON: it ends where %s is expected", what)
	}
	return fmt.Errorf("not valid JSON: %q at byte %d where %s is expected", s.data[s.pos], s.pos, what)
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// end reports anything but white space after the value.
func (s *scanner) end() error {
	s.space()
	if s.pos < len(s.data) {
		return s.fail("the end")
	}
	return nil
}

// scalar reads a string, number, boolean or null.
func (s *scanner) scalar() (Value, error) {
	switch c := s.peek(); {
	case c == '"':
		return s.str()
	case c == '-' || isDigit(c):
		return s.number()
	case c == 't':
		return s.literal("true", Bool)
	case c == 'f':
		return s.literal("false", Bool)
	case c == 'n':
		return s.literal("null", Null)
	}
	return Value{}, s.fail("a value")
}

func (s *scanner) literal(word string, k Kind) (Value, error) {
	start := s.pos
	for i := range len(word) {
		if s.pos >= len(s.data) || s.data[s.pos] != word[i] {
			return Value{}, s.fail(word)
		}
		s.pos++
	}
	return Value{Kind: k, raw: s.data[start:s.pos]}, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (s *scanner) number() (Value, error) {
	start := s.pos
	if s.data[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.data) && s.data[s.pos] == '0' {
		s.pos++
	} else if !s.digits() {
		return Value{}, s.fail("a digit")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if !s.digits() {
			return Value{}, s.fail("a digit")
		}
	}
	if s.pos < len(s.data) && s.data[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return Value{}, s.fail("a digit")
		}
	}
	return Value{Kind: Number, raw: s.data[start:s.pos]}, nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && isDigit(s.data[s.pos]) {
		s.pos++
	}
	return s.pos > start
}

// str reads a string; the next byte is its opening quote.
func (s *scanner) str() (Value, error) {
	s.pos++
	start, escaped := s.pos, false
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return Value{Kind: String, raw: s.data[start : s.pos-1], escaped: escaped}, nil
		case c == '\\':
			escaped = true
			s.pos++
			if err := s.escape(); err != nil {
				return Value{}, err
			}
		case c < 0x20:
			return Value{}, s.fail("a character of a string")
		default:
			s.pos++
		}
	}
	return Value{}, s.fail("the closing quote of a string")
}

// escape checks what follows a backslash.
func (s *scanner) escape() error {
	if s.pos >= len(s.data) {
		return s.fail("an escape")
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		s.pos++
		for range 4 {
			if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
				return s.fail("a hexadecimal digit")
			}
			s.pos++
		}
		return nil
	}
	return s.fail("an escape")
}

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

// member reads a name of an object and the colon after it. more is false at the
// end of the object. first means that no member came before.
func (s *scanner) member(first bool) (name Value, more bool, err error) {
	c := s.peek()
	if c == '}' {
		if !first {
			// The caller has read a comma.
			return name, false, s.fail("a name")
		}
		s.pos++
		return name, false, nil
	}
	if c != '"' {
		return name, false, s.fail("a name")
	}
	if name, err = s.str(); err != nil {
		return name, false, err
	}
	if s.peek() != ':' {
		return name, false, s.fail("a colon")
	}
	s.pos++
	return name, true, nil
}

// next reads what follows a member or an element: a comma, or closing.
func (s *scanner) next(closing byte) (more bool, err error) {
	switch s.peek() {
	case ',':
		s.pos++
		return true, nil
	case closing:
		s.pos++
		return false, nil
	}
	return false, s.fail("a comma or " + string(closing))
}

var errTooDeep = errors.New("not usable JSON: nested too deeply")

// unescape resolves the escapes of a string that the scanner has accepted. A
// surrogate without its other half becomes bytes that are not valid UTF-8, rather
// than U+FFFD: two different ones stay different.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(raw[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				if len(raw) >= i+6 && raw[i] == '\\' && raw[i+1] == 'u' {
					if pair := utf16.DecodeRune(r, hex4(raw[i+2:])); pair != utf8.RuneError {
						out = utf8.AppendRune(out, pair)
						i += 6
						continue
					}
				}
				out = append(out, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0xBF)
				continue
			}
			out = utf8.AppendRune(out, r)
			continue
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		d := rune(c - '0')
		if c > '9' {
			d = rune(c|0x20) - 'a' + 10
		}
		r = r<<4 | d
	}
	return r
}
