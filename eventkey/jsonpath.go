package eventkey

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// stepKind is the kind of a step of a path.
type stepKind byte

const (
	toMember  stepKind = iota + 1 // .name or ["name"]
	toElement                     // [0]
	toEach                        // [*]
)

// step is one step of a path.
type step struct {
	kind  stepKind
	name  string
	index int
}

// parsePath reads a path, as the package comment describes them.
func parsePath(path string) ([]step, error) {
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
	var steps []step
	for rest != "" {
		var st step
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
func parseBare(path, rest string, before []step) (st step, size int, err error) {
	name, after := rest[1:], ""
	if end := strings.IndexAny(name, ".["); end >= 0 {
		name, after = name[:end], name[end:]
	}
	quoted := func(names string) string {
		return formatPath(append(before[:len(before):len(before)], step{kind: toMember, name: names}))
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
	return step{kind: toMember, name: name}, 1 + len(name), nil
}

// parseQuoted reads a name in brackets, written as a JSON string.
func parseQuoted(path, rest string) (st step, size int, err error) {
	s := jsonScanner{data: []byte(rest), pos: 1}
	name, err := s.str()
	switch {
	case err != nil:
		return st, 0, fmt.Errorf("a quoted name in the path %q: %w", path, err)
	case s.pos == len(rest) || rest[s.pos] != ']':
		return st, 0, fmt.Errorf("the path %q has no ] after a quoted name", path)
	}
	return step{kind: toMember, name: string(name.text())}, s.pos + 1, nil
}

// parseIndex reads a number or an asterisk in brackets.
func parseIndex(path, rest string) (st step, size int, err error) {
	end := strings.IndexByte(rest, ']')
	if end < 0 {
		return st, 0, fmt.Errorf("the path %q has an unclosed [", path)
	}
	digits := rest[1:end]
	if digits == "*" {
		return step{kind: toEach}, end + 1, nil
	}
	index, err := strconv.Atoi(digits)
	if err != nil || strconv.Itoa(index) != digits || index < 0 {
		return st, 0, fmt.Errorf("[%s] in the path %q is no index: write a number counted from 0, * for each element, or a name in double quotes", digits, path)
	}
	return step{kind: toElement, index: index}, end + 1, nil
}

// isNameRune tells whether a character of a name needs no quotes.
func isNameRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-'
}

// formatPath writes a path as parsePath reads it.
func formatPath(steps []step) string {
	b := []byte{'$'}
	for _, st := range steps {
		b = st.appendTo(b)
	}
	return string(b)
}

func (st step) appendTo(dst []byte) []byte {
	switch {
	case st.kind == toEach:
		return append(dst, "[*]"...)
	case st.kind == toElement:
		return append(strconv.AppendInt(append(dst, '['), int64(st.index), 10), ']')
	case st.name != "" && strings.IndexFunc(st.name, func(r rune) bool { return !isNameRune(r) }) < 0:
		return append(append(dst, '.'), st.name...)
	}
	return append(appendName(append(dst, '['), st.name), ']')
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

// pathSet are the paths that go on below some value, each without the steps above it.
type pathSet [][]step

// member are the paths below the member of that name.
func (s pathSet) member(name string) (below pathSet) {
	for _, path := range s {
		if path[0].kind == toMember && path[0].name == name {
			below = append(below, path[1:])
		}
	}
	return below
}

// element are the paths below an element.
func (s pathSet) element(index int) (below pathSet) {
	for _, path := range s {
		if path[0].kind == toEach || path[0].kind == toElement && path[0].index == index {
			below = append(below, path[1:])
		}
	}
	return below
}

// ends tells that a path ends here.
func (s pathSet) ends() bool {
	for _, path := range s {
		if len(path) == 0 {
			return true
		}
	}
	return false
}
