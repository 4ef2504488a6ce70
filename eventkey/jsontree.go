package eventkey

import (
	"fmt"
	"slices"
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
	s := newScanner(data)
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

// child is the value that one step leads to, nil if there is none.
func (n *jsonNode) child(st step) *jsonNode {
	switch {
	case n == nil:
	case st.kind == toMember:
		i, found := slices.BinarySearchFunc(n.members, st.name, func(m jsonMember, name string) int { return strings.Compare(m.name, name) })
		if found {
			return n.members[i].node
		}
	case st.index < len(n.elems):
		return n.elems[st.index]
	}
	return nil
}

// appendTo writes the canonical form. Excluded members and elements are left out; those
// elements that come after an excluded one keep their index.
func (n *jsonNode) appendTo(dst []byte, without pathSet) []byte {
	switch n.kind {
	case kindString:
		return appendQuoted(dst, n.text)
	case kindObject:
		dst = append(dst, '{')
		first := true
		for _, m := range n.members {
			below := without.member(m.name)
			if below.ends() {
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
		commas := 0
		for i, elem := range n.elems {
			below := without.element(i)
			if below.ends() {
				continue
			}
			for ; commas < i; commas++ {
				dst = append(dst, ',')
			}
			dst = elem.appendTo(dst, below)
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

// appendAt writes the values that the steps lead to. found tells whether there is one; an
// array without elements counts as found by [*].
func (n *jsonNode) appendAt(dst []byte, steps []step) (_ []byte, found bool) {
	switch {
	case n == nil:
		return dst, false
	case len(steps) == 0:
		return n.appendTo(dst, nil), true
	case steps[0].kind != toEach:
		return n.child(steps[0]).appendAt(dst, steps[1:])
	case n.kind != kindArray:
		return dst, false
	}
	dst, found = append(dst, '['), len(n.elems) == 0
	for _, elem := range n.elems {
		var here bool
		dst, here = elem.appendAt(dst, steps[1:])
		dst, found = append(dst, ','), found || here
	}
	return append(dst, ']'), found
}

// differenceAt is the path of the first difference to b in what the steps lead to.
func (n *jsonNode) differenceAt(b *jsonNode, path string, steps []step) string {
	switch {
	case len(steps) == 0:
		return n.difference(b, path, nil)
	case steps[0].kind != toEach:
		return n.child(steps[0]).differenceAt(b.child(steps[0]), pathTo(path, steps[0]), steps[1:])
	case n.isArray() != b.isArray():
		return path
	case !n.isArray():
		return ""
	}
	for i := range max(len(n.elems), len(b.elems)) {
		st := step{kind: toElement, index: i}
		at := pathTo(path, st)
		if i >= len(n.elems) || i >= len(b.elems) {
			return at
		}
		if d := n.elems[i].differenceAt(b.elems[i], at, steps[1:]); d != "" {
			return d
		}
	}
	return ""
}

func (n *jsonNode) isArray() bool { return n != nil && n.kind == kindArray }

// difference is the path of the first difference to b, "" if there is none. A nil
// node is a missing value.
func (n *jsonNode) difference(b *jsonNode, path string, without pathSet) string {
	switch {
	case n == nil && b == nil:
		return ""
	case n == nil || b == nil || n.kind != b.kind || n.text != b.text:
		return path
	case n.kind == kindObject:
		return n.memberDifference(b, path, without)
	}
	for i := range max(len(n.elems), len(b.elems)) {
		below := without.element(i)
		if below.ends() {
			continue
		}
		st := step{kind: toElement, index: i}
		if d := n.child(st).difference(b.child(st), pathTo(path, st), below); d != "" {
			return d
		}
	}
	return ""
}

// memberDifference goes through the members of both objects in the order of their
// names.
func (n *jsonNode) memberDifference(b *jsonNode, path string, without pathSet) string {
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
		below := without.member(name)
		if below.ends() {
			continue
		}
		if d := left.difference(right, pathTo(path, step{kind: toMember, name: name}), below); d != "" {
			return d
		}
	}
	return ""
}

// pathTo is the path one step further.
func pathTo(path string, st step) string { return string(st.appendTo([]byte(path))) }
