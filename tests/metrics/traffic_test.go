package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Three events are published, one of them three times, and two messages are refused; two events
// are handled, one of them comes again and is skipped, and one fails until it is a dead letter.
// The figures say so, to the message.
func TestFiguresAgreeWithWhatWasDone(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, in, out := s.Client(), testserver.Topic(t), testserver.Topic(t)
		service := newService(t, client)
		addStreams(t, service.registry, metrics.StreamsConfig{Client: client, Topics: []string{in, out}})
		route(t, func(r *message.Router) {
			r.AddHandler("charge", in, service.Subscriber(), out, service.Publisher(), service.Once().Handler(func(msg *message.Message) ([]*message.Message, error) {
				if strings.Contains(string(msg.Payload), "bad") {
					return nil, errors.New("no such card")
				}
				return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(`{"receipt":1}`))}, nil
			}))
		})
		pub := service.Publisher()
		publish := func(payload string) error {
			return pub.Publish(in, message.NewMessage(watermill.NewUUID(), []byte(payload)))
		}
		for _, id := range []string{"good-1", "good-2", "bad", "good-1", "good-1"} {
			if err := publish(fmt.Sprintf(`{"id":%q}`, id)); err != nil {
				t.Fatal(err)
			}
		}
		if err := publish(`{"id":"good-1","amount":2}`); !errors.Is(err, publisher.ErrConflict) {
			t.Errorf("another content: %v", err)
		}
		if err := publish(`{}`); !errors.Is(err, eventkey.ErrNoKey) {
			t.Errorf("no key: %v", err)
		}
		// The event comes once more: an entry as a producer without idempotency appends it.
		handled := fmt.Sprintf(`messages_total{handler="charge",outcome="handled",topic=%q}`, in)
		wantSoon(t, service.registry, scraped{handled: 2})
		first, err := client.XRangeN(t.Context(), in, "-", "+", 1).Result()
		if err != nil || len(first) != 1 {
			t.Fatal(first, err)
		}
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: in, Values: first[0].Values}).Err(); err != nil {
			t.Fatal(err)
		}
		mode, entries := "latch", 0.
		if s.Kind().HasIDMP() {
			mode, entries = "idmp", 103_595
		}
		at := func(series string) string { // TOPIC is the topic that is read
			return strings.NewReplacer("TOPIC", fmt.Sprintf("topic=%q", in), "OUT", fmt.Sprintf("topic=%q", out), "MODE", mode).Replace(series)
		}
		want := scraped{
			at(`publishes_total{mode="MODE",TOPIC,verdict="added"}`):     3,
			at(`publishes_total{mode="MODE",TOPIC,verdict="duplicate"}`): 2,
			at(`publishes_total{mode="MODE",TOPIC,verdict="conflict"}`):  1,
			at(`publishes_total{mode="none",TOPIC,verdict="unknown"}`):   1,
			at(`publishes_total{mode="MODE",OUT,verdict="added"}`):       2,
			`publishes_total{mode="none",…}`:                             0,
			at(`publish_errors_total{reason="conflict",TOPIC}`):          1,
			at(`publish_errors_total{reason="no_key",TOPIC}`):            1,
			`publish_errors_total{…}`:                                    0,
			at(`publish_duration_seconds_count{TOPIC}`):                  7,
			at(`duplicate_age_seconds_count{TOPIC}`):                     2,
			at(`window_seconds{TOPIC}`):                                  3600,
			at(`window_entries{TOPIC}`):                                  entries,
			at(`window_differs{TOPIC}`):                                  0,
			at(`layout_differs{TOPIC}`):                                  0,
			`window_evicted_total{…}`:                                    0,
			`publish_resends_total{…}`:                                   0,

			at(`messages_total{handler="charge",outcome="handled",TOPIC}`): 2,
			at(`messages_total{handler="charge",outcome="skipped",TOPIC}`): 1,
			at(`messages_total{handler="charge",outcome="failed",TOPIC}`):  3,
			`messages_total{…}`: 0,
			at(`handler_duration_seconds_count{handler="charge",TOPIC}`):      5,
			at(`skip_age_seconds_count{handler="charge",TOPIC}`):              1,
			at(`deliveries_total{group="billing",settlement="acked",TOPIC}`):  3,
			at(`deliveries_total{group="billing",settlement="nacked",TOPIC}`): 3,
			`deliveries_total{…}`: 0,
			at(`redeliveries_total{cause="failed",group="billing",TOPIC}`):          2,
			`redeliveries_total{…}`:                                                 0,
			at(`dead_letters_total{group="billing",reason="max_deliveries",TOPIC}`): 1,
			`dead_letters_total{…}`:                                                 0,
			`lost_entries_total{…}`:                                                 0,
			`ownership_lost_total{…}`:                                               0,
			`taken_over_entries_total{…}`:                                           0,
			`subscriber_outages_total{…}`:                                           0,
			`store_steps_total{outcome="claimed",step="claim",store="store"}`:       5,
			`store_steps_total{outcome="done",step="claim",store="store"}`:          1,
			`store_steps_total{outcome="ok",step="commit",store="store"}`:           2,
			`store_steps_total{outcome="ok",step="rollback",store="store"}`:         3,
			`store_steps_total{outcome="unavailable",…}`:                            0,
			`store_step_duration_seconds_count{step="claim",store="store"}`:         6,
			at(`stream_up{TOPIC}`):                                                  1,
			at(`stream_length{TOPIC}`):                                              4,
			at(`stream_length{OUT}`):                                                2,
			at(`stream_entries_added_total{TOPIC}`):                                 4,
			at(`stream_dead_letters{TOPIC}`):                                        1,
			at(`stream_groups{TOPIC}`):                                              1,
			at(`stream_group_lag{group="billing",TOPIC}`):                           0,
			at(`stream_group_pending{group="billing",TOPIC}`):                       0,
			at(`stream_group_oldest_pending_seconds{group="billing",TOPIC}`):        0,
			at(`stream_group_consumers{group="billing",TOPIC}`):                     1,
		}
		if s.Kind().HasIDMP() {
			want[at(`stream_window_seconds{TOPIC}`)] = 3600
			want[at(`stream_window_max_ids{TOPIC}`)] = 10_000
			want[at(`stream_ids{TOPIC}`)] = 3
			want[at(`stream_ids_added_total{TOPIC}`)] = 3
			want[at(`stream_duplicates_total{TOPIC}`)] = 3 // the conflict is one by its key
		}
		all := wantSoon(t, service.registry, want)
		for series := range all {
			if strings.Contains(series, "pay:") || strings.Contains(series, "good-1") || strings.Contains(series, first[0].ID) {
				t.Errorf("a label names an event: %s", series)
			}
			if !s.Kind().HasIDMP() && (strings.HasPrefix(series, "stream_ids") || strings.HasPrefix(series, "stream_window")) {
				t.Errorf("the server has no IDMP: %s", series)
			}
		}
	})
}

// While the server is away the gauge says so; once it answers again, the outage is counted with
// the time that it took.
func TestOutageIsSeen(t *testing.T) {
	link, in := faultlink.New(t, testserver.Shared(t, testserver.Valkey91).Addr()), testserver.Topic(t)
	service := newService(t, link.Client())
	route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", in, service.Subscriber(), service.Once().Consumer(func(*message.Message) error { return nil }))
	})
	labels := fmt.Sprintf(`{group="billing",topic=%q}`, in)
	link.Refuse()
	link.Cut()
	wantSoon(t, service.registry, scraped{"subscriber_down" + labels: 1, "subscriber_outages_total" + labels: 1, "subscriber_outage_seconds_total" + labels: 0})
	link.Accept()
	all := wantSoon(t, service.registry, scraped{"subscriber_down" + labels: 0, "subscriber_outages_total" + labels: 1})
	if all["subscriber_outage_seconds_total"+labels] <= 0 {
		t.Errorf("the outage took no time: %v", all["subscriber_outage_seconds_total"+labels])
	}
}
