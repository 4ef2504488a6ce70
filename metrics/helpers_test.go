package metrics_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newMetrics(t testing.TB, cfg metrics.Config) *metrics.Metrics {
	t.Helper()
	m, err := metrics.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// scraped are series by name and labels: `publishes_total{mode="idmp",topic="orders",…}`,
// without the prefix. A histogram gives its _count and _sum, and one for each bucket.
type scraped map[string]float64

func scrape(t testing.TB, c prometheus.Collector) scraped {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(scraped)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all.add(strings.TrimPrefix(f.GetName(), "idempotent_"), m)
		}
	}
	return all
}

func (s scraped) add(name string, m *dto.Metric) {
	var labels []string
	for _, l := range m.GetLabel() {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	series := func(suffix string, more ...string) string {
		return name + suffix + "{" + strings.Join(append(slices.Clone(labels), more...), ",") + "}"
	}
	switch {
	case m.Histogram != nil:
		for _, b := range m.Histogram.GetBucket() {
			s[series("_bucket", fmt.Sprintf("le=%q", fmt.Sprint(b.GetUpperBound())))] = float64(b.GetCumulativeCount())
		}
		s[series("_bucket", `le="+Inf"`)] = float64(m.Histogram.GetSampleCount())
		s[series("_count")] = float64(m.Histogram.GetSampleCount())
		s[series("_sum")] = m.Histogram.GetSampleSum()
	case m.Counter != nil:
		s[series("")] = m.Counter.GetValue()
	default:
		s[series("")] = m.Gauge.GetValue()
	}
}

// want compares series by their names and labels; those that are not named are not looked at.
func (s scraped) want(t testing.TB, want scraped) {
	t.Helper()
	for series, value := range want {
		got, ok := s[series]
		if !ok {
			t.Errorf("no series %s", series)
		} else if got != value {
			t.Errorf("%s is %v, want %v", series, got, value)
		}
	}
}

var modes = []publisher.Mode{publisher.ModeAuto, publisher.ModeIDMP, publisher.ModeIDMPAuto, publisher.ModeLatch}

// everything calls every hook with every kind of event, with texts that must be in no label.
func everything(m *metrics.Metrics, topic, group, handler string) {
	pub, sub, once := m.PublisherHooks(), m.SubscriberHooks(), m.OnceHooks()
	secret := errors.New("secret-error")
	for _, mode := range modes {
		for v := publisher.VerdictUnknown; v <= publisher.VerdictOriginalGone; v++ {
			r := publisher.Receipt{
				Topic: topic, MessageUUID: "secret-uuid", Key: "secret-key", IdempotentID: "secret-key/1", ProducerID: "secret-producer",
				EntryID: "1700000000000-7", Verdict: v, Mode: mode, Age: time.Minute, Duration: time.Millisecond, Attempts: 1,
			}
			pub.OnPublish(r)
			pub.OnChildDiffers(r)
			r.Resent, r.Err = true, fmt.Errorf("%w: %w", publisher.ErrConflict, secret)
			pub.OnPublish(r)
			r.Err = secret
			pub.OnPublish(r)
		}
	}
	window := publisher.Window{Duration: time.Hour, Entries: 100_000}
	for kind := publisher.WindowEffective; kind <= publisher.WindowOverflow; kind++ {
		pub.OnWindow(publisher.WindowEvent{Topic: topic, Kind: kind, Wanted: window, Effective: window, Evicted: 1})
	}
	pub.OnLayout(publisher.LayoutEvent{Topic: topic})
	pub.OnRetry(publisher.RetryEvent{Topic: topic, Messages: 3, Attempt: 1, Err: secret})

	for s := subscriber.SettlementAcked; s <= subscriber.SettlementInterrupted; s++ {
		sub.OnSettle(subscriber.SettleEvent{Topic: topic, Group: group, EntryID: "secret-entry", Settlement: s, Count: 1, Duration: time.Second})
	}
	for _, is := range []bool{false, true} {
		sub.OnRedeliver(subscriber.RedeliverEvent{Topic: topic, Group: group, EntryID: "secret-entry", Delayed: is, Err: secret})
		sub.OnOwnershipLost(subscriber.OwnershipEvent{Topic: topic, Group: group, EntryID: "secret-entry", Refused: is})
	}
	for _, reason := range []string{subscriber.ReasonMaxDeliveries, subscriber.ReasonUndecodable, subscriber.ReasonRejected, "conflict", "outputs too large", "secret-reason"} {
		sub.OnDeadLetter(subscriber.DeadLetterEvent{Topic: topic, Group: group, EntryID: "secret-entry", DeadLetterID: "secret-entry", Reason: reason, Err: secret})
	}
	for r := subscriber.LostPending; r <= subscriber.LostStream; r++ {
		sub.OnLost(subscriber.LostEvent{Topic: topic, Group: group, Reason: r, Entries: 5, EntryIDs: []string{"secret-entry"}})
	}
	sub.OnTakeover(subscriber.TakeoverEvent{Topic: topic, Group: group, HandedBack: 2, Dead: 3})
	sub.OnOutage(subscriber.OutageEvent{Topic: topic, Group: group, Err: secret})
	sub.OnOutage(subscriber.OutageEvent{Topic: topic, Group: group, Err: secret, Duration: 30 * time.Second})
	sub.OnOutage(subscriber.OutageEvent{Topic: topic, Group: group, Duration: 40 * time.Second})

	ev := middleware.Event{
		Namespace: "secret-namespace", Group: "secret-group", Topic: topic, Handler: handler, Key: "secret-key", MessageUUID: "secret-uuid",
		Duration: time.Second, CommittedAt: time.Now().Add(-time.Hour), HandledBy: "secret-group", Err: secret,
	}
	for _, call := range []func(middleware.Event){
		once.OnHandled, once.OnSkipped, once.OnForeignSkip, once.OnFailed, once.OnRefused, once.OnDelayed, once.OnConflict, once.OnTakeover,
		once.OnLeaseLost, once.OnPassed,
	} {
		call(ev)
	}
	for _, cause := range []error{middleware.ErrInProgress, middleware.ErrStoreUnavailable, middleware.ErrNoNamespace, middleware.ErrSharedFanOut, middleware.ErrClosed} {
		ev.Err = fmt.Errorf("%w: %w", dedupe.ErrRetryLater, cause)
		once.OnDelayed(ev)
	}
}
