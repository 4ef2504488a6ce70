package eventkey

import "fmt"

// pathNode is a tree of paths without [*], so that one pass over a payload finds the
// values of them all.
type pathNode struct {
	children []pathChild
	slot     int // where the value goes, -1 if no path ends here
}

type pathChild struct {
	step
	node *pathNode
}

func newPathTree() *pathNode { return &pathNode{slot: -1} }

// insert adds a path and returns its slot: the given one, or that of the same path
// inserted before.
func (n *pathNode) insert(steps []step, slot int) int {
	for _, st := range steps {
		var next *pathNode
		for _, c := range n.children {
			if c.step == st {
				next = c.node
			}
		}
		if next == nil {
			next = newPathTree()
			n.children = append(n.children, pathChild{st, next})
		}
		n = next
	}
	if n.slot < 0 {
		n.slot = slot
	}
	return n.slot
}

// member finds the child for a member's name; it is -1 if no path goes there.
func (n *pathNode) member(name jsonValue) int {
	if n == nil || len(n.children) == 0 {
		return -1
	}
	text := name.text()
	for i := range n.children {
		if c := &n.children[i]; c.kind == toMember && c.name == string(text) {
			return i
		}
	}
	return -1
}

func (n *pathNode) element(index int) *pathNode {
	if n != nil {
		for i := range n.children {
			if c := &n.children[i]; c.kind == toElement && c.index == index {
				return c.node
			}
		}
	}
	return nil
}

// pick reads a whole JSON text and puts the values at the tree's paths into out.
// A name that stands twice in an object, where a path goes through it, is an
// error: parsers differ in which of the two they see.
func pick(data []byte, tree *pathNode, out []jsonValue) error {
	s := newScanner(data)
	if err := s.pick(tree, out, 0); err != nil {
		return err
	}
	return s.end()
}

func (s *jsonScanner) pick(n *pathNode, out []jsonValue, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	var v jsonValue
	var err error
	c := s.peek()
	start := s.pos
	switch c {
	case '{':
		err = s.pickMembers(n, out, depth)
		v = jsonValue{kind: kindObject}
	case '[':
		err = s.pickElements(n, out, depth)
		v = jsonValue{kind: kindArray}
	default:
		v, err = s.scalar()
	}
	if err != nil {
		return err
	}
	if n != nil && n.slot >= 0 {
		if v.raw == nil {
			v.raw = s.data[start:s.pos]
		}
		out[n.slot] = v
	}
	return nil
}

func (s *jsonScanner) pickMembers(n *pathNode, out []jsonValue, depth int) error {
	s.pos++
	var seen uint64
	name, more, err := s.member(true)
	for more && err == nil {
		var child *pathNode
		if i := n.member(name); i >= 0 {
			child = n.children[i].node
			if seen&(1<<i) != 0 {
				return fmt.Errorf("the name %q stands twice in one JSON object", n.children[i].name)
			}
			seen |= 1 << i
		}
		if err = s.pick(child, out, depth+1); err != nil {
			return err
		}
		if more, err = s.next('}'); more && err == nil {
			name, more, err = s.member(false)
		}
	}
	return err
}

func (s *jsonScanner) pickElements(n *pathNode, out []jsonValue, depth int) error {
	s.pos++
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for index := 0; ; index++ {
		if err := s.pick(n.element(index), out, depth+1); err != nil {
			return err
		}
		if more, err := s.next(']'); !more || err != nil {
			return err
		}
	}
}
