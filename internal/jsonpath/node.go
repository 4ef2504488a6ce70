package jsonpath

import (
	"fmt"
	"slices"
	"strings"
)

// Node is a JSON value in canonical form: members are sorted by name, escapes
// in strings are resolved, numbers are as written.
type Node struct {
	Kind    Kind
	Text    string // of a scalar
	members []member
	elems   []*Node
}

type member struct {
	name string
	node *Node
}

// Read reads a whole JSON text. A duplicate name in an object is an error: such a text
// has no canonical form, since parsers differ in which of the two they see.
func Read(data []byte) (*Node, error) {
	s := newScanner(data)
	node, err := s.node(0)
	if err != nil {
		return nil, err
	}
	return node, s.end()
}

// Node is the value in canonical form, nil for a missing one.
func (v Value) Node() (*Node, error) {
	switch v.Kind {
	case 0:
		return nil, nil
	case Object, Array:
		return Read(v.raw)
	}
	return &Node{Kind: v.Kind, Text: string(v.Text())}, nil
}

func (s *scanner) node(depth int) (*Node, error) {
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
	return v.Node()
}

func (s *scanner) object(depth int) (*Node, error) {
	s.pos++
	n := &Node{Kind: Object}
	name, more, err := s.member(true)
	for more && err == nil {
		m := member{name: string(name.Text())}
		if m.node, err = s.node(depth + 1); err != nil {
			return nil, err
		}
		n.members = append(n.members, m)
		if more, err = s.next('}'); more && err == nil {
			name, more, err = s.member(false)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(n.members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(n.members); i++ {
		if n.members[i].name == n.members[i-1].name {
			return nil, fmt.Errorf("duplicate name %q in JSON object", n.members[i].name)
		}
	}
	return n, nil
}

func (s *scanner) array(depth int) (*Node, error) {
	s.pos++
	n := &Node{Kind: Array}
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
func (n *Node) child(st Step) *Node {
	switch {
	case n == nil:
	case st.Kind == Member:
		i, found := slices.BinarySearchFunc(n.members, st.Name, func(m member, name string) int { return strings.Compare(m.name, name) })
		if found {
			return n.members[i].node
		}
	case st.Index < len(n.elems):
		return n.elems[st.Index]
	}
	return nil
}

// AppendTo writes the canonical form. Excluded members and elements are left out; those
// elements that come after an excluded one keep their index.
func (n *Node) AppendTo(dst []byte, without Set) []byte {
	switch n.Kind {
	case String:
		return AppendQuoted(dst, n.Text)
	case Object:
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
			dst = append(AppendQuoted(dst, m.name), ':')
			dst = m.node.AppendTo(dst, below)
		}
		return append(dst, '}')
	case Array:
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
			dst = elem.AppendTo(dst, below)
		}
		return append(dst, ']')
	}
	return append(dst, n.Text...)
}

// AppendQuoted writes a JSON string with the fewest escapes.
func AppendQuoted(dst []byte, text string) []byte {
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

// AppendAt writes the values that the steps lead to. found reports whether there is one; an
// array without elements counts as found by [*].
func (n *Node) AppendAt(dst []byte, steps []Step) (_ []byte, found bool) {
	switch {
	case n == nil:
		return dst, false
	case len(steps) == 0:
		return n.AppendTo(dst, nil), true
	case steps[0].Kind != Each:
		return n.child(steps[0]).AppendAt(dst, steps[1:])
	case n.Kind != Array:
		return dst, false
	}
	dst, found = append(dst, '['), len(n.elems) == 0
	for _, elem := range n.elems {
		var here bool
		dst, here = elem.AppendAt(dst, steps[1:])
		dst, found = append(dst, ','), found || here
	}
	return append(dst, ']'), found
}

// FirstDifference is the path of the first field, in sorted order, in which two JSON
// texts differ, "$" where they differ as a whole; "" where they don't differ or are not
// both JSON. What without names does not count.
func FirstDifference(a, b []byte, without Set) string {
	rootA, errA := Read(a)
	rootB, errB := Read(b)
	if errA != nil || errB != nil {
		return ""
	}
	return rootA.difference(rootB, "$", without)
}

// DifferenceAt is the path of the first difference to b in what the steps lead to.
func (n *Node) DifferenceAt(b *Node, path string, steps []Step) string {
	switch {
	case len(steps) == 0:
		return n.difference(b, path, nil)
	case steps[0].Kind != Each:
		return n.child(steps[0]).DifferenceAt(b.child(steps[0]), pathTo(path, steps[0]), steps[1:])
	case n.IsArray() != b.IsArray():
		return path
	case !n.IsArray():
		return ""
	}
	for i := range max(len(n.elems), len(b.elems)) {
		st := Step{Kind: Element, Index: i}
		at := pathTo(path, st)
		if i >= len(n.elems) || i >= len(b.elems) {
			return at
		}
		if d := n.elems[i].DifferenceAt(b.elems[i], at, steps[1:]); d != "" {
			return d
		}
	}
	return ""
}

// IsArray reports whether there is an array.
func (n *Node) IsArray() bool { return n != nil && n.Kind == Array }

// difference is the path of the first difference to b, "" if there is none. A nil
// node is a missing value.
func (n *Node) difference(b *Node, path string, without Set) string {
	switch {
	case n == nil && b == nil:
		return ""
	case n == nil || b == nil || n.Kind != b.Kind || n.Text != b.Text:
		return path
	case n.Kind == Object:
		return n.memberDifference(b, path, without)
	}
	for i := range max(len(n.elems), len(b.elems)) {
		below := without.element(i)
		if below.ends() {
			continue
		}
		st := Step{Kind: Element, Index: i}
		if d := n.child(st).difference(b.child(st), pathTo(path, st), below); d != "" {
			return d
		}
	}
	return ""
}

// memberDifference goes through the members of both objects in the order of their
// names.
func (n *Node) memberDifference(b *Node, path string, without Set) string {
	for i, j := 0, 0; i < len(n.members) || j < len(b.members); {
		var left, right *Node
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
		if d := left.difference(right, pathTo(path, Step{Kind: Member, Name: name}), below); d != "" {
			return d
		}
	}
	return ""
}

// pathTo is the path one step further.
func pathTo(path string, st Step) string { return string(st.appendTo([]byte(path))) }
