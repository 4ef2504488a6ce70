// Package exit says how idemctl ends: the exit codes, and errors that carry one together
// with what an operator can do.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Code is an exit code of the program. Scripts depend on them: they don't change.
type Code int

// The exit codes.
const (
	OK          Code = 0   // all is done, and nothing was found wrong
	Found       Code = 1   // a check found something wrong, what was asked for is not there, or not all of it was done
	Usage       Code = 2   // the command line is wrong; nothing was done
	Unreachable Code = 3   // the server or the database does not answer
	Refused     Code = 4   // it answers, and refuses: a right, a password, a table, a command that it does not know
	Interrupted Code = 130 // Ctrl-C; what was done until then was said
)

// Error is an error with an exit code and a hint.
type Error struct {
	Code Code
	Err  error
	// Hint says what to do, in full sentences; empty where the error says it.
	Hint string
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error with a code and without a hint.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Do returns the error with a hint.
func (e *Error) Do(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// Of is the code that an error ends the program with.
func Of(err error) Code {
	var own *Error
	var reply redis.Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &own):
		return own.Code
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.Is(err, dedupe.ErrNotFound):
		return Found
	case errors.Is(err, dedupe.ErrInvalid):
		return Usage
	case errors.Is(err, dedupe.ErrRefused):
		return Refused
	case errors.As(err, &reply):
		return Refused
	case IsUnreachable(err):
		return Unreachable
	}
	return Refused
}

// IsUnreachable reports that an error is of the way to a server, not a word of the server's.
func IsUnreachable(err error) bool {
	var link net.Error
	var dial *net.OpError
	return errors.As(err, &link) || errors.As(err, &dial) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed)
}
