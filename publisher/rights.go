package publisher

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// missingRights names the commands and keys that publishing uses and the user may not.
func (t *topic) missingRights(ctx context.Context, mode Mode, r *Report) (missing []string, err error) {
	return preflight.Missing(ctx, t.engine.client, t.name, fmt.Sprintf("topic %q", t.name), t.usedRights(mode), r.warn)
}

// usedRights are those that publishing in a mode uses; in mode Auto those that every mode
// does.
func (t *topic) usedRights(mode Mode) []preflight.Right {
	layoutKey, sideKeys := rediskey.LayoutKey(t.name), sideKeys(t.name)
	rights := preflight.Uses(t.name, t.name, "multi", "exec", "watch", "unwatch",
		"xinfo stream", "xgroup create", "xgroup destroy", "xrange", "xadd")
	rights = append(rights, preflight.Uses(layoutKey, sideKeys, "watch", "hgetall", "hset", "hincrby", "xadd")...)
	if t.engine.cfg.MinReplicas > 0 {
		rights = append(rights, preflight.Uses("", "", "wait")...)
	}
	switch mode {
	case Auto:
		return rights
	case Latch:
		latch := rediskey.LatchKey(t.name, t.engine.cfg.ProducerID, "check")
		rights = append(rights, preflight.Uses(t.name, t.name, "eval", "evalsha", "exists", "xlen", "xdel")...)
		rights = append(rights, preflight.Uses(layoutKey, sideKeys, "hmget")...)
		return append(rights, preflight.Uses(latch, sideKeys, "get", "set")...)
	default:
		return append(rights, preflight.Uses(t.name, t.name, "xcfgset")...)
	}
}

// sideKeys is the pattern of what stands beside a stream.
func sideKeys(topic string) string {
	return strings.TrimSuffix(rediskey.LayoutKey(topic), "layout") + "*"
}

// lacks says which rights are missing.
func (t *topic) lacks(missing []string) error {
	return final(preflight.Lacks(missing, fmt.Sprintf("the stream and its side keys (%s)", sideKeys(t.name))))
}

// explain says what an operator must mend, where the server's reply needs it. Which command
// it has refused the server says itself.
func (t *topic) explain(err error) error {
	switch {
	case isWrongType(err):
		return fmt.Errorf("%w: %q, or its layout record %q: %w", ErrWrongType, t.name, rediskey.LayoutKey(t.name), err)
	case !server.IsRefusedByACL(err):
		return err
	}
	return fmt.Errorf("the user needs rights to the keys ~%s and ~%s, and to the commands that Publisher.Check lists: %w", t.name, sideKeys(t.name), err)
}
