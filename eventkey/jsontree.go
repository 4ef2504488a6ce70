package eventkey

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// jsonNode is a JSON value in canonical form: members are sorted by name, escapes
// in strings are resolved, numbers are as written.
type jsonNode struct {
	kind    kind
	text    string // of a scalar
	members []jsonMember
	elems   []*jsonNode
}

type jsonMember struct {
	name string
	node *jsonNode
}

// parseJSON reads a whole JSON text. A name that stands twice in an object is an
// error: such a text has no canonical form, since parsers differ in which of the
// two they see.
func parseJSON(data []byte) (*jsonNode, error) {
	s := jsonScanner{data: data}
	node, err := s.node(0)
	if err != nil {
		return nil, err
	}
	return node, s.end()
}

func (s *jsonScanner) node(depth int) (*jsonNode, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	switch s.peek() {
	case '{':
		return s.object(depth)
	case '[':
		return s.array(depth)
	}
	v, err := s.scalar()
	if err != nil {
		return nil, err
	}
	return &jsonNode{kind: v.kind, text: string(v.text())}, nil
}

func (s *jsonScanner) object(depth int) (*jsonNode, error) {
	s.pos++
	n := &jsonNode{kind: kindObject}
	name, more, err := s.member(true)
	for more && err == nil {
		member := jsonMember{name: string(name.text())}
		if member.node, err = s.node(depth + 1); err != nil {
			return nil, err
		}
		n.members = append(n.members, member)
		if more, err = s.next('}'); more && err == nil {
			name, more, err = s.member(false)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(n.members, func(a, b jsonMember) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(n.members); i++ {
		if n.members[i].name == n.members[i-1].name {
			return nil, fmt.Errorf("the name %q stands twice in one JSON object", n.members[i].name)
		}
	}
	return n, nil
}

func (s *jsonScanner) array(depth int) (*jsonNode, error) {
	s.pos++
	n := &jsonNode{kind: kindArray}
	if s.peek() == ']' {
		s.pos++
		return n, nil
	}
	for {
		elem, err := s.node(depth + 1)
		if err != nil {
			return nil, err
		}
		n.elems = append(n.elems, elem)
		if more, err := s.next(']'); err != nil {
			return nil, err
		} else if !more {
			return n, nil
		}
	}
}

// child is the tree below a member, for the excluded paths.
func (n *pathNode) child(name string) *pathNode {
	if n != nil {
		for i := range n.children {
			if c := &n.children[i]; c.name != "" && c.name == name {
				return c.node
			}
		}
	}
	return nil
}

// excluded tells that a path ends here.
func (n *pathNode) excluded() bool { return n != nil && n.slot >= 0 }

// appendTo writes the canonical form. Excluded members are left out; an excluded
// element leaves its place empty, so that those after it keep their index.
func (n *jsonNode) appendTo(dst []byte, without *pathNode) []byte {
	switch n.kind {
	case kindString:
		return appendQuoted(dst, n.text)
	case kindObject:
		dst = append(dst, '{')
		first := true
		for _, m := range n.members {
			below := without.child(m.name)
			if below.excluded() {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(appendQuoted(dst, m.name), ':')
			dst = m.node.appendTo(dst, below)
		}
		return append(dst, '}')
	case kindArray:
		dst = append(dst, '[')
		for i, elem := range n.elems {
			if i > 0 {
				dst = append(dst, ',')
			}
			if below := without.element(i); !below.excluded() {
				dst = elem.appendTo(dst, below)
			}
		}
		return append(dst, ']')
	}
	return append(dst, n.text...)
}

// appendQuoted writes a JSON string with the fewest escapes.
func appendQuoted(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// difference is the path of the first difference to b, "" if there is none. A nil
// node is a missing value.
func (n *jsonNode) difference(b *jsonNode, path string, without *pathNode) string {
	switch {
	case n == nil && b == nil:
		return ""
	case n == nil || b == nil || n.kind != b.kind || n.text != b.text:
		return path
	case n.kind == kindObject:
		return n.memberDifference(b, path, without)
	}
	for i := range max(len(n.elems), len(b.elems)) {
		at := path + "[" + strconv.Itoa(i) + "]"
		if i >= len(n.elems) || i >= len(b.elems) {
			return at
		}
		if below := without.element(i); !below.excluded() {
			if d := n.elems[i].difference(b.elems[i], at, below); d != "" {
				return d
			}
		}
	}
	return ""
}

// memberDifference goes through the members of both objects in the order of their
// names.
func (n *jsonNode) memberDifference(b *jsonNode, path string, without *pathNode) string {
	for i, j := 0, 0; i < len(n.members) || j < len(b.members); {
		var left, right *jsonNode
		var name string
		if i < len(n.members) && (j >= len(b.members) || n.members[i].name <= b.members[j].name) {
			name, left = n.members[i].name, n.members[i].node
		} else {
			name = b.members[j].name
		}
		if j < len(b.members) && b.members[j].name == name {
			right = b.members[j].node
			j++
		}
		if left != nil {
			i++
		}
		below := without.child(name)
		if below.excluded() {
			continue
		}
		if d := left.difference(right, memberPath(path, name), below); d != "" {
			return d
		}
	}
	return ""
}

func memberPath(path, name string) string {
	if _, err := parsePath("." + name); err != nil || strings.ContainsAny(name, ".[") {
		return path + "[" + strconv.Quote(name) + "]"
	}
	return path + "." + name
}
