package server

import (
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Class is what a caller may conclude from an error.
type Class int

const (
	// Final means that the server answered that it did not do it, and will not do it when
	// asked again (wrong type, no permission).
	Final Class = iota
	// Refused means that nothing was done, and another try may succeed (loading, out of memory,
	// read-only replica after a failover, slot on the move, connection not made).
	Refused
	// Ambiguous means that the command may have run; its reply was lost.
	Ambiguous
)

// refusals are the error replies that say "not now": nothing was done.
var refusals = []string{
	"LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOSCRIPT", "MOVED ", "ASK ",
	"NOREPLICAS", "MISCONF", "OOM ", "BUSY ", "max number of clients",
	// Of proxies that have no server to send it to: Envoy, predixy (no server, or no
	// connection to it), twemproxy (by the text of the system's error), Codis.
	"no upstream host",
	"no server ",
	"Connection refused", "Host is down", "No route to host",
	"handle request, slot is not ready",
}

// losses are the error replies of proxies that have lost their own connection to the
// server: what they had sent may have run.
var losses = []string{
	"upstream failure", "upstream protocol error",
	"server connection close", "deliver request fail",
	"Connection reset by peer", "Connection timed out", "Operation timed out", "Broken pipe",
	"handle request, ", "handle response, ",
}

// abortedFor is how the server refuses EXEC for a reason of EXEC's own, such as
// "EXECABORT Transaction discarded because of: OOM command not allowed".
const abortedFor = "EXECABORT Transaction discarded because of: "

// Classify sorts an error of a command or pipeline that was sent with [Command].
func Classify(err error) Class {
	var reply redis.Error
	if errors.As(err, &reply) {
		return classifyReply(reply.Error())
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

func classifyReply(text string) Class {
	text = strings.TrimPrefix(strings.TrimPrefix(text, abortedFor), "ERR ")
	begins := func(prefix string) bool { return strings.HasPrefix(text, prefix) }
	switch {
	case slices.ContainsFunc(refusals, begins):
		return Refused
	case slices.ContainsFunc(losses, begins):
		return Ambiguous
	}
	return Final
}

// MayBeAnother reports an error after which another server may answer, with another
// version and another clock: a lost connection, a replica, one that has just started.
func MayBeAnother(err error) bool {
	if err == nil {
		return false
	}
	return Classify(err) == Ambiguous || !isReply(err) || redis.IsReadOnlyError(err) || redis.IsLoadingError(err) || redis.IsMasterDownError(err)
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
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
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "The user executing the script") ||
		redis.HasErrorPrefix(err, "ACL failure in script")
}
