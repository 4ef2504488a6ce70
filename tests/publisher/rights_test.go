package publisher_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/internal/preflight"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The commands that docs/operations.md lists, by the rule that takes each.
var (
	rightsOfAll   = []string{"multi", "exec", "watch", "unwatch", "xinfo|stream", "xgroup|create", "xgroup|destroy", "xadd", "xrange", "hgetall", "hset", "hincrby"}
	rightsOfIDMP  = []string{"xcfgset"}
	rightsOfLatch = []string{"eval", "evalsha", "get", "set", "exists", "xlen", "hmget", "xdel"}
)

// Each right that publishing needs is named by Check where it alone is missing, on every
// server; and Check writes nothing, on a topic that is there and on one that is not.
func TestEachMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			client := s.Client()
			topic, missing := testserver.Topic(t), testserver.Topic(t)
			rights := slices.Concat(rightsOfAll, rightsOfLatch)
			if kind.HasIDMP() {
				rights = slices.Concat(rightsOfAll, rightsOfIDMP)
			}
			mustPublish(t, newPublisher(t, client), topic, payments(0, 10)...)
			if err := client.XGroupCreate(t.Context(), topic, "group", "0").Err(); err != nil {
				t.Fatal(err)
			}
			before := dump(t, client)
			keys := []string{"~" + topic, "~{" + topic + "}:idem:*", "~" + missing, "~{" + missing + "}:idem:*"}
			preflight.EachMissingRight(s, append(slices.Clone(rights), "wait"), keys, func(client *redis.Client, lacks []string) {
				if lacks == nil { // it has no replica, and would fail for that
					return
				}
				poor := newPublisher(t, client, minReplicas(1))
				for _, topic := range []string{topic, missing} {
					report, err := poor.Check(t.Context(), topic)
					if err == nil || publisher.IsPermanent(err) || !slices.Equal(report.Topics[0].Missing, lacks) {
						t.Errorf("without %s: missing %q, %v", lacks, report.Topics[0].Missing, err)
					}
				}
			})
			everything := slices.Clone(keys)
			for _, right := range rights {
				everything = append(everything, "+"+right)
			}
			enough := newPublisher(t, s.User("documented", everything...))
			if report, err := enough.Check(t.Context(), topic, missing); err != nil {
				t.Errorf("with all that is documented: %+v, %v", report.Topics, err)
			}
			if after := dump(t, client); after != before {
				t.Errorf("Check has changed something:\n%s\n%s", before, after)
			}
			for _, topic := range []string{topic, missing} {
				for i, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate} {
					_ = i
					wantVerdict(t, mustPublish(t, enough, topic, payment(50))[0], want)
				}
			}
		})
	}
}

// A user who is limited to a prefix of keys, and one who has forgotten the side keys, learn from
// Check and from the first publish which patterns are missing.
func TestMissingKeyPatternIsNamed(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			const topic = "orders"
			side := "~{orders}:idem:*"
			for name, c := range map[string]struct {
				keys []string
				want []string
			}{
				"no-side-keys": {[]string{"~orders"}, []string{side}},
				"no-stream":    {[]string{side}, []string{"~orders"}},
				"a-prefix":     {[]string{"~shop:*"}, []string{"~orders", side}},
				"read-only":    {[]string{"%R~orders", side}, []string{"~orders"}},
			} {
				client := s.User(name, append([]string{"on", ">secret", "allcommands"}, c.keys...)...)
				p := newPublisher(t, client, func(c *publisher.Config) { c.RetryFor = 2 * time.Second })
				report, err := p.Check(t.Context(), topic)
				got := slices.Sorted(slices.Values(report.Topics[0].Missing))
				if want := slices.Sorted(slices.Values(c.want)); !slices.Equal(got, want) || err == nil || publisher.IsPermanent(err) {
					t.Errorf("%s: missing %q, want %q; %v", name, got, want, err)
				}
				err = p.Publish(topic, payment(1))
				for _, want := range []string{"~orders", side, "NOPERM"} {
					if !strings.Contains(fmt.Sprint(err), want) {
						t.Errorf("%s: publish does not name %s: %v", name, want, err)
					}
				}
				wantEntries(t, s.Client(), topic, 0)
			}
		})
	}
}
