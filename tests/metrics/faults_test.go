package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// fault is something that goes wrong.
type fault struct {
	// alerts are those that fire, and no others.
	alerts  []string
	metrics metrics.Config
	config  func(*plant) // before the service starts
	cause   func(*plant)
	// once: it happens once, and all is well after that; else it happens again and again.
	once bool
}

var faults = map[string]fault{
	"nothing": {cause: (*plant).healthy},
	"more events than the window holds": {
		alerts: []string{"IdempotentWindowOverflow", "IdempotentWindowNearlyFull"},
		config: func(p *plant) { p.cfg.Publisher.Window.Entries = 10_000 },
		cause: func(p *plant) {
			for range 11 {
				msgs := make([]*message.Message, 1000)
				for i := range msgs {
					msgs[i] = message.NewMessage(watermill.NewUUID(), []byte(p.event()))
				}
				if err := p.Publisher().Publish(p.idle, msgs...); err != nil {
					p.t.Fatal(err)
				}
			}
			p.reach(1, "window_evicted_total")
		},
	},
	"retries near the end of the window": {
		alerts:  []string{"IdempotentRetriesNearWindow"},
		metrics: metrics.Config{AgeBuckets: []float64{0.5, 1, 2, 2.6, 2.8, 3, 4}},
		config:  func(p *plant) { p.cfg.Publisher.Window.Duration = 3 * time.Second },
		cause: func(p *plant) {
			payload, begun := p.event(), time.Now()
			p.mustPublish(payload)
			testserver.Eventually(p.t, within, func() error {
				if age := time.Since(begun); age < 2500*time.Millisecond {
					return fmt.Errorf("%v", age)
				}
				return nil
			})
			p.mustPublish(payload)
		},
	},
	"a topic with another window": {
		alerts: []string{"IdempotentWindowDiffers"},
		config: func(p *plant) { p.made(publisher.Config{Window: publisher.Window{Duration: time.Minute}}) },
		cause:  (*plant).healthy,
	},
	"a topic with another mode": {
		alerts: []string{"IdempotentLayoutDiffers"},
		config: func(p *plant) {
			p.made(publisher.Config{Mode: publisher.ModeLatch})
			p.cfg.Publisher.Mode = publisher.ModeIDMP
		},
		cause: (*plant).healthy,
	},
	"two events under one key": {
		alerts: []string{"IdempotentPublishConflict"}, once: true,
		cause: func(p *plant) {
			p.mustPublish(`{"id":"c"}`)
			if err := p.publish(`{"id":"c","amount":2}`); !errors.Is(err, publisher.ErrConflict) {
				p.t.Errorf("conflict: %v", err)
			}
		},
	},
	"a retry after its entry was deleted": {
		alerts: []string{"IdempotentOriginalGone"}, once: true,
		cause: func(p *plant) {
			payload, acked := p.event(), p.value("deliveries_total", "acked")
			p.mustPublish(payload)
			p.reach(acked+1, "deliveries_total", "acked")
			p.client.XDel(p.t.Context(), p.topic, p.last().ID)
			p.mustPublish(payload)
		},
	},
	"a server that can't be reached": {
		alerts: []string{"IdempotentPublishFailing", "IdempotentSubscriberDown", "IdempotentStreamUnknown"},
		cause: func(p *plant) {
			p.link.Refuse()
			p.link.Cut()
			p.t.Cleanup(p.link.Accept)
			if p.publish(p.event()) == nil {
				p.t.Error("published without a server")
			}
			p.reach(1, "subscriber_down")
		},
	},
	"a message without a key": {
		alerts: []string{"IdempotentPublishRefused"}, once: true,
		cause: func(p *plant) {
			if err := p.publish(`{}`); !errors.Is(err, eventkey.ErrNoKey) {
				p.t.Errorf("no key: %v", err)
			}
		},
	},
	"a topic for each request": {
		alerts: []string{"IdempotentTooManyTopics"}, metrics: metrics.Config{MaxTopics: 2}, once: true,
		cause: func(p *plant) {
			for i := range 3 {
				topic := fmt.Sprint(p.idle, i)
				if err := p.Publisher().Publish(topic, message.NewMessage("u", []byte(`{"id":"1"}`))); err != nil {
					p.t.Fatal(err)
				}
			}
		},
	},
	"an entry that is deleted before it is handled": {
		alerts: []string{"IdempotentEntriesLost"}, once: true,
		cause: func(p *plant) {
			p.do(func(msg *message.Message) error {
				d, _ := subscriber.DeliveryOf(msg)
				p.client.XDel(p.t.Context(), p.topic, d.EntryID())
				return errors.New("not now")
			})
			p.mustPublish(p.event())
			p.reach(1, "lost_entries_total")
		},
	},
	"an event that always fails": {
		alerts: []string{"IdempotentDeadLetters"}, once: true,
		cause: func(p *plant) {
			p.do(func(*message.Message) error { return errors.New("no such card") })
			p.mustPublish(p.event())
			p.reach(1, "dead_letters_total")
		},
	},
	"a consumer that died": {
		alerts: []string{"IdempotentTakenFromDead"}, once: true,
		cause: func(p *plant) {
			pipe := p.client.TxPipeline() // ours is not to get the entry first
			pipe.XAdd(p.t.Context(), &redis.XAddArgs{Stream: p.topic, Values: []any{"_watermill_message_uuid", "u", "metadata", "", "payload", p.event()}})
			pipe.XReadGroup(p.t.Context(), &redis.XReadGroupArgs{Group: "billing", Consumer: "died", Streams: []string{p.topic, ">"}, Block: -1})
			if _, err := pipe.Exec(p.t.Context()); err != nil {
				p.t.Fatal(err)
			}
			p.reach(1, "taken_over_entries_total", "dead")
		},
	},
	"an entry that another consumer takes": {
		alerts: []string{"IdempotentOwnershipLost", "IdempotentTakenFromDead"}, once: true,
		cause: func(p *plant) {
			var first sync.Once
			p.do(func(msg *message.Message) error {
				first.Do(func() {
					d, _ := subscriber.DeliveryOf(msg)
					p.steal(d.EntryID())
					<-msg.Context().Done()
				})
				return nil
			})
			p.mustPublish(p.event())
			p.reach(1, "ownership_lost_total")
			p.reach(1, "taken_over_entries_total", "dead") // ours again, when nobody shows a sign of life
		},
	},
	"a handler that fails at first": {
		alerts: []string{"IdempotentHandlerFailing"},
		cause: func(p *plant) {
			var tries atomic.Int64
			p.do(func(*message.Message) error {
				if tries.Add(1) == 1 {
					return errors.New("no connection to the bank")
				}
				return nil
			})
			handled := p.value("messages_total", "handled")
			p.mustPublish(p.event())
			p.reach(handled+1, "messages_total", "handled")
		},
	},
	"another event under a key that was handled": {
		alerts: []string{"IdempotentHandlerConflict", "IdempotentDeadLetters"}, once: true,
		cause: func(p *plant) {
			handled := p.value("messages_total", "handled")
			p.mustPublish(`{"id":"c"}`)
			p.reach(handled+1, "messages_total", "handled")
			values := p.last().Values
			values["payload"] = `{"id":"c","amount":2}`
			p.append(values)
			p.reach(1, "dead_letters_total", "conflict")
		},
	},
	"two services with one namespace": {
		alerts: []string{"IdempotentForeignSkip"},
		cause: func(p *plant) {
			cfg := p.cfg
			cfg.Service, cfg.Publisher.ProducerID, cfg.Once.Namespace, cfg.Subscriber.Group = "", "billing", "billing", "shipping"
			cfg.Subscriber.Consumer = ""
			other, err := idempotent.Open(p.t.Context(), p.metrics.Instrument(cfg))
			if err != nil {
				p.t.Fatal(err)
			}
			p.t.Cleanup(func() { _ = other.Close(context.Background()) })
			route(p.t, func(r *message.Router) {
				r.AddConsumerHandler("charge", p.topic, other.Subscriber(), other.Once().Consumer(func(*message.Message) error { return nil }))
			})
			p.reach(1, "messages_total", "foreign_skip")
		},
	},
	"an entry without a key": {
		alerts: []string{"IdempotentMessagesRefused", "IdempotentDeadLetters"}, once: true,
		cause: func(p *plant) {
			p.append(map[string]any{"_watermill_message_uuid": "u", "metadata": "", "payload": "{}"})
			p.reach(1, "messages_total", "refused")
			p.reach(1, "dead_letters_total")
		},
	},
	"a middleware that was closed before the Router": {
		alerts: []string{"IdempotentNotSetUp"},
		cause: func(p *plant) {
			if err := p.Once().Close(context.Background()); err != nil {
				p.t.Fatal(err)
			}
			p.mustPublish(p.event())
			p.reach(1, "messages_total", "not_set_up")
		},
	},
	"a store that is away": {
		alerts: []string{"IdempotentStoreUnavailable", "IdempotentStoreFailing"},
		config: func(p *plant) { p.cfg.WrapStore = p.wrapStore },
		cause: func(p *plant) {
			p.do(nil)
			storeDown.Store(p.topic, true)
			p.mustPublish(p.event())
			p.reach(1, "messages_total", "store_unavailable")
		},
	},
	"a store that is slow": {
		alerts: []string{"IdempotentStoreSlow"},
		config: func(p *plant) { p.cfg.WrapStore = p.wrapStore },
		cause: func(p *plant) {
			storeSlow.Store(p.topic, true)
			commits := p.value("store_steps_total", `step="commit"`)
			p.mustPublish(p.event())
			p.reach(commits+1, "store_steps_total", `step="commit"`)
		},
	},
	"a claim that is lost": {
		alerts: []string{"IdempotentLeaseLost"}, once: true,
		cause: func(p *plant) {
			var first sync.Once
			p.do(func(*message.Message) error {
				first.Do(func() {
					keys, err := p.client.Keys(p.t.Context(), "idem:done:billing:"+p.topic+":charge:*").Result()
					if err != nil || len(keys) == 0 {
						p.t.Error(keys, err)
					}
					p.client.Del(p.t.Context(), keys...)
				})
				return nil
			})
			p.mustPublish(p.event())
			p.reach(1, "messages_total", "lease_lost")
		},
	},
	"a group that lags": {
		alerts: []string{"IdempotentGroupLags"},
		config: func(p *plant) { p.group(time.Now(), 1) },
		cause: func(p *plant) {
			for range 11 {
				pipe := p.client.Pipeline()
				for range 1000 {
					pipe.XAdd(p.t.Context(), &redis.XAddArgs{Stream: p.idle, Values: []string{"a", "1"}})
				}
				if _, err := pipe.Exec(p.t.Context()); err != nil {
					p.t.Fatal(err)
				}
			}
		},
	},
	"an entry that nobody acknowledges": {
		alerts: []string{"IdempotentPendingOld"},
		config: func(p *plant) { p.group(time.Now().Add(-time.Hour), 1) },
		cause: func(p *plant) {
			err := p.client.XReadGroup(p.t.Context(), &redis.XReadGroupArgs{Group: "slow", Consumer: "one", Streams: []string{p.idle, ">"}}).Err()
			if err != nil {
				p.t.Fatal(err)
			}
		},
	},
}

// Prometheus' engine evaluates every alert and every query of the dashboard over what a service
// at real servers gave: of each fault those alerts fire that are for it, and no other; without a
// fault none does. Each query of the dashboard has something to show. Only the time between the
// scrapes is made up.
func TestAlertsAndDashboard(t *testing.T) {
	testserver.Shared(t, testserver.Redis86) // skips without one
	rules, queries, engine := alertRules(t), queriesOf(t), newEngine()
	var mu sync.Mutex
	shown, ran := make(map[string]bool), 0
	t.Run("faults", func(t *testing.T) {
		for name, f := range faults {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := newPlant(t, f)
				p.healthy()
				first := gather(t, p.registry)
				p.healthy()
				second := gather(t, p.registry)
				f.cause(p)
				third := gather(t, p.registry)
				r, usual := newRecording(), change{first, second}
				r.add(usual, 90*time.Minute)
				if f.config == nil {
					if got := firing(t, engine, r, rules, 30*time.Minute); got != nil {
						t.Errorf("before the fault: %q", got)
					}
				}
				long := 40 * time.Minute
				if f.once {
					r.add(change{second, third}, step)
					usual.after = third // gauges stay
					usual.before = make(values)
					for name, v := range third {
						v.v -= second[name].v - first[name].v
						usual.before[name] = v
					}
					r.add(usual, long-step)
				} else {
					r.add(change{second, third}, long)
				}
				got := firing(t, engine, r, rules, long)
				slices.Sort(got)
				want := slices.Sorted(slices.Values(f.alerts))
				if !slices.Equal(got, want) {
					t.Errorf("alerts %q, want %q", got, want)
				}
				mu.Lock()
				defer mu.Unlock()
				ran++
				for panel, query := range queries {
					found, err := ask(engine, r, query, r.at)
					if err != nil {
						t.Errorf("%s: %s: %v", panel, query, err)
					}
					shown[panel] = shown[panel] || isNumber(found)
				}
			})
		}
	})
	for panel, query := range queries {
		if !shown[panel] && ran == len(faults) { // -run may have left some out
			t.Errorf("%s has never anything to show: %s", panel, query)
		}
	}
	fired := make(map[string]bool)
	for _, f := range faults {
		for _, a := range f.alerts {
			fired[a] = true
		}
	}
	for _, a := range rules {
		if !fired[a.Alert] {
			t.Errorf("no fault is there for %s", a.Alert)
		}
	}
}
