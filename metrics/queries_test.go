package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v2"

	"github.com/onceward/watermill-idempotent/metrics"
)

// exported are all metrics that the collectors can have, with their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	streams, err := metrics.NewStreams(metrics.StreamsConfig{Client: client, Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string)
	for _, c := range []prometheus.Collector{newMetrics(t, metrics.Config{}), streams} {
		descs := make(chan *prometheus.Desc, 1000)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(d.String())
			if m == nil {
				t.Fatal(d)
			}
			all[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })
		}
	}
	if len(all) < 40 {
		t.Fatalf("%d metrics: %v", len(all), all)
	}
	return all
}

type alert struct {
	Name        string `yaml:"alert"`
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ RefID, Expr, LegendFormat string }
}

type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct {
			Name  string
			Query json.RawMessage
		}
	}
}

func board(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// queries are all of alerts and dashboard, by where they stand.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, a := range alerts(t) {
		all["alert "+a.Name] = a.Expr
	}
	d := board(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if text := string(v.Query); strings.Contains(text, "label_values") {
			var q struct{ Query string }
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			all["variable "+v.Name] = q.Query
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b(idempotent_\w+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
)

// family is the metric that a series of a query belongs to: _bucket is that of a histogram.
func family(exported map[string][]string, name string) (labels []string, ok bool) {
	if labels, ok = exported[name]; ok {
		return labels, true
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, found := strings.CutSuffix(name, suffix); found {
			if labels, ok = exported[base]; ok {
				return append(slices.Clone(labels), "le"), true
			}
		}
	}
	return nil, false
}

// Every query asks for metrics that there are, by labels and values that they have, and no
// metric is left that no query looks at.
func TestQueriesFindWhatIsExported(t *testing.T) {
	known := exported(t)
	m := newMetrics(t, metrics.Config{MaxTopics: 1})
	for _, name := range []string{"orders", "refunds"} { // the second one is among the others
		everything(m, name, "billing", "charge")
		m.Store("records", memory(t))
	}
	there := scrape(t, m)
	asked := make(map[string]bool)
	for where, query := range queries(t) {
		if strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") || strings.TrimSpace(query) == "" {
			t.Errorf("%s: %s", where, query)
		}
		possible := []string{"job", "instance"}
		for _, sel := range selector.FindAllStringSubmatch(query, -1) {
			for name := range strings.SplitSeq(sel[1], "|") {
				labels, ok := family(known, name)
				if !ok {
					t.Errorf("%s asks for %s, which nobody exports", where, name)
					continue
				}
				asked[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")] = true
				possible = append(possible, labels...)
				matches(t, where, name, sel[2], labels, there)
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(query, -1) {
			for label := range strings.SplitSeq(g[1], ",") {
				if label = strings.TrimSpace(label); !slices.Contains(possible, label) {
					t.Errorf("%s groups by %s, which its metrics don't have", where, label)
				}
			}
		}
	}
	for name := range known {
		if !asked[name] {
			t.Errorf("no query looks at %s", name)
		}
	}
}

// matches checks that a selector has labels of its metric, and finds a series where everything
// has happened.
func matches(t *testing.T, where, name, selector string, labels []string, there scraped) {
	t.Helper()
	var wanted []*regexp.Regexp
	for _, m := range matcher.FindAllStringSubmatch(selector, -1) {
		label, op, value := m[1], m[2], m[3]
		if label == "job" || label == "instance" || label == "__name__" {
			continue
		}
		if !slices.Contains(labels, label) {
			t.Errorf("%s asks %s for the label %s, which it does not have", where, name, label)
			continue
		}
		for part := range strings.SplitSeq(value, "|") { // each must be a value that there is
			switch {
			case strings.HasPrefix(value, "$"):
			case op == "=":
				wanted = append(wanted, regexp.MustCompile(label+"="+strconv.Quote(regexp.QuoteMeta(value))))
			default:
				wanted = append(wanted, regexp.MustCompile(label+`="(?:`+part+`)"`))
			}
		}
	}
	if strings.HasPrefix(name, "idempotent_stream") { // needs a server; see tests/metrics
		return
	}
	short := strings.TrimPrefix(name, "idempotent_") + "{"
	for _, w := range append(wanted, regexp.MustCompile("")) {
		found := false
		for series := range there {
			found = found || strings.HasPrefix(series, short) && w.MatchString(series)
		}
		if !found {
			t.Errorf("%s: no series of %s has %v", where, name, w)
		}
	}
}

// Every alert says what it is about, how bad that is, and what to do.
func TestAlertsSayWhatToDo(t *testing.T) {
	list := alerts(t)
	if len(list) < 20 {
		t.Fatalf("%d alerts", len(list))
	}
	seen := make(map[string]bool)
	for _, a := range list {
		if seen[a.Name] || !strings.HasPrefix(a.Name, "Idempotent") {
			t.Errorf("name %q", a.Name)
		}
		seen[a.Name] = true
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Name, a.Labels["severity"])
		}
		if action := a.Annotations["action"]; len(action) < 40 || !strings.HasSuffix(action, ".") {
			t.Errorf("%s: action %q", a.Name, action)
		}
		if a.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", a.Name)
		}
		// What the summary names must be left by the expression.
		for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(a.Annotations["summary"], -1) {
			for _, g := range grouping.FindAllStringSubmatch(a.Expr, -1) {
				if by := strings.Split(strings.ReplaceAll(g[1], " ", ""), ","); !slices.Contains(by, label[1]) {
					t.Errorf("%s: the summary names %s, the expression leaves %v", a.Name, label[1], by)
				}
			}
		}
	}
}

// Panels have each its place, and don't lie on one another.
func TestDashboardPanels(t *testing.T) {
	ids, places := make(map[int]bool), make(map[[2]int]string)
	for _, p := range board(t).Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q with %d targets", p.ID, p.Title, len(p.Targets))
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" || x >= 24 {
					t.Errorf("%q lies on %q", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
	}
}

// README's tables have every metric that is exported, with its labels, and no other, and the
// bounds that are in force.
func TestREADMEListsTheMetrics(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	known, listed := exported(t), make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `(idempotent_\\w+)` \\| (counter|gauge|histogram) \\| ([a-z, ]*)\\| \\S").FindAllStringSubmatch(string(text), -1) {
		name, labels := m[1], strings.TrimSpace(m[3])
		if want, ok := known[name]; !ok || labels != strings.Join(want, ", ") {
			t.Errorf("%s with the labels %q: exported with %v", name, labels, want)
		}
		if isTotal := strings.HasSuffix(name, "_total"); isTotal != (m[2] == "counter") {
			t.Errorf("%s is a %s", name, m[2])
		}
		listed[name] = true
	}
	for name := range known {
		if !listed[name] {
			t.Errorf("%s is in no table", name)
		}
	}
	for _, bound := range []string{
		"(MaxTopics + 1) × " + strconv.Itoa(metrics.SeriesPerTopic) + " + stores × " + strconv.Itoa(metrics.SeriesPerStore) + "\n",
		"`Config.MaxTopics` (" + strconv.Itoa(metrics.DefaultMaxTopics) + ")",
		"`MaxGroups` (" + strconv.Itoa(metrics.DefaultMaxGroups) + ")", "`Timeout` (" + strconv.Itoa(int(metrics.DefaultTimeout.Seconds())) + " s)",
	} {
		if !strings.Contains(string(text), bound) {
			t.Errorf("README.md does not say %q", bound)
		}
	}
	if names := regexp.MustCompile(`\bidempotent_[a-z_]+`).FindAllString(string(text), -1); len(names) == 0 {
		t.Error("no names")
	} else {
		for _, name := range names {
			if _, ok := known[name]; !ok {
				t.Errorf("README.md names %s, which nobody exports", name)
			}
		}
	}
	// And the output that it shows is that of the example.
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, output, _ := strings.Cut(string(example), "// Output:\n")
	output, _, _ = strings.Cut(output, "}\n")
	if !strings.Contains(string(text), strings.ReplaceAll(output, "\t// ", "")) {
		t.Error("README.md shows another output than the example's")
	}
}
