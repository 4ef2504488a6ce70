// Package fault is about errors that keep their text and match another one as well, and
// about values that users configure.
package fault

import "fmt"

type marked struct {
	error
	as error
}

func (e marked) Unwrap() error        { return e.error }
func (e marked) Is(target error) bool { return target == e.as }

// As makes err match mark too, and leaves its text as it is.
func As(mark, err error) error { return marked{err, mark} }

// Validate returns what the method Validate() error of v reports, nil where v has none. A
// panic is a fault: a nil pointer in an interface is the usual way to one.
func Validate(v any) (err error) {
	checked, ok := v.(interface{ Validate() error })
	if !ok {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Validate of %T panicked: %v", v, p)
		}
	}()
	return checked.Validate()
}
