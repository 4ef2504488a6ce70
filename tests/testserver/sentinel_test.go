package testserver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestSentinelPromotes(t *testing.T) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey81} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it mostly waits
			s := testserver.StartSentinel(t, kind)
			c := s.FailoverClient()
			set(t, c, "key", "value")
			if n, err := c.Wait(t.Context(), 1, 5*time.Second).Result(); n != 1 || err != nil {
				t.Fatalf("%d replicas, %v", n, err)
			}
			old := s.KillPrimary()
			promoted := s.WaitPromotion(old, time.Minute)
			if promoted == old {
				t.Fatal("the dead one was promoted")
			}
			testserver.Eventually(t, 10*time.Second, func() error {
				v, err := c.Get(t.Context(), "key").Result()
				if err == nil && v != "value" {
					err = fmt.Errorf("key holds %q", v)
				}
				return err
			})
			if kind != testserver.Redis86 {
				return // Sentinel takes 10 s to look at the old one again: seen once is enough
			}
			// The old one comes back as a replica.
			old.Restart()
			testserver.Eventually(t, 20*time.Second, func() error {
				info, err := old.Client().Info(t.Context(), "replication").Result()
				if err == nil && !strings.Contains(info, "role:slave") {
					err = fmt.Errorf("the old primary: %s", info)
				}
				return err
			})
		})
	}
}
