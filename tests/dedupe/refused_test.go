package dedupe_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A record that is larger than the server lets an argument be: the server closes the
// connection, which looks like an outage, and would be one for ever.
func TestRecordAboveProtoMaxBulkLen(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := newRedis(t, testserver.Start(t, kind, testserver.Set("proto-max-bulk-len", "1mb")).Client())
			for _, size := range []int{2 << 20, 20 << 20} {
				k := newKey(t)
				c := mustClaim(t, s, k, options())
				begin := time.Now()
				if err := c.Commit(t.Context(), [][]byte{make([]byte, size)}); !errors.Is(err, dedupe.ErrTooLarge) {
					t.Errorf("%d bytes: %v, want ErrTooLarge", size, err)
				}
				if took := time.Since(begin); took > 4*time.Second {
					t.Errorf("%d bytes: known after %v", size, took)
				}
				if err := c.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
				if err := mustClaim(t, s, k, options()).Commit(t.Context(), [][]byte{make([]byte, 1000)}); err != nil {
					t.Errorf("a smaller one after it: %v", err)
				}
			}
		})
	}
}

// A user who may claim but not record is told so, by Commit and, before any handler has
// run, by Check.
func TestRedisRightToRecordMissing(t *testing.T) {
	server := testserver.Start(t, testserver.Redis86)
	s := newRedis(t, server.User("app", "~*", "+@all", "-eval", "-evalsha"))
	o := options()
	o.Lease = 2 * time.Second // for so long it might be granted
	if err := mustClaim(t, s, newKey(t), o).Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrRefused) {
		t.Errorf("commit: %v, want ErrRefused", err)
	}
	if _, err := s.Check(t.Context()); !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "EVALSHA, EVAL ") {
		t.Errorf("check: %v, want ErrRefused that names EVALSHA and EVAL", err)
	}
}

func TestRedisCheck(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			client := server.Client()
			s := newRedis(t, client)
			if warnings, err := s.Check(t.Context()); err != nil || len(warnings) > 0 {
				t.Errorf("%q, %v", warnings, err)
			}
			if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
				t.Fatal(err)
			}
			warnings, err := s.Check(t.Context())
			if err != nil || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "allkeys-lru") }) {
				t.Errorf("%q, %v, want a warning about allkeys-lru", warnings, err)
			}
			if n := client.DBSize(t.Context()).Val(); n != 0 {
				t.Errorf("it left %d keys", n)
			}
			other := newRedis(t, server.User("other", "~other:*", "+@all"))
			if _, err := other.Check(t.Context()); !errors.Is(err, dedupe.ErrRefused) {
				t.Errorf("no right to the keys: %v, want ErrRefused", err)
			}
			few := newRedis(t, server.User("few", "~idem:done:*", "+set", "+get", "+pttl", "+pexpire", "+del", "+time", "+eval", "+evalsha"))
			if warnings, err := few.Check(t.Context()); err != nil || len(warnings) != 1 {
				t.Errorf("a user who may not INFO: %q, %v, want one warning", warnings, err)
			}
			c := mustClaim(t, few, newKey(t), options())
			if err := c.Commit(t.Context(), nil); err != nil {
				t.Errorf("what the documentation asks for is not enough: %v", err)
			}
		})
	}
	cluster := testserver.StartCluster(t, testserver.Redis86)
	if warnings, err := newRedis(t, cluster.ClusterClient()).Check(t.Context()); err != nil || len(warnings) > 0 {
		t.Errorf("a cluster: %q, %v", warnings, err)
	}
}
