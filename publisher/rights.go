package publisher

import (
	"context"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/slot"
)

// missingRights names the commands that publishing uses and the user may not run.
func (t *topic) missingRights(ctx context.Context, mode Mode) (missing []string, asked bool, err error) {
	harmless := [][]any{{"exec"}, {"watch", slot.LayoutKey(t.name), t.name}, {"unwatch"}}
	return server.MissingRights(ctx, t.engine.client, t.name, harmless, t.usedCommands(mode))
}

// usedCommands are those that publishing in a mode uses, each with the keys that it
// is used with.
func (t *topic) usedCommands(mode Mode) [][]any {
	layoutKey := slot.LayoutKey(t.name)
	commands := [][]any{
		{"xinfo", "stream", t.name},
		{"xgroup", "create", t.name, "g", "$", "mkstream"},
		{"xgroup", "destroy", t.name, "g"},
		{"xrange", t.name, "-", "+"},
		{"hgetall", layoutKey},
		{"hset", layoutKey, "f", "v"},
		{"hincrby", layoutKey, "f", 1},
		{"xadd", t.name, "nomkstream", "*", "f", "v"},
	}
	if t.engine.cfg.MinReplicas > 0 {
		commands = append(commands, []any{"wait", 0, 1})
	}
	if mode != Latch {
		return append(commands, []any{"xcfgset", t.name, "idmp-duration", 1})
	}
	latch := slot.LatchKey(t.name, t.engine.cfg.ProducerID, "check")
	return append(commands, [][]any{
		{"eval", "return 1", 3, t.name, latch, layoutKey},
		{"evalsha", latchSHA, 3, t.name, latch, layoutKey},
		{"hmget", layoutKey, "f"},
		{"exists", t.name},
		{"xlen", t.name},
		{"get", latch},
		{"set", latch, "v"},
		{"xdel", t.name, "0-1"},
	}...)
}
