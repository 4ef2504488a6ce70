package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// Each hook's event is counted once, where it belongs.
func TestEveryHookIsCounted(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	everything(m, "orders", "billing", "charge")
	scrape(t, m).want(t, scraped{
		`publishes_total{mode="idmp",topic="orders",verdict="added"}`:          2,
		`publishes_total{mode="idmp",topic="orders",verdict="duplicate"}`:      2,
		`publishes_total{mode="latch",topic="orders",verdict="original_gone"}`: 2,
		`publishes_total{mode="idmpauto",topic="orders",verdict="unknown"}`:    2,
		`publishes_total{mode="none",topic="orders",verdict="conflict"}`:       4,
		`publish_errors_total{reason="conflict",topic="orders"}`:               16,
		`publish_errors_total{reason="other",topic="orders"}`:                  16,
		`publish_errors_total{reason="no_key",topic="orders"}`:                 0,
		`publish_duration_seconds_count{topic="orders"}`:                       48,
		`publish_resends_total{topic="orders"}`:                                32,
		`publish_retries_total{topic="orders"}`:                                1,
		`duplicate_age_seconds_count{topic="orders"}`:                          8,
		`duplicate_age_seconds_sum{topic="orders"}`:                            8 * 60,
		`child_differs_total{topic="orders"}`:                                  16,
		`window_seconds{topic="orders"}`:                                       3600,
		`window_entries{topic="orders"}`:                                       100_000,
		`window_differs{topic="orders"}`:                                       1,
		`window_evicted_total{topic="orders"}`:                                 1,
		`layout_differs{topic="orders"}`:                                       1,

		`deliveries_total{group="billing",settlement="acked",topic="orders"}`:           1,
		`deliveries_total{group="billing",settlement="interrupted",topic="orders"}`:     1,
		`delivery_duration_seconds_sum{group="billing",topic="orders"}`:                 5,
		`redeliveries_total{cause="failed",group="billing",topic="orders"}`:             1,
		`redeliveries_total{cause="delayed",group="billing",topic="orders"}`:            1,
		`dead_letters_total{group="billing",reason="max_deliveries",topic="orders"}`:    1,
		`dead_letters_total{group="billing",reason="conflict",topic="orders"}`:          1,
		`dead_letters_total{group="billing",reason="other",topic="orders"}`:             1,
		`lost_entries_total{group="billing",reason="unread",topic="orders"}`:            5,
		`ownership_lost_total{cause="ack_refused",group="billing",topic="orders"}`:      1,
		`ownership_lost_total{cause="taken_or_expired",group="billing",topic="orders"}`: 1,
		`taken_over_entries_total{from="handed_back",group="billing",topic="orders"}`:   2,
		`taken_over_entries_total{from="dead",group="billing",topic="orders"}`:          3,
		`subscriber_down{group="billing",topic="orders"}`:                               0,
		`subscriber_outages_total{group="billing",topic="orders"}`:                      1,
		`subscriber_outage_seconds_total{group="billing",topic="orders"}`:               40,
		`messages_total{handler="charge",outcome="handled",topic="orders"}`:             1,
		`messages_total{handler="charge",outcome="skipped",topic="orders"}`:             1,
		`messages_total{handler="charge",outcome="foreign_skip",topic="orders"}`:        1,
		`messages_total{handler="charge",outcome="failed",topic="orders"}`:              1,
		`messages_total{handler="charge",outcome="refused",topic="orders"}`:             1,
		`messages_total{handler="charge",outcome="conflict",topic="orders"}`:            1,
		`messages_total{handler="charge",outcome="lease_lost",topic="orders"}`:          1,
		`messages_total{handler="charge",outcome="passed",topic="orders"}`:              1,
		`messages_total{handler="charge",outcome="in_progress",topic="orders"}`:         1,
		`messages_total{handler="charge",outcome="store_unavailable",topic="orders"}`:   1,
		`messages_total{handler="charge",outcome="not_set_up",topic="orders"}`:          3,
		`messages_total{handler="charge",outcome="delayed",topic="orders"}`:             1,
		`claims_taken_over_total{handler="charge",topic="orders"}`:                      1,
		`handler_duration_seconds_count{handler="charge",topic="orders"}`:               14,
		`skip_age_seconds_count{handler="charge",topic="orders"}`:                       2,
		`skip_age_seconds_bucket{handler="charge",topic="orders",le="1800"}`:            0,
		`skip_age_seconds_bucket{handler="charge",topic="orders",le="7200"}`:            2,
	})
}

// While an outage lasts the gauge says so, however often it is reported.
func TestSubscriberDown(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	hooks, ev := m.SubscriberHooks(), subscriber.OutageEvent{Topic: "orders", Group: "billing", Err: errors.New("no route")}
	for range 3 {
		hooks.OnOutage(ev)
	}
	scrape(t, m).want(t, scraped{
		`subscriber_down{group="billing",topic="orders"}`: 1, `subscriber_outages_total{group="billing",topic="orders"}`: 1,
	})
}

// Where a receipt has no age, the ID of the original's entry tells it. Duplicates of our own
// lost replies say nothing about callers.
func TestAgeOfDuplicates(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	publish := m.PublisherHooks().OnPublish
	r := publisher.Receipt{Topic: "orders", Verdict: publisher.VerdictDuplicate, Mode: publisher.ModeIDMP}
	r.EntryID = fmt.Sprintf("%d-0", time.Now().Add(-10*time.Minute).UnixMilli())
	publish(r)
	r.EntryID = "no ID"
	publish(r)
	r.Age = 2 * time.Hour
	publish(r)
	r.Resent = true
	publish(r)
	scrape(t, m).want(t, scraped{
		`duplicate_age_seconds_bucket{topic="orders",le="0.1"}`: 1, `duplicate_age_seconds_bucket{topic="orders",le="300"}`: 1,
		`duplicate_age_seconds_bucket{topic="orders",le="900"}`: 2, `duplicate_age_seconds_bucket{topic="orders",le="3600"}`: 2,
		`duplicate_age_seconds_count{topic="orders"}`: 3,
	})
}

// However many topics, groups and handlers come, there are no more series than documented,
// and nothing is lost.
func TestSeriesAreBounded(t *testing.T) {
	const topics, limit, stores = 10_000, 7, 3
	m := newMetrics(t, metrics.Config{MaxTopics: limit})
	for i := range topics {
		name := fmt.Sprint(i)
		everything(m, "topic-"+name, "group-"+name, "handler-"+name)
	}
	for i := range stores {
		m.Store(fmt.Sprint("store-", i), memory(t))
	}
	all := scrape(t, m)
	if bound := (limit+1)*metrics.SeriesPerTopic + stores*metrics.SeriesPerStore; len(all) > bound {
		t.Errorf("%d series, more than the %d that are documented", len(all), bound)
	}
	all.want(t, scraped{
		`child_differs_total{topic="topic-6"}`:                                         16,
		`child_differs_total{topic="other"}`:                                           16 * (topics - limit),
		`messages_total{handler="other",outcome="handled",topic="other"}`:              topics - limit,
		`lost_entries_total{group="other",reason="unread",topic="other"}`:              5 * (topics - limit),
		`messages_total{handler="handler-0",outcome="handled",topic="topic-0"}`:        1,
		`publishes_total{mode="idmp",topic="other",verdict="added"}`:                   2 * (topics - limit),
		`deliveries_total{group="group-3",settlement="acked",topic="topic-3"}`:         1,
		`store_step_duration_seconds_bucket{step="claim",store="store-2",le="0.0005"}`: 0,
	})
	for series := range all {
		if strings.HasPrefix(series, "window_seconds") && strings.Contains(series, `"other"`) {
			t.Errorf("%s: a window of several topics", series)
		}
	}
}

// The documented number of series is that of a topic to which everything has happened.
func TestSeriesPerTopic(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	everything(m, "orders", "billing", "charge")
	if n := len(scrape(t, m)); n != metrics.SeriesPerTopic {
		t.Errorf("%d series, SeriesPerTopic is %d", n, metrics.SeriesPerTopic)
	}
	m = newMetrics(t, metrics.Config{})
	m.Store("records", memory(t))
	if n := len(scrape(t, m)); n != metrics.SeriesPerStore {
		t.Errorf("%d series, SeriesPerStore is %d", n, metrics.SeriesPerStore)
	}
}

// Many stores are bounded as topics are.
func TestStoresAreBounded(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxTopics: 2})
	for i := range 100 {
		m.Store(fmt.Sprint(i), memory(t))
	}
	if n := len(scrape(t, m)); n != 3*metrics.SeriesPerStore {
		t.Errorf("%d series", n)
	}
}

// What names an event, an entry or an error is in no label.
func TestNothingUnboundedIsALabel(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	everything(m, "orders", "billing", "charge")
	for series := range scrape(t, m) {
		if strings.Contains(series, "secret") || strings.Contains(series, "1700000000000") {
			t.Errorf("%s", series)
		}
	}
}

// A topic need not be UTF-8, a label must be.
func TestTopicThatIsNotUTF8(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	everything(m, "orders-\xff", "billing-\xff", "charge-\xff")
	everything(m, "orders-\xfe", "billing-\xfe", "charge-\xfe")
	scrape(t, m).want(t, scraped{"publish_retries_total{topic=\"orders-\uFFFD\"}": 2})
}

// A hook must cost next to nothing: it runs for every message.
func TestHooksDoNotAllocate(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxTopics: 2})
	for i := range 4 {
		everything(m, fmt.Sprint("orders-", i), "billing", "charge")
	}
	pub, sub, once := m.PublisherHooks(), m.SubscriberHooks(), m.OnceHooks()
	conflict := fmt.Errorf("publish: %w", &publisher.ConflictError{})
	for _, topic := range []string{"orders-0", "orders-3", "never seen"} { // its own series, and shared ones
		for name, call := range map[string]func(){
			"added": func() {
				pub.OnPublish(publisher.Receipt{Topic: topic, Verdict: publisher.VerdictAdded, Mode: publisher.ModeIDMP, Duration: time.Millisecond})
			},
			"duplicate": func() {
				pub.OnPublish(publisher.Receipt{Topic: topic, Verdict: publisher.VerdictDuplicate, Mode: publisher.ModeLatch, EntryID: "1700000000000-0"})
			},
			"conflict": func() {
				pub.OnPublish(publisher.Receipt{Topic: topic, Verdict: publisher.VerdictDuplicate, Mode: publisher.ModeIDMP, Err: conflict})
			},
			"settled": func() { sub.OnSettle(subscriber.SettleEvent{Topic: topic, Group: "billing", Duration: time.Second}) },
			"handled": func() { once.OnHandled(middleware.Event{Topic: topic, Handler: "charge", Duration: time.Second}) },
			"progress": func() {
				once.OnDelayed(middleware.Event{Topic: topic, Handler: "charge", Err: middleware.ErrInProgress})
			},
		} {
			if n := testing.AllocsPerRun(100, call); n != 0 {
				t.Errorf("%s, %s: %v allocations", topic, name, n)
			}
		}
	}
}

// Names and help texts are as Prometheus' own checks want them.
func TestNamesAreWellFormed(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	everything(m, "orders", "billing", "charge")
	m.Store("records", memory(t))
	problems, err := testutil.CollectAndLint(m)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestInvalidConfig(t *testing.T) {
	_, err := metrics.New(metrics.Config{MaxTopics: -1, AgeBuckets: []float64{1, 1}, DurationBuckets: []float64{}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, words := range []string{"MaxTopics -1 is negative", "AgeBuckets[1] 1 is not above the one before it", "DurationBuckets is empty"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("no %q in: %v", words, err)
		}
	}
}

// Instrument adds to what is there, and changes nothing that belongs to the caller.
func TestInstrument(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	mine := make([]publisher.Hooks, 1, 8)
	store, calls := memory(t), 0
	cfg := idempotent.Config{Store: store, WrapStore: func(s dedupe.Store) dedupe.Store {
		calls++
		return s
	}}
	cfg.Publisher.Hooks = mine
	got := m.Instrument(cfg)
	if len(got.Publisher.Hooks) != 2 || len(got.Subscriber.Hooks) != 1 || len(got.Once.Hooks) != 1 || mine[:2][1].OnPublish != nil {
		t.Errorf("hooks %d, %d, %d", len(got.Publisher.Hooks), len(got.Subscriber.Hooks), len(got.Once.Hooks))
	}
	wrapped := got.WrapStore(store)
	if wrapped == dedupe.Store(store) || dedupe.Unwrap(wrapped) != dedupe.Store(store) || calls != 1 {
		t.Errorf("store %T, the caller's own wrapper was called %d times", wrapped, calls)
	}
}

// Hooks are called from many goroutines at once, and a topic is first seen by several of them:
// nothing is counted twice or lost, and the bound holds.
func TestHooksAtOnce(t *testing.T) {
	const goroutines, rounds, topics, limit = 8, 200, 20, 5
	m := newMetrics(t, metrics.Config{MaxTopics: limit})
	pub, once := m.PublisherHooks(), m.OnceHooks()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for i := range rounds {
				topic := fmt.Sprint("topic-", i%topics)
				pub.OnPublish(publisher.Receipt{Topic: topic, Verdict: publisher.VerdictAdded, Mode: publisher.ModeIDMP})
				once.OnHandled(middleware.Event{Topic: topic, Handler: "charge"})
			}
		})
	}
	all.Wait()
	sums, seen := make(map[string]float64), make(map[string]int)
	for series, value := range scrape(t, m) {
		if name, labels, _ := strings.Cut(series, "{"); strings.Contains(labels, `"added"`) || strings.Contains(labels, `"handled"`) {
			sums[name] += value
			seen[name]++
		}
	}
	for _, name := range []string{"publishes_total", "messages_total"} {
		if sums[name] != goroutines*rounds || seen[name] != limit+1 {
			t.Errorf("%s: %v in %d series", name, sums[name], seen[name])
		}
	}
}
