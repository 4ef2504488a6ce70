package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v2"
)

// step is the time between two scrapes of a recording.
const step = 30 * time.Second

// values are what a scrape has: series by their labels, with "# TYPE" of counters among them.
type values map[string]value

type value struct {
	of        labels.Labels
	v         float64
	isCounter bool // it only grows: also the parts of a histogram
}

// gather scrapes a registry as Prometheus does, which adds job and instance.
func gather(t testing.TB, registry prometheus.Gatherer) values {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(values)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			b := labels.NewBuilder(labels.FromStrings("job", "billing", "instance", "one"))
			for _, l := range m.GetLabel() {
				b.Set(l.GetName(), l.GetValue())
			}
			put := func(suffix, le string, v float64, isCounter bool) {
				b.Set("__name__", f.GetName()+suffix)
				b.Set("le", le) // an empty one is none
				all[b.Labels().String()] = value{b.Labels(), v, isCounter}
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				for _, bucket := range h.GetBucket() {
					put("_bucket", fmt.Sprint(bucket.GetUpperBound()), float64(bucket.GetCumulativeCount()), true)
				}
				put("_bucket", "+Inf", float64(h.GetSampleCount()), true)
				put("_count", "", float64(h.GetSampleCount()), true)
				put("_sum", "", h.GetSampleSum(), true)
			case m.Counter != nil:
				put("", "", m.GetCounter().GetValue(), true)
			default:
				put("", "", m.GetGauge().GetValue(), false)
			}
		}
	}
	return all
}

// change is what lies between two scrapes: how much counters grew, and what gauges are. A process
// that has begun since has its series from 0 on.
type change struct{ before, after values }

// recording is what Prometheus has stored: each step, counters have grown by a change, and gauges
// are as it left them.
type recording struct {
	at     time.Time // of the last sample
	series map[string]*recorded
}

type recorded struct {
	of      labels.Labels
	last    float64
	samples []chunks.Sample
}

func newRecording() *recording {
	return &recording{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), series: make(map[string]*recorded)}
}

// sample is one of a series.
type sample struct {
	at int64
	v  float64
}

func (s sample) T() int64                    { return s.at }
func (s sample) ST() int64                   { return 0 }
func (s sample) F() float64                  { return s.v }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// add makes steps for a time, in each of which the change happens once.
func (r *recording) add(c change, long time.Duration) {
	for range int(long / step) {
		r.at = r.at.Add(step)
		for name, v := range c.after {
			s := r.series[name]
			if s == nil {
				s = &recorded{of: v.of}
				r.series[name] = s
			}
			if v.isCounter {
				s.last += max(0, v.v-c.before[name].v)
			} else {
				s.last = v.v
			}
			s.samples = append(s.samples, sample{r.at.UnixMilli(), s.last})
		}
	}
}

// Querier implements storage.Queryable.
func (r *recording) Querier(_, _ int64) (storage.Querier, error) { return &querier{recording: r}, nil }

type querier struct {
	*recording
	storage.MockQuerier
}

func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, name := range slices.Sorted(maps.Keys(q.series)) {
		s := q.series[name]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.of.Get(m.Name)) }) {
			found = append(found, storage.NewListSeries(s.of, s.samples))
		}
	}
	return &seriesSet{list: found}
}

type seriesSet struct {
	list []storage.Series
	at   storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.list) == 0 {
		return false
	}
	s.at, s.list = s.list[0], s.list[1:]
	return true
}
func (s *seriesSet) At() storage.Series              { return s.at }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

func newEngine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
}

// ask evaluates a query at the end of a recording, or at each minute of the last part of it.
func ask(engine *promql.Engine, r *recording, query string, at time.Time) (promql.Vector, error) {
	q, err := engine.NewInstantQuery(context.Background(), r, nil, query, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	if warnings := result.Warnings.AsErrors(); len(warnings) > 0 {
		return nil, errors.Join(warnings...)
	}
	return result.Vector()
}

// rule is an alert.
type rule struct {
	Alert string
	Expr  string
	For   time.Duration
}

func alertRules(t testing.TB) (list []rule) {
	t.Helper()
	text, err := os.ReadFile("../../metrics/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	return list
}

// firing are the alerts that fire at some time of the last part of a recording: those whose
// expression has held for as long as they say.
func firing(t testing.TB, engine *promql.Engine, r *recording, rules []rule, last time.Duration) (names []string) {
	t.Helper()
	for _, a := range rules {
		var since time.Time
		for at := r.at.Add(-last); !at.After(r.at); at = at.Add(2 * step) {
			found, err := ask(engine, r, a.Expr, at)
			if err != nil {
				t.Fatalf("%s: %v", a.Alert, err)
			}
			if len(found) == 0 {
				since = time.Time{}
				continue
			}
			if since.IsZero() {
				since = at
			}
			if at.Sub(since) >= a.For {
				names = append(names, a.Alert)
				break
			}
		}
	}
	return names
}

// queriesOf are the queries of the dashboard, by panel, with Grafana's variables filled in.
func queriesOf(t testing.TB) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../metrics/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$job", "billing", "$topic", ".*", "$__rate_interval", "2m", "$__range", "1h")
	list := make(map[string]string)
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			list[fmt.Sprint(p.Title, "/", i)] = fill.Replace(target.Expr)
		}
	}
	return list
}

// isNumber tells that a query has given something to draw.
func isNumber(v promql.Vector) bool {
	return slices.ContainsFunc(v, func(s promql.Sample) bool { return !math.IsNaN(s.F) })
}
