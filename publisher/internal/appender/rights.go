package appender

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// MissingRights names the commands and keys that publishing uses and the user may not.
// warn receives why they could not be asked for.
func (s *Stream) MissingRights(ctx context.Context, mode Mode, warn preflight.Warn) (missing []string, err error) {
	return preflight.Missing(ctx, s.config.Client, s.name, fmt.Sprintf("topic %q", s.name), s.usedRights(mode), warn)
}

// usedRights are those that publishing in a mode uses; in mode Auto those that every mode
// does.
func (s *Stream) usedRights(mode Mode) []preflight.Right {
	layoutKey, sideKeys := rediskey.LayoutKey(s.name), sideKeys(s.name)
	rights := preflight.Uses(s.name, s.name, "multi", "exec", "watch", "unwatch",
		"xinfo stream", "xgroup create", "xgroup destroy", "xrange", "xadd")
	rights = append(rights, preflight.Uses(layoutKey, sideKeys, "watch", "hgetall", "hset", "hincrby", "xadd")...)
	if s.config.MinReplicas > 0 {
		rights = append(rights, preflight.Uses("", "", "wait")...)
	}
	switch mode {
	case Auto:
		return rights
	case Latch:
		latch := rediskey.LatchKey(s.name, s.config.ProducerID, "check")
		rights = append(rights, preflight.Uses(s.name, s.name, "eval", "evalsha", "exists", "xlen", "xdel")...)
		rights = append(rights, preflight.Uses(layoutKey, sideKeys, "hmget")...)
		return append(rights, preflight.Uses(latch, sideKeys, "get", "set")...)
	default:
		return append(rights, preflight.Uses(s.name, s.name, "xcfgset")...)
	}
}

// sideKeys is the pattern of what stands beside a stream.
func sideKeys(topic string) string {
	return strings.TrimSuffix(rediskey.LayoutKey(topic), "layout") + "*"
}

// Lacks is the error of missing rights.
func (s *Stream) Lacks(missing []string) error {
	return Final(preflight.Lacks(missing, fmt.Sprintf("the stream and its side keys (%s)", sideKeys(s.name))))
}

// Explain says what an operator must mend, where the server's reply needs it. Which command
// it has refused the server says itself.
func (s *Stream) Explain(err error) error {
	switch {
	case isWrongType(err):
		return fmt.Errorf("%w: %q, or its layout record %q: %w", ErrWrongType, s.name, rediskey.LayoutKey(s.name), err)
	case !server.IsRefusedByACL(err):
		return err
	}
	return fmt.Errorf("the user needs rights to the keys ~%s and ~%s, and to the commands that Publisher.Check lists: %w", s.name, sideKeys(s.name), err)
}
