package dedupe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/tests/internal/preflight"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Each right that the Redis store needs is named by Check where it alone is missing, on every
// server.
func TestEachMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	rights := []string{"set", "get", "pttl", "pexpire", "del", "time", "eval", "evalsha"}
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			preflight.EachMissingRight(s, rights, []string{"~idem:done:*", "+info"}, func(client *redis.Client, missing []string) {
				warnings, err := newRedis(t, client).Check(t.Context())
				if missing == nil {
					if err != nil || len(warnings) > 0 {
						t.Errorf("with all that is documented: %q, %v", warnings, err)
					}
					return
				}
				if !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "lacks "+missing[0]+":") {
					t.Errorf("without %s: %v", missing, err)
				}
			})
			_, err := newRedis(t, s.User("elsewhere", "~other:*", "+@all")).Check(t.Context())
			if !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "lacks ~idem:done:*:") {
				t.Errorf("without the keys: %v", err)
			}
			if n := s.Client().DBSize(t.Context()).Val(); n != 0 {
				t.Errorf("it left %d keys", n)
			}
		})
	}
}

// Check ends with its context, also when the client does not heed contexts.
func TestCheckOfAFrozenServer(t *testing.T) {
	preflight.FrozenServer(t, func(client *redis.Client) func(context.Context) error {
		store := newRedis(t, client)
		return func(ctx context.Context) error {
			_, err := store.Check(ctx)
			return err
		}
	})
}
