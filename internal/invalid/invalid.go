// Package invalid collects what is wrong with a configuration.
package invalid

import (
	"errors"
	"fmt"
	"time"
)

// Faults are what is wrong with a configuration: its user learns of all at once.
type Faults []error

// Add adds a fault, as fmt.Errorf makes it.
func (f *Faults) Add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// AddIf adds a fault where it is one.
func (f *Faults) AddIf(isFault bool, format string, args ...any) {
	if isFault {
		f.Add(format, args...)
	}
}

// Err has all faults, one a line below what they are about; nil if there are none.
func (f Faults) Err(about string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("%s:\n%w", about, errors.Join(f...))
}

// Negative adds a fault where a value is below 0.
func Negative[T int | int64 | time.Duration](f *Faults, name string, value T) {
	f.AddIf(value < 0, "%s %v is negative", name, value)
}
