package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceward/watermill-idempotent/window"
)

func ages() Ages {
	return Ages{
		Title: "Ages of retries, topic <payments> & co", Subtitle: "watched for 1m",
		Caught: window.Distribution{Count: 130, Max: 25 * time.Minute, Buckets: []window.Bucket{
			{From: 200 * time.Millisecond, To: 240 * time.Millisecond, Count: 100},
			{From: 2 * time.Second, To: 2300 * time.Millisecond, Count: 20},
			{From: 22 * time.Minute, To: 26 * time.Minute, Count: 10},
		}},
		Missed: window.Distribution{Count: 2, Max: 3 * time.Hour, Buckets: []window.Bucket{{From: 150 * time.Minute, To: 180 * time.Minute, Count: 2}}},
		Marks:  []Mark{{Name: "99 % below", At: 24 * time.Minute}, {Name: "window", At: time.Hour, Strong: true}, {Name: "none"}},
	}
}

// The bars have what is in the buckets, each once, in order, with marks where their age is.
func TestLines(t *testing.T) {
	lines := ages().Lines(60)
	text := strings.Join(lines, "\n")
	want := `AGE         CAUGHT  MISSED
100ms – 1s     100       ·  ███████████████████████████████
1s – 3s         20       ·  ██████
3s – 10s         ·       ·
10s – 30s        ·       ·
30s – 1m         ·       ·
1m – 3m          ·       ·
3m – 10m         ·       ·
──────────────────────────────────────────── 99 % below 24m
10m – 30m       10       ·  ███
30m – 1h         ·       ·
───────────────────────────────────────────────── window 1h
1h – 3h          ·       2  ▒`
	if text != want {
		t.Errorf("got\n%s", text)
	}
	for _, width := range []int{40, 80, 120} {
		for _, line := range ages().Lines(width) {
			if utf8.RuneCountInString(line) > width {
				t.Errorf("%d columns of %d: %s", utf8.RuneCountInString(line), width, line)
			}
		}
	}
	if lines := (Ages{}).Lines(80); lines != nil {
		t.Errorf("nothing makes %q", lines)
	}
}

// Retries that came after 2h58m to a little more than 3h are below 3h, as the numbers beside them say;
// and what nobody has measured is not shown as none.
func TestLinesAgreeWithNumbers(t *testing.T) {
	missed := window.DistributionOf(2*time.Hour+58*time.Minute, 2*time.Hour+59*time.Minute, 3*time.Hour+47*time.Millisecond)
	a := Ages{Missed: missed, Unmeasured: true, Marks: []Mark{{Name: "99 % below", At: missed.Quantile(0.99)}, {Name: "window", At: time.Hour}}}
	want := `AGE      CAUGHT  MISSED
───────────────────────────────────────────────── window 1h
1h – 3h       ?       3  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
───────────────────────────────────────────── 99 % below 3h`
	if text := strings.Join(a.Lines(60), "\n"); text != want {
		t.Errorf("got\n%s", text)
	}
	for _, say := range []string{"caught by the window: not measured", "not measured; 3 were missed"} {
		if !strings.Contains(a.SVG(), say) {
			t.Errorf("the picture lacks %q", say)
		}
	}
	sum := int64(0)
	var ages []time.Duration
	for i := range 1000 {
		ages = append(ages, time.Duration(i*i*i)*10*time.Microsecond)
	}
	for _, b := range (Ages{Caught: window.DistributionOf(ages...)}).bars() {
		sum += b.caught
	}
	if sum != 1000 {
		t.Errorf("%d of 1000 are drawn", sum)
	}
}

// The picture is well-formed, says in words what it shows, has light and dark colours, and
// nothing in it lies outside.
func TestSVG(t *testing.T) {
	for name, a := range map[string]Ages{"ages": ages(), "empty": {Title: "none"}, "marks": {Marks: ages().Marks}} {
		svg := a.SVG()
		d := xml.NewDecoder(strings.NewReader(svg))
		rects := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, svg)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				rects++
			}
		}
		if want := 3 + len(a.Caught.Buckets) + len(a.Missed.Buckets); rects != want {
			t.Errorf("%s: %d rectangles, want %d", name, rects, want)
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Contains(svg, `"-`) {
			t.Errorf("%s: something lies outside:\n%s", name, svg)
		}
	}
	svg := ages().SVG()
	for _, want := range []string{"prefers-color-scheme: dark", "&lt;payments&gt; &amp; co", "130 retries were caught, 2 missed. 99 % below: 24m. window: 1h.", ">window 1h<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
}
