package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Check asks the server, of a cluster one of its masters, whether it can keep records,
// and writes nothing. Call it when the process starts: a user who may claim but not
// commit makes every handler run for nothing.
//
// The error says that the server is out of reach, or names the commands that the user
// may not run, and matches dedupe.ErrRefused then. The warnings are about what makes
// records go before their retention is over, and about what could not be asked. It ends
// with ctx, also where the client does not look at contexts.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	r, pending := s.once(ctx, func(ctx context.Context) (any, error) { return s.check(ctx) })
	if pending != nil {
		return nil, fmt.Errorf("redisstore: check: the server has not answered: %w", r.err)
	}
	warnings, _ = r.value.([]string)
	return warnings, r.err
}

func (s *Store) check(ctx context.Context) (warnings []string, err error) {
	key := string(s.names) + "check"
	missing, asked, err := server.MissingRights(ctx, s.cfg.Client, key, nil, [][]any{
		{"set", key, "", "nx", "get", "px", 1}, {"get", key}, {"pttl", key}, {"pexpire", key, 1}, {"del", key}, {"time"},
		{"evalsha", strings.Repeat("0", 40), 1, key}, {"eval", "return 1", 1, key},
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("redisstore: check: %w", err)
	case !asked || slices.Contains(missing, "MULTI"):
		warnings = append(warnings, "The user's rights were not checked: that needs a *redis.Client or *redis.ClusterClient, and a user who may run MULTI.")
	case len(missing) > 0:
		err = fmt.Errorf("redisstore: check: %w: the user may not run %s on %s*: %s",
			dedupe.ErrRefused, strings.Join(missing, ", "), s.names, s.grant())
	}
	memory, infoErr := server.InfoSection(ctx, s.cfg.Client, key, "memory")
	switch policy := memory["maxmemory_policy"]; {
	case infoErr != nil || policy == "":
		warnings = append(warnings, "The server's maxmemory-policy is unknown: "+server.WhyNoInfo(infoErr)+".")
	case policy != "noeviction":
		warnings = append(warnings, fmt.Sprintf("The server's maxmemory-policy is %s: it may evict records before their retention is over, "+
			"and their handlers run again when the events come again. Set noeviction.", policy))
	}
	return warnings, err
}
