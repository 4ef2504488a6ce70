package jsonpath

import (
	"fmt"
	"slices"
)

// Picker finds the values at a set of paths in one pass over a JSON text. The paths are
// without [*].
type Picker struct {
	root *fork
	size int
}

// fork is where paths part. A nil fork has none.
type fork struct {
	branches []branch
	index    int // of the value in what Pick fills, -1 if no path ends here
}

type branch struct {
	Step
	to *fork
}

// NewPicker makes a Picker without paths.
func NewPicker() *Picker { return &Picker{root: &fork{index: -1}} }

// Add adds a path and returns the index of its value in what Pick fills. A path that was
// added before has the index that it had then.
func (p *Picker) Add(steps []Step) int {
	f := p.root
	for _, st := range steps {
		i := slices.IndexFunc(f.branches, func(b branch) bool { return b.Step == st })
		if i < 0 {
			i = len(f.branches)
			f.branches = append(f.branches, branch{st, &fork{index: -1}})
		}
		f = f.branches[i].to
	}
	if f.index < 0 {
		f.index = p.size
		p.size++
	}
	return f.index
}

// Size is the number of different paths.
func (p *Picker) Size() int { return p.size }

// Pick reads a whole JSON text and puts the values at the paths into out, which has room
// for [Picker.Size] of them and is all zero. A duplicate name in an object that a path
// goes through is an error: parsers differ in which of the two they see.
func (p *Picker) Pick(data []byte, out []Value) error {
	s := newScanner(data)
	if err := s.pick(p.root, out, 0); err != nil {
		return err
	}
	return s.end()
}

// member is the index of the branch for a member's name, -1 if no path goes there.
func (f *fork) member(name Value) int {
	if f == nil || len(f.branches) == 0 {
		return -1
	}
	text := name.Text()
	for i := range f.branches {
		if b := &f.branches[i]; b.Kind == Member && b.Name == string(text) {
			return i
		}
	}
	return -1
}

func (f *fork) element(index int) *fork {
	if f != nil {
		for i := range f.branches {
			if b := &f.branches[i]; b.Kind == Element && b.Index == index {
				return b.to
			}
		}
	}
	return nil
}

func (s *scanner) pick(f *fork, out []Value, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	var v Value
	var err error
	c := s.peek()
	start := s.pos
	switch c {
	case '{':
		err = s.pickMembers(f, out, depth)
		v = Value{Kind: Object}
	case '[':
		err = s.pickElements(f, out, depth)
		v = Value{Kind: Array}
	default:
		v, err = s.scalar()
	}
	if err != nil {
		return err
	}
	if f != nil && f.index >= 0 {
		if v.raw == nil {
			v.raw = s.data[start:s.pos]
		}
		out[f.index] = v
	}
	return nil
}

func (s *scanner) pickMembers(f *fork, out []Value, depth int) error {
	s.pos++
	var seen uint64
	name, more, err := s.member(true)
	for more && err == nil {
		var below *fork
		if i := f.member(name); i >= 0 {
			below = f.branches[i].to
			if seen&(1<<i) != 0 {
				return fmt.Errorf("duplicate name %q in JSON object", f.branches[i].Name)
			}
			seen |= 1 << i
		}
		if err = s.pick(below, out, depth+1); err != nil {
			return err
		}
		if more, err = s.next('}'); more && err == nil {
			name, more, err = s.member(false)
		}
	}
	return err
}

func (s *scanner) pickElements(f *fork, out []Value, depth int) error {
	s.pos++
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for index := 0; ; index++ {
		if err := s.pick(f.element(index), out, depth+1); err != nil {
			return err
		}
		if more, err := s.next(']'); !more || err != nil {
			return err
		}
	}
}
