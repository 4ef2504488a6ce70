package redisstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Check asks the server, of a cluster one of its masters, whether it can keep records,
// and writes nothing. It ends when ctx does, whether or not the client heeds contexts: it
// asks over connections of its own. Call it when the process starts: a user who may claim
// but not commit makes every handler run for nothing.
//
// The error says that the server is out of reach, or names the commands and keys that the
// user may not use, and matches dedupe.ErrRefused then. The warnings are about what makes
// records go before their retention is over, and about what could not be asked.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	key := string(s.names) + "check"
	client, done := server.Bounded(s.cfg.Client)
	defer done()
	missing, asked, err := server.MissingRights(ctx, client, key, server.Uses(key, string(s.names)+"*",
		"set", "get", "pttl", "pexpire", "del", "time", "evalsha", "eval"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("redisstore: check: %w", err)
	case !asked:
		warnings = append(warnings, "The user's rights were not checked, which needs a *redis.Client or *redis.ClusterClient.")
	case len(missing) > 0:
		err = fmt.Errorf("redisstore: check: %w: the user lacks %s: %s",
			dedupe.ErrRefused, strings.Join(missing, ", "), s.grant())
	}
	switch policy, unknown := server.EvictionPolicy(ctx, client, key); {
	case policy == "":
		warnings = append(warnings, "The server's maxmemory-policy is unknown: "+unknown+".")
	case policy != "noeviction":
		warnings = append(warnings, fmt.Sprintf("The server's maxmemory-policy is %s: it may evict records before their retention is over, "+
			"and their handlers run again when the events come again. Set noeviction.", policy))
	}
	return warnings, err
}
