package server

import (
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// Class is what a caller may conclude from an error.
type Class int

const (
	// Final: the server answered that it did not do it, and will not do it when
	// asked again (wrong type, no permission, out of memory).
	Final Class = iota
	// Refused: nothing was done, and another try may succeed (loading, read-only
	// replica after a failover, slot on the move, connection not made).
	Refused
	// Ambiguous: the command may have run; its reply was lost.
	Ambiguous
)

// refusals are the error replies that say "not now".
var refusals = []string{
	"LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOSCRIPT",
	"MISCONF", "OOM", "MOVED", "ASK", "NOREPLICAS", "BUSY ", "max number of clients reached",
}

// Classify sorts an error of a command or pipeline that was sent with [Command].
func Classify(err error) Class {
	var reply redis.Error
	if errors.As(err, &reply) {
		for _, prefix := range refusals {
			if redis.HasErrorPrefix(err, prefix) {
				return Refused
			}
		}
		return Final
	}
	if errors.Is(err, redis.ErrClosed) {
		return Final
	}
	// Neither got as far as a connection, so nothing was written to one.
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return Refused
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return Refused
	}
	return Ambiguous
}

// MayBeAnother reports an error after which another server may answer, with another
// version and another clock: a lost connection, a replica, one that has just started.
func MayBeAnother(err error) bool {
	if err == nil {
		return false
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return true
	}
	return redis.IsReadOnlyError(err) || redis.IsLoadingError(err) || redis.IsMasterDownError(err)
}

// FirstError returns the error that explains a failed transaction: the first
// one of a command that is not just "aborted because of an earlier error". A
// protocol error, such as an argument above proto-max-bulk-len, goes before the
// loss of the connection that the server closes after it: EXEC was not reached.
func FirstError(txErr error, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "Protocol error") {
			return err
		}
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.IsExecAbortError(err) {
			return err
		}
	}
	return txErr
}

// IsMissingKey reports the reply of XINFO, XGROUP and XCFGSET on a key that does
// not exist.
func IsMissingKey(err error) bool {
	return redis.HasErrorPrefix(err, "no such key") || redis.HasErrorPrefix(err, "The XGROUP subcommand requires the key to exist")
}

// IsUnknownSyntax reports that the server does not know an option of XADD. Redis and
// Valkey take it for an entry ID; miniredis counts the arguments.
func IsUnknownSyntax(err error) bool {
	return redis.HasErrorPrefix(err, "Invalid stream ID") || redis.HasErrorPrefix(err, "syntax error") ||
		redis.HasErrorPrefix(err, "wrong number of arguments")
}

// IsRefusedByACL reports that the user lacks the right to a command or key. Inside
// a script Redis 7.0 words it without the NOPERM.
func IsRefusedByACL(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "The user executing the script")
}
