package dedupe_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// perRecord is what one done record may cost above its key, in bytes.
const perRecord = 150

// TestRecordSize measures what 50,000 records cost, or as many as RECORDS says. They fill
// the server's table, whose size is a power of two, as far as 200,000 or 800,000 would.
//
//	RECORDS=1000000 go test ./dedupe -run TestRecordSize -v
func TestRecordSize(t *testing.T) {
	n := 50_000
	if v, err := strconv.Atoi(os.Getenv("RECORDS")); err == nil {
		n = v
	} else if testing.Short() {
		t.Skip("long")
	}
	for _, kind := range []testserver.Kind{testserver.Redis70, testserver.Redis86, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			client := server.Client(func(o *redis.Options) { o.PoolSize = 40 })
			s := newRedis(t, client)
			before := memory(t, client)
			var keys int
			var mu sync.Mutex
			var wg sync.WaitGroup
			const workers = 32
			for w := range workers {
				wg.Go(func() {
					size := 0
					for i := w; i < n; i += workers {
						k := dedupe.Key{Namespace: "payments", Topic: "orders", Handler: "charge", Event: "pay:1001:p" + strconv.Itoa(1_000_000+i)}
						size += len(redisstore.Config{}.Name(k))
						c, err := s.Claim(context.Background(), k, options())
						if err == nil {
							err = c.Commit(context.Background(), nil)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
					mu.Lock()
					keys += size
					mu.Unlock()
				})
			}
			wg.Wait()
			cost := float64(memory(t, client)-before-keys) / float64(n)
			t.Logf("%s: %d records of %d bytes of key: %.1f bytes each above the key", kind, n, keys/n, cost)
			if cost > perRecord {
				t.Errorf("%.1f bytes, want at most %d", cost, perRecord)
			}
		})
	}
}

// memory is what the server has allocated, without the clients' buffers.
func memory(t testing.TB, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(context.Background(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	fields := make(map[string]int)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n, err := strconv.Atoi(value); err == nil {
			fields[name] = n
		}
	}
	if fields["used_memory"] == 0 {
		t.Fatal("INFO memory has no used_memory")
	}
	return fields["used_memory"] - fields["mem_clients_normal"]
}
