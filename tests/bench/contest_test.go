package bench_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// contender is one way to do what a row is about. measure does it n times and returns a score:
// messages a second or, for latencies, one by seconds, so that more is better.
type contender struct {
	name    string
	measure func(b *testing.B, n int) float64
}

// row compares ours with what its floor is a multiple of. More contenders are for the table.
type row struct {
	name, what string
	floor      float64
	unit       string // "msg/s", or "µs" of a latency
	n          int    // of the first measurement, from which the others get theirs; at least so many
	ours       contender
	against    contender
	beside     []contender
}

// settings of a run, from the environment: make bench has them as variables.
type settings struct {
	rows   *regexp.Regexp
	rounds int
	target time.Duration // of one measurement
	judge  bool          // a short row fails
	json   string        // file for the results
	svg    string        // file for the chart
}

func settingsOf(b *testing.B) settings {
	s := settings{judge: os.Getenv("JUDGE") != "no", json: os.Getenv("JSON"), svg: os.Getenv("SVG")}
	var err error
	if s.rows, err = regexp.Compile(os.Getenv("ROWS")); err != nil {
		b.Fatalf("ROWS: %v", err)
	}
	if s.rounds, err = strconv.Atoi(os.Getenv("ROUNDS")); err != nil || s.rounds < 1 {
		b.Fatalf("ROUNDS=%q is no number of rounds", os.Getenv("ROUNDS"))
	}
	if s.target, err = time.ParseDuration(cmp.Or(os.Getenv("TARGET"), "500ms")); err != nil {
		b.Fatalf("TARGET: %v", err)
	}
	return s
}

// result is what a row came to: medians over the rounds.
type result struct {
	Name    string             `json:"name"`
	What    string             `json:"what"`
	Unit    string             `json:"unit"`
	Floor   float64            `json:"floor"`
	Ratio   float64            `json:"ratio"` // median of the ratios of the rounds
	Ratios  []float64          `json:"ratios"`
	OK      bool               `json:"ok"`
	Against string             `json:"against"`
	Scores  map[string]float64 `json:"scores"` // messages a second, or microseconds

	contenders []contender
}

// BenchmarkFloors compares this library with watermill-redisstream, and with the raw client
// that sends the same commands, on the same servers with the same messages: 200 bytes, three
// fields of metadata. In each round every contender has its turn, so that what the machine
// does besides reaches all. It prints a table and one line for each floor, and fails when
// one is short.
func BenchmarkFloors(b *testing.B) {
	if os.Getenv("ROUNDS") == "" {
		b.Skip("make bench runs it")
	}
	s := settingsOf(b)
	var results []result
	for _, r := range rows() {
		if s.rows.MatchString(r.name) {
			results = append(results, r.run(b, s))
		}
	}
	if len(results) == 0 {
		b.Fatalf("ROWS=%s matches none", s.rows)
	}
	print(results, s)
	if s.json != "" {
		text, err := json.MarshalIndent(results, "", "  ")
		if err == nil {
			err = os.WriteFile(s.json, append(text, '\n'), 0o600)
		}
		if err != nil {
			b.Error(err)
		}
	}
	if s.svg != "" {
		if err := os.WriteFile(s.svg, []byte(chart(results)), 0o600); err != nil {
			b.Error(err)
		}
	}
	for _, r := range results {
		if !r.OK && s.judge {
			b.Errorf("%s is short", r.Name)
		}
	}
}

func (r row) run(b *testing.B, s settings) result {
	all := append([]contender{r.ours, r.against}, r.beside...)
	sizes := make([]int, len(all))
	for i, c := range all {
		score := c.measure(b, r.n) // also warms up
		if sizes[i] = r.n; r.unit == "msg/s" {
			sizes[i] = max(r.n, int(score*s.target.Seconds()))
		}
	}
	scores := make([][]float64, len(all))
	res := result{Name: r.name, What: r.what, Unit: r.unit, Floor: r.floor, Against: r.against.name, Scores: map[string]float64{}, contenders: all}
	for round := range s.rounds {
		for i := range all {
			turn := (i + round) % len(all) // nobody is always first
			scores[turn] = append(scores[turn], all[turn].measure(b, sizes[turn]))
		}
		res.Ratios = append(res.Ratios, scores[0][round]/scores[1][round])
	}
	for i, c := range all {
		score := median(scores[i])
		if r.unit == "µs" {
			score = 1e6 / score
		}
		res.Scores[c.name] = score
	}
	res.Ratio = median(res.Ratios)
	res.OK = res.Ratio >= r.floor
	fmt.Fprintf(os.Stderr, "%s: %.2f\n", r.name, res.Ratio)
	return res
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func print(results []result, s settings) {
	fmt.Printf("\nmedians of %d rounds of %v; quote ratios, not numbers\n\n", s.rounds, s.target)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tCONTENDER\tSCORE\tRATIO\tSPREAD")
	for _, r := range results {
		for i, c := range r.contenders {
			name, ratio := "", ""
			switch i {
			case 0:
				name, ratio = r.Name, fmt.Sprintf("%.2f\t%.2f to %.2f", r.Ratio, slices.Min(r.Ratios), slices.Max(r.Ratios))
			case 1:
				ratio = "1"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s %s\t%s\n", name, c.name, thousands(r.Scores[c.name]), r.Unit, ratio)
		}
	}
	_ = w.Flush()
	fmt.Println()
	for _, r := range results {
		word := "ok"
		if !r.OK {
			word = "short"
		}
		fmt.Printf("%s %s ratio=%.2f floor=%.2f\n", word, r.Name, r.Ratio, r.Floor)
	}
}

// thousands writes a number with a blank for every thousand.
func thousands(v float64) string {
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// chart draws the ratios as bars, with the floors, for light and dark pages.
func chart(results []result) string {
	const left, width, high = 190, 460, 24
	largest := 1.0
	for _, r := range results {
		largest = max(largest, r.Ratio, r.Floor)
	}
	var b strings.Builder
	height := 46 + high*len(results)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %d" width="760" height="%d" role="img" aria-label="Ratios of make bench">
<style>
  .bg { fill: #ffffff } .bar { fill: #0969da } .short { fill: #cf222e } .floor { stroke: #57606a; stroke-width: 2 }
  text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 } .dim { fill: #57606a; font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .bg { fill: #0d1117 } .bar { fill: #58a6ff } .short { fill: #f85149 } .floor { stroke: #9da7b3 } text { fill: #e6edf3 } .dim { fill: #9da7b3 }
  }
</style>
<rect class="bg" width="760" height="%d" rx="10"/>
<text class="dim" x="20" y="26">times as fast as what stands at the right; the line is the floor</text>
`, height, height, height)
	for i, r := range results {
		y, class := 40+high*i, "bar"
		if !r.OK {
			class = "short"
		}
		x := func(v float64) float64 { return left + v/largest*(width-110) }
		fmt.Fprintf(&b, `<text x="20" y="%d">%s</text><rect class="%s" x="%d" y="%d" width="%.0f" height="14" rx="2"/>`,
			y+12, r.Name, class, left, y, max(x(r.Ratio)-left, 1))
		fmt.Fprintf(&b, `<path class="floor" d="M%.0f %dv20"/><text class="dim" x="%.0f" y="%d">%.2f × %s</text>`+"\n",
			x(r.Floor), y-3, max(x(r.Ratio), x(r.Floor))+8, y+12, r.Ratio, r.Against)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
