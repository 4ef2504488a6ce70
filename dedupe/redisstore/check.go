package redisstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/preflight"
)

// Check asks the server, of a cluster one of its masters, whether it can keep records,
// and writes nothing. It ends when ctx does, whether or not the client heeds contexts: it
// asks over connections of its own. Call it when the process starts: a user who may claim
// but not commit makes every handler run for nothing.
//
// The error says that the server is unavailable, or names the commands and keys that the
// user may not use, and matches dedupe.ErrRefused then. The warnings are about what makes
// records go before their retention is over, and about what could not be asked.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	key := string(s.names) + "check"
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	client, done := preflight.Bounded(s.cfg.Client)
	defer done()
	keys := string(s.names) + "*"
	missing, err := preflight.Missing(ctx, client, key, "keys ~"+keys, preflight.Uses(key, keys,
		"set", "get", "pttl", "pexpire", "del", "time", "evalsha", "eval"), warn)
	switch {
	case err != nil:
		return nil, fmt.Errorf("redisstore: check: %w", err)
	case len(missing) > 0:
		err = fmt.Errorf("redisstore: check: %w: the user lacks %s: %s",
			dedupe.ErrRefused, strings.Join(missing, ", "), s.grant())
	}
	preflight.Eviction(ctx, client, key, "records before their retention is over, and their handlers run again when the events come again", warn)
	return warnings, err
}
