package publisher

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// missingRights names the commands and keys that publishing uses and the user may not.
func (t *topic) missingRights(ctx context.Context, mode Mode) (missing []string, asked bool, err error) {
	return server.MissingRights(ctx, t.engine.client, t.name, t.usedRights(mode))
}

// usedRights are those that publishing in a mode uses; in mode Auto those that every mode
// does.
func (t *topic) usedRights(mode Mode) []server.Right {
	layoutKey, sideKeys := rediskey.LayoutKey(t.name), sideKeys(t.name)
	rights := server.Uses(t.name, t.name, "multi", "exec", "watch", "unwatch",
		"xinfo stream", "xgroup create", "xgroup destroy", "xrange", "xadd")
	rights = append(rights, server.Uses(layoutKey, sideKeys, "watch", "hgetall", "hset", "hincrby", "xadd")...)
	if t.engine.cfg.MinReplicas > 0 {
		rights = append(rights, server.Uses("", "", "wait")...)
	}
	switch mode {
	case Auto:
		return rights
	case Latch:
		latch := rediskey.LatchKey(t.name, t.engine.cfg.ProducerID, "check")
		rights = append(rights, server.Uses(t.name, t.name, "eval", "evalsha", "exists", "xlen", "xdel")...)
		rights = append(rights, server.Uses(layoutKey, sideKeys, "hmget")...)
		return append(rights, server.Uses(latch, sideKeys, "get", "set")...)
	default:
		return append(rights, server.Uses(t.name, t.name, "xcfgset")...)
	}
}

// sideKeys is the pattern of what stands beside a stream.
func sideKeys(topic string) string {
	return strings.TrimSuffix(rediskey.LayoutKey(topic), "layout") + "*"
}

// lacks says which rights are missing.
func (t *topic) lacks(missing []string) error {
	return final(fmt.Errorf("the user lacks %s for the stream and its side keys (%s): grant it with ACL SETUSER",
		strings.Join(missing, ", "), sideKeys(t.name)))
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
