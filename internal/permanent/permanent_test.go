package permanent

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

type marked struct {
	error
	permanent bool
}

func (m marked) Permanent() bool { return m.permanent }
func (m marked) Unwrap() error   { return m.error }

func TestIs(t *testing.T) {
	yes, no := marked{io.EOF, true}, marked{io.ErrNoProgress, false}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {io.EOF, false}, {yes, true}, {no, false}, {io.ErrClosedPipe, true},
		{fmt.Errorf("wrapped: %w", yes), true},
		{fmt.Errorf("wrapped: %w", io.ErrClosedPipe), true},
		{errors.Join(io.EOF, yes), true},
		{errors.Join(no, yes), true}, // the first one that is marked does not speak for the others
		{errors.Join(no, io.EOF), false},
		{marked{yes, false}, false}, // but it speaks for what it wraps
		{marked{io.ErrClosedPipe, false}, false},
		{marked{no, true}, true},
		{fmt.Errorf("%w: %w", io.EOF, fmt.Errorf("deep: %w", yes)), true},
	} {
		if got := Is(c.err, io.ErrClosedPipe); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
