package screen

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestValues(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "-1,234,567"}, {Known(-1), "?"},
		{Plural(1, "entry", "entries"), "1 entry"}, {Plural(2000, "entry", "entries"), "2,000 entries"},
		{Duration(0), "0s"}, {Duration(1), "<1ms"}, {Duration(40 * time.Millisecond), "40ms"}, {Duration(3200 * time.Millisecond), "3.2s"},
		{Duration(time.Minute), "1m"}, {Duration(125 * time.Second), "2m5s"}, {Duration(80 * time.Minute), "1h20m"},
		{Duration(99 * time.Hour), "4d3h"}, {Duration(-time.Hour), "-1h"}, {Duration(time.Hour + time.Second), "1h"},
		{Bytes(0), "0 B"}, {Bytes(999), "999 B"}, {Bytes(1500), "1.5 kB"}, {Bytes(12_431_400), "12.4 MB"}, {Bytes(5e15), "5000.0 TB"},
		{Rate(0), "0 a second"}, {Rate(0.001), "3.6 an hour"}, {Rate(0.5), "30 a minute"}, {Rate(12.34), "12.3 a second"}, {Rate(1234.5), "1,235 a second"},
		{Printable("pay:9001 ä"), "pay:9001 ä"}, {Printable("a\x1b[2J"), `a\x1b[2J`}, {Printable("a\xffb\n\"c\""), `a\xffb\n"c"`},
		{Text("{\n\t\"a\": 1\r\n}\x07"), "{\n\t\"a\": 1\n}\\a"},
		{Ago(time.Time{}, time.Now()), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	now := time.Date(2026, 12, 3, 2, 0, 0, 0, time.FixedZone("", 3600))
	if got := Ago(now.Add(-time.Minute), now); got != "2026-12-03 00:59:00Z, 1m ago" {
		t.Errorf("got %q", got)
	}
	if got := Ago(now.Add(time.Hour), now); got != "2026-12-03 02:00:00Z, in 1h" {
		t.Errorf("got %q", got)
	}
}

// Tables line up, also where letters take several bytes; nothing is cut.
func TestPage(t *testing.T) {
	p := &Page{width: 30}
	p.Facts(Fact{"name", "a value that is longer than the page is wide"}, Fact{"none", ""}, Fact{"n", "1"})
	p.Heading("HEAD")
	p.Table([]string{"KEY", "N"}, [][]string{{"größe", "1"}, {"b", "1,000"}}, 1)
	p.Sentences("- ", "one two three four five six seven eight")
	want := `name  a value that is longer
      than the page is wide
n     1

HEAD
KEY        N
größe      1
b      1,000
- one two three four five six
  seven eight
`
	if p.String() != want {
		t.Errorf("got\n%s", p)
	}
}

// Programs get JSON alone, with what people read as it is; progress and questions go elsewhere.
func TestShow(t *testing.T) {
	var out, errs bytes.Buffer
	s := &Screen{In: strings.NewReader("YES\n"), Out: &out, Err: &errs, JSON: true, Width: 80}
	bar := s.Progress("working", 10)
	bar.Set(10, 20)
	bar.Describe("still working")
	bar.End()
	if err := s.Show(map[string]string{"key": "<a&b>"}, nil); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"key\": \"<a&b>\"\n}\n"; out.String() != want || errs.Len() > 0 {
		t.Errorf("got %q and %q", out.String(), errs.String())
	}
	if s.CanAsk() {
		t.Error("nobody is there")
	}
	if !s.Ask("really?") {
		t.Error("YES is yes")
	}
	if s.Ask("really?") { // the end of the input
		t.Error("nothing is no")
	}
}
