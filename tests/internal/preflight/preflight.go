// Package preflight has what the tests of the Checks have in common.
package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// EachMissingRight calls check for a user who has all of the rights, with missing nil, and then
// for users who lack one of them: missing has its name as Check has it. others are the rules
// of all of these users. Rights are written as ACL rules are, "xinfo|stream".
func EachMissingRight(s *testserver.Server, rights, others []string, check func(client *redis.Client, missing []string)) {
	rules := slices.Clone(others)
	for _, right := range rights {
		rules = append(rules, "+"+right)
	}
	check(s.User("enough", rules...), nil)
	for _, right := range rights {
		user := s.User("without-"+strings.ReplaceAll(right, "|", "-"), append(slices.Clone(rules), "-"+right)...)
		check(user, []string{strings.ToUpper(strings.ReplaceAll(right, "|", " "))})
	}
}

// FrozenServer checks that a Check ends with its context on a server that is frozen, also
// when the client does not heed contexts.
func FrozenServer(t *testing.T, newCheck func(client *redis.Client) (check func(context.Context) error)) {
	t.Helper()
	s := testserver.Start(t, testserver.Redis86)
	check := newCheck(s.Client(func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = 5*time.Minute, 5*time.Minute }))
	s.Freeze()
	defer s.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := check(ctx); err == nil || time.Since(start) > 30*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
