package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/chart"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/internal/redact"
	"github.com/onceward/watermill-idempotent/window"
)

// windowArgs is how a topic is observed.
type windowArgs struct {
	scan     scanArgs
	noScan   bool
	lasts    span
	every    span
	outage   span
	headroom float64
	ages     []string
	svg      string
}

func newWindow(a *app) *cobra.Command {
	w := windowArgs{lasts: span(time.Minute), every: span(time.Second)}
	cmd := &cobra.Command{
		Use:   "window TOPIC",
		Short: "Watch a topic: how large should its window be?",
		Long: `Watches a topic for a while and advises on its window: how long, and for how many events, a
repeated publish is recognised. It shows the rate of new events, how soon the window is full, how
late retries come, how long an outage it covers, the settings to use, and what changing them now
would forget.

How late retries come that the window has missed, it finds in the stream, by reading it. How late
those come that were caught, only the publishers know: let them serve window.Ages, and give the
address, or a file of what it answers, by --ages. Without it the advice rests on the rate alone.

Watch for longer, and at the busiest hour: the advice is as good as what was seen. Ctrl-C ends the
watching early. Nothing is changed.

Exit code 1: the window is too small.`,
		Example: examples("idemctl window payments", "idemctl window payments --for 15m --svg ages.svg", "idemctl window payments --for 15m --ages http://payments:8080/retry-ages",
			"idemctl window payments --for 10s --outage 2h --headroom 3 -o json"),
		Args: args("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) error { return w.run(cmd.Context(), a, given[0]) },
	}
	cmd.Flags().Var(&w.lasts, "for", "how long to watch")
	cmd.Flags().Var(&w.every, "every", "how often to ask the server")
	cmd.Flags().Var(&w.outage, "outage", "how long an outage the window should cover; default: 30m")
	cmd.Flags().Float64Var(&w.headroom, "headroom", 0, "by which `FACTOR` the peak may grow; default: 1.5")
	cmd.Flags().StringArrayVar(&w.ages, "ages", nil, "`URL` or file with ages of retries, of window.Ages; may be repeated, one a process")
	cmd.Flags().StringVar(&w.svg, "svg", "", "also draw the ages of retries into this `FILE`")
	cmd.Flags().BoolVar(&w.noScan, "no-scan", false, "don't read the stream for retries that were missed")
	w.scan.flags(cmd)
	return cmd
}

func (w *windowArgs) run(ctx context.Context, a *app, topic string) (err error) {
	switch {
	case w.lasts <= 0 || w.every <= 0:
		return exit.Errorf(exit.Usage, "--for and --every must be above zero")
	case w.headroom < 0 || w.headroom > 0 && w.headroom < 1:
		return exit.Errorf(exit.Usage, "--headroom %v is below 1", w.headroom)
	}
	watch := inspect.Watch{For: time.Duration(w.lasts), Every: min(time.Duration(w.every), time.Duration(w.lasts))}
	if !w.noScan {
		scan, err := w.scan.scan()
		if err != nil {
			return err
		}
		watch.Scan = &scan
	}
	if watch.Caught, err = w.caught(ctx, a); err != nil {
		return err
	}
	l, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	t, err := l.topic(ctx, topic)
	if err != nil {
		return err
	}
	seen, err := observe(ctx, a, l, topic, watch)
	if err != nil {
		return l.lacks(ctx, topic, err)
	}
	seen.Outage, seen.Headroom = time.Duration(w.outage), w.headroom
	advice := window.Advise(seen)
	ages := agesOf(seen, advice)
	if w.svg != "" {
		if err := os.WriteFile(w.svg, []byte(ages.SVG()), 0o644); err != nil { //nolint:gosec // a picture to be shown to others
			return exit.Errorf(exit.Usage, "--svg: %w", err)
		}
	}
	if err := a.screen.Show(adviceReportOf(seen, advice), func(p *screen.Page) { showAdvice(p, t, seen, advice, ages, a.screen.Width) }); err != nil {
		return err
	}
	if w.svg != "" {
		a.screen.Remark("The picture is in %s.", w.svg)
	}
	if advice.Verdict == window.TooSmall {
		return found()
	}
	return nil
}

// observe watches with a bar.
func observe(ctx context.Context, a *app, l *look, topic string, watch inspect.Watch) (window.Observation, error) {
	bar := a.screen.ProgressOfTime("Watching "+screen.Printable(topic), watch.For.Milliseconds())
	defer bar.End()
	watch.OnSample = func(s inspect.Sample) {
		bar.Set(s.Elapsed.Milliseconds(), s.Of.Milliseconds())
		duplicates := ""
		if s.Duplicates >= 0 {
			duplicates = ", " + screen.Plural(s.Duplicates, "duplicate", "duplicates")
		}
		bar.Describe(fmt.Sprintf("Watching, %s of %s: %s now, %s%s", screen.Duration(s.Elapsed.Truncate(time.Second)), screen.Duration(s.Of),
			screen.Rate(s.Rate), screen.Plural(s.Added, "new event", "new events"), duplicates))
	}
	return l.Observe(ctx, topic, watch)
}

// maxAges bounds what is read of --ages.
const maxAges = 16 << 20

// caught reads and merges the ages that publishers have collected.
func (w *windowArgs) caught(ctx context.Context, a *app) (all window.Distribution, err error) {
	for _, from := range w.ages {
		text, err := readAges(ctx, a, from)
		if err != nil {
			return all, exit.Errorf(exit.Unreachable, "--ages %s: %s", redact.Clean(from), redact.Clean(err.Error())).
				Do("It is the address, or a file, of what a window.Ages answers: http.Handle(\"/retry-ages\", &ages) in the publisher's process.")
		}
		var d window.Distribution
		if err := json.Unmarshal(text, &d); err != nil {
			return all, exit.Errorf(exit.Usage, "--ages %s has no ages of retries: %s", redact.Clean(from), err).Do("It must be what a window.Ages answers, in JSON.")
		}
		all = all.Merge(d)
	}
	return all, nil
}

func readAges(ctx context.Context, a *app, from string) ([]byte, error) {
	if !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://") {
		return os.ReadFile(from)
	}
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxAges))
}

// agesOf is what is drawn.
func agesOf(o window.Observation, ad window.Advice) chart.Ages {
	a := chart.Ages{
		Title:    "Ages of retries, topic " + screen.Printable(o.Topic),
		Subtitle: fmt.Sprintf("watched for %s, %s new events; window: %s", screen.Duration(o.Lasted), screen.Count(o.Added), ad.Verdict),
		Caught:   o.Caught, Missed: o.Missed, Unmeasured: o.Caught.Count == 0,
		Marks: []chart.Mark{{Name: "99 % below", At: ad.P99}, {Name: "window", At: o.Window.Duration, Strong: true}},
	}
	if ad.Remembers < o.Window.Duration {
		a.Marks = append(a.Marks, chart.Mark{Name: "full after", At: ad.Remembers})
	}
	if ad.Window.Duration != o.Window.Duration {
		a.Marks = append(a.Marks, chart.Mark{Name: "advised", At: ad.Window.Duration})
	}
	return a
}

// adviceReport is an advice in JSON. Its names are stable.
type adviceReport struct {
	Topic         string       `json:"topic"`
	Verdict       string       `json:"verdict"`
	Confidence    string       `json:"confidence"`
	Mode          string       `json:"mode,omitempty"`
	NowSeconds    float64      `json:"window_seconds"`
	NowEntries    int          `json:"window_entries"`
	WantSeconds   float64      `json:"advised_seconds"`
	WantEntries   int          `json:"advised_entries"`
	Watched       float64      `json:"watched_seconds"`
	Added         int64        `json:"added"`
	Duplicates    int64        `json:"duplicates"`
	Rate          float64      `json:"rate_per_second"`
	Peak          float64      `json:"peak_per_second"`
	FullAfter     float64      `json:"full_after_seconds"`
	Remembers     float64      `json:"remembers_seconds"`
	Outage        float64      `json:"covers_outage_seconds"`
	Backlog       float64      `json:"backlog_seconds"`
	Length        int64        `json:"length"`
	Lag           int64        `json:"lag"`
	Retries       int64        `json:"retries"`
	RetriesMissed int64        `json:"retries_missed"`
	Typical       float64      `json:"retry_age_median_seconds"`
	P99           float64      `json:"retry_age_p99_seconds"`
	Oldest        float64      `json:"retry_age_max_seconds"`
	Forgets       int64        `json:"change_forgets"`
	Changes       []changeView `json:"changes"`
	Reasons       []string     `json:"reasons"`
	Caught        []bucketView `json:"caught_ages"`
	Missed        []bucketView `json:"missed_ages"`
}

type changeView struct {
	Field  string `json:"field"`
	Now    string `json:"now"`
	Want   string `json:"want"`
	Effect string `json:"effect"`
}

type bucketView struct {
	From  float64 `json:"from_seconds"`
	To    float64 `json:"to_seconds"`
	Count int64   `json:"count"`
}

func adviceReportOf(o window.Observation, ad window.Advice) adviceReport {
	v := adviceReport{
		Topic: o.Topic, Verdict: ad.Verdict.String(), Confidence: ad.Confidence.String(), Mode: o.Mode.String(),
		NowSeconds: o.Window.Duration.Seconds(), NowEntries: o.Window.Entries, WantSeconds: ad.Window.Duration.Seconds(), WantEntries: ad.Window.Entries,
		Watched: o.Lasted.Seconds(), Added: o.Added, Duplicates: o.Duplicates, Rate: ad.Rate, Peak: ad.Peak,
		FullAfter: ad.FullAfter.Seconds(), Remembers: ad.Remembers.Seconds(), Outage: ad.Outage.Seconds(), Backlog: ad.Backlog.Seconds(),
		Length: o.Length, Lag: o.Lag, Retries: ad.Retries, RetriesMissed: o.Missed.Count,
		Typical: ad.Typical.Seconds(), P99: ad.P99.Seconds(), Oldest: ad.Oldest.Seconds(), Forgets: ad.Forgets,
		Changes: []changeView{}, Reasons: append([]string{}, ad.Reasons...), Caught: bucketViews(o.Caught), Missed: bucketViews(o.Missed),
	}
	for _, c := range ad.Changes {
		v.Changes = append(v.Changes, changeView(c))
	}
	return v
}

func bucketViews(d window.Distribution) []bucketView {
	all := []bucketView{}
	for _, b := range d.Buckets { // the first and the last one no wider than what was seen
		all = append(all, bucketView{max(b.From, d.Min).Seconds(), min(b.To, d.Max).Seconds(), b.Count})
	}
	return all
}
