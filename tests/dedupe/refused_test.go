package dedupe_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A record that is larger than the server lets an argument be: the server closes the
// connection, which looks like an outage, and would be one for ever.
func TestRecordAboveProtoMaxBulkLen(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := newRedis(t, testserver.Start(t, kind, testserver.Set("proto-max-bulk-len", "1mb")).Client(testserver.Patient))
			for _, size := range []int{2 << 20, 20 << 20} {
				k := newKey(t)
				c := mustClaim(t, s, k, options())
				begin := time.Now()
				if err := c.Commit(t.Context(), [][]byte{make([]byte, size)}); !errors.Is(err, dedupe.ErrTooLarge) {
					t.Errorf("%d bytes: %v, want ErrTooLarge", size, err)
				}
				if took := time.Since(begin); took > 20*time.Second { // the lease is 30 s
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
	if _, err := s.Check(t.Context()); !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "lacks EVALSHA, EVAL:") {
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

// A user who is confined to keys under a prefix: the store's is named, with what is missing
// on it, by Check and by the step that fails.
func TestRedisUserConfinedToAPrefix(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		server := testserver.Start(t, kind)
		open := func(name, prefix string, rules ...string) *redisstore.Store {
			t.Helper()
			s, err := redisstore.New(redisstore.Config{Client: server.User(name, rules...), Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		rights := []string{"~billing:done:*", "+set", "+get", "+pttl", "+pexpire", "+del", "+time", "+eval", "+evalsha", "+multi"}
		own := open("own", "billing:done:", rights...)
		if _, err := own.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		k := newKey(t)
		if err := mustClaim(t, own, k, options()).Commit(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if r, err := own.Lookup(t.Context(), k); err != nil || r.Key != k {
			t.Errorf("%s: lookup: %+v, %v", kind, r, err)
		}
		if name := (redisstore.Config{Prefix: "billing:done:"}).Name(k); server.Client().Exists(t.Context(), name).Val() != 1 {
			t.Errorf("%s: there is no %s", kind, name)
		}
		if st := mustAsk(t, newRedis(t, server.Client()), k, options()).State(); st != dedupe.StateClaimed {
			t.Errorf("%s: under another prefix it is %v", kind, st)
		}
		n := 0
		admin, err := redisstore.New(redisstore.Config{Client: server.Client(), Prefix: "billing:done:"})
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range admin.List(t.Context(), dedupe.Filter{Namespace: k.Namespace}) {
			if n++; err != nil || r.Key != k {
				t.Errorf("%s: list: %+v, %v", kind, r, err)
			}
		}
		if err := admin.Close(); err != nil || n != 1 {
			t.Errorf("%s: lists %d records, %v", kind, n, err)
		}

		fewer := append([]string{}, rights...)
		fewer = slices.DeleteFunc(fewer, func(rule string) bool { return rule == "+pexpire" })
		for _, c := range []struct {
			store *redisstore.Store
			want  string
		}{
			{open("fewer", "billing:done:", fewer...), "lacks PEXPIRE: "},
			{open("outside", "", rights...), "lacks ~idem:done:*: "},
		} {
			if _, err := c.store.Check(t.Context()); !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: check: %v, want %q", kind, err, c.want)
			}
		}
		outside := open("outside2", "", rights...)
		if _, err := outside.Claim(t.Context(), k, options()); !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "ACL SETUSER <user> ~idem:done:*") {
			t.Errorf("%s: claim: %v, want the rule", kind, err)
		}
	}
}
