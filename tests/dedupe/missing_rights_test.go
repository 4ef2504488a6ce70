package dedupe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
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
			rules := []string{"~idem:done:*", "+info"}
			for _, right := range rights {
				rules = append(rules, "+"+right)
			}
			if warnings, err := newRedis(t, s.User("enough", rules...)).Check(t.Context()); err != nil || len(warnings) > 0 {
				t.Errorf("with all that is documented: %q, %v", warnings, err)
			}
			for _, right := range rights {
				_, err := newRedis(t, s.User("without-"+right, append(slices.Clone(rules), "-"+right)...)).Check(t.Context())
				if !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "lacks "+strings.ToUpper(right)+":") {
					t.Errorf("without %s: %v", right, err)
				}
			}
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
	s := testserver.Start(t, testserver.Redis86)
	store := newRedis(t, s.Client(func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = 5*time.Minute, 5*time.Minute }))
	s.Freeze()
	defer s.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := store.Check(ctx); err == nil || time.Since(start) > 30*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
