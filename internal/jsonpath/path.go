// Package jsonpath reads JSON texts: values at paths without decoding the rest, canonical
// forms, differences. It has the language of paths that the documentation of package
// eventkey describes, read and written, and knows nothing of messages.
package jsonpath

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// StepKind is the kind of a step of a path.
type StepKind byte

// The kinds of steps.
const (
	Member  StepKind = iota + 1 // .name or ["name"]
	Element                     // [0]
	Each                        // [*]
)

// Step is one step of a path.
type Step struct {
	Kind  StepKind
	Name  string
	Index int
}

// Parse reads a path, as the documentation of package eventkey describes them.
func Parse(path string) ([]Step, error) {
	rest := path
	switch {
	case strings.HasPrefix(path, "$"):
		rest = path[1:]
	case path != "" && path[0] != '[':
		rest = "." + path
	}
	if rest == "" {
		return nil, fmt.Errorf("the path is empty: $ is the whole payload, not a field of it")
	}
	var steps []Step
	for rest != "" {
		var st Step
		var size int
		var err error
		switch {
		case rest[0] == '.':
			st, size, err = parseBare(path, rest, steps)
		case strings.HasPrefix(rest, `["`):
			st, size, err = parseQuoted(path, rest)
		case rest[0] == '[':
			st, size, err = parseIndex(path, rest)
		default:
			err = fmt.Errorf("unexpected %q in the path %q: a path is made of .name, [\"name\"], [number] and [*]", rest[:1], path)
		}
		if err != nil {
			return nil, err
		}
		steps, rest = append(steps, st), rest[size:]
	}
	return steps, nil
}

// parseBare reads a dot and a name at the beginning of rest. before is for the advice
// in errors.
func parseBare(path, rest string, before []Step) (st Step, size int, err error) {
	name, after := rest[1:], ""
	if end := strings.IndexAny(name, ".["); end >= 0 {
		name, after = name[:end], name[end:]
	}
	quoted := func(names string) string {
		return Format(append(before[:len(before):len(before)], Step{Kind: Member, Name: names}))
	}
	switch at := strings.IndexFunc(name, func(r rune) bool { return !isNameRune(r) && r != '$' && r != '@' }); {
	case name == "":
		return st, 0, fmt.Errorf("a name is missing in the path %q: an empty one is written [\"\"]", path)
	case name == "*":
		return st, 0, fmt.Errorf("unexpected '*' in the path %q: each element of an array is written [*]", path)
	case at >= 0:
		r, _ := utf8.DecodeRuneInString(name[at:])
		return st, 0, fmt.Errorf("unexpected %q in the path %q: a name with other characters than letters, digits, _ and - is quoted: %s",
			r, path, quoted(name)+after)
	case strings.Contains(name, "@") && strings.HasPrefix(after, "."):
		// OData's "@odata.etag" is one name, JSON-LD's "@context.name" two.
		next := after[1:]
		if end := strings.IndexAny(next, ".["); end >= 0 {
			next = next[:end]
		}
		return st, 0, fmt.Errorf("the path %q may mean two fields: write %s or %s", path,
			quoted(name+"."+next)+after[1+len(next):], quoted(name)+after)
	}
	return Step{Kind: Member, Name: name}, 1 + len(name), nil
}

// parseQuoted reads a name in brackets, written as a JSON string.
func parseQuoted(path, rest string) (st Step, size int, err error) {
	s := scanner{data: []byte(rest), pos: 1}
	name, err := s.str()
	switch {
	case err != nil:
		return st, 0, fmt.Errorf("a quoted name in the path %q: %w", path, err)
	case s.pos == len(rest) || rest[s.pos] != ']':
		return st, 0, fmt.Errorf("the path %q has no ] after a quoted name", path)
	}
	return Step{Kind: Member, Name: string(name.Text())}, s.pos + 1, nil
}

// parseIndex reads a number or an asterisk in brackets.
func parseIndex(path, rest string) (st Step, size int, err error) {
	end := strings.IndexByte(rest, ']')
	if end < 0 {
		return st, 0, fmt.Errorf("the path %q has an unclosed [", path)
	}
	digits := rest[1:end]
	if digits == "*" {
		return Step{Kind: Each}, end + 1, nil
	}
	index, err := strconv.Atoi(digits)
	if err != nil || strconv.Itoa(index) != digits || index < 0 {
		return st, 0, fmt.Errorf("[%s] in the path %q is no index: write a number counted from 0, * for each element, or a name in double quotes", digits, path)
	}
	return Step{Kind: Element, Index: index}, end + 1, nil
}

// isNameRune reports whether a character of a name needs no quotes.
func isNameRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-'
}

// Format writes a path as Parse reads it.
func Format(steps []Step) string {
	b := []byte{'$'}
	for _, st := range steps {
		b = st.appendTo(b)
	}
	return string(b)
}

func (st Step) appendTo(dst []byte) []byte {
	switch {
	case st.Kind == Each:
		return append(dst, "[*]"...)
	case st.Kind == Element:
		return append(strconv.AppendInt(append(dst, '['), int64(st.Index), 10), ']')
	case st.Name != "" && strings.IndexFunc(st.Name, func(r rune) bool { return !isNameRune(r) }) < 0:
		return append(append(dst, '.'), st.Name...)
	}
	return append(appendName(append(dst, '['), st.Name), ']')
}

// appendName writes a JSON string for people to read and copy. Braces are escaped, too:
// in a template they are its own.
func appendName(dst []byte, name string) []byte {
	dst = append(dst, '"')
	var last rune
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		half := rune(0)
		if r == utf8.RuneError && size == 1 {
			if half = surrogateAt(name); half != 0 {
				r, size = half, 3
			}
		}
		text := name[:size]
		name = name[size:]
		// Half of a surrogate pair is as unescape writes it. Two halves in a row, which it
		// never writes, would be read as their pair.
		if r == utf8.RuneError && size == 1 || half != 0 && utf16.IsSurrogate(last) {
			dst, last = append(dst, text...), 0
			continue
		}
		last = r
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case unicode.IsPrint(r) && r != '{' && r != '}':
			dst = utf8.AppendRune(dst, r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return append(dst, '"')
}

// surrogateAt is the half of a surrogate pair that s begins with, as unescape writes it;
// 0 if there is none.
func surrogateAt(s string) rune {
	if len(s) < 3 || s[0] != 0xED || s[1]&0xE0 != 0xA0 || s[2]&0xC0 != 0x80 {
		return 0
	}
	return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F)
}

// Set is the paths that go on below some value, each without the steps above it.
type Set [][]Step

// member returns the paths below the member of that name.
func (s Set) member(name string) (below Set) {
	for _, path := range s {
		if path[0].Kind == Member && path[0].Name == name {
			below = append(below, path[1:])
		}
	}
	return below
}

// element returns the paths below an element.
func (s Set) element(index int) (below Set) {
	for _, path := range s {
		if path[0].Kind == Each || path[0].Kind == Element && path[0].Index == index {
			below = append(below, path[1:])
		}
	}
	return below
}

// ends reports whether a path ends here.
func (s Set) ends() bool {
	for _, path := range s {
		if len(path) == 0 {
			return true
		}
	}
	return false
}
