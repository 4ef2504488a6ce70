package chart

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/window"
)

// The picture, in pixels of its own.
const (
	pictureWidth  = 760
	pictureHeight = 400
	leftMargin    = 62
	rightMargin   = 24
	topMargin     = 116 // title, legend, names of marks
	bottomMargin  = 58
	textWidth     = 6.6 // about, of a letter
)

// Readable in light and dark surroundings: the picture asks the viewer which one it is.
const style = `
  .bg { fill: #ffffff } text { fill: #1f2933; font: 12px system-ui, -apple-system, "Segoe UI", sans-serif }
  .title { font-size: 16px; font-weight: 600 } .faint { fill: #52606d }
  .grid { stroke: #dde3ea } .axis { stroke: #7b8794 }
  .caught { fill: #2f6fdb } .missed { fill: #d9480f }
  .mark { stroke: #ffffff; stroke-width: 4; paint-order: stroke; stroke-linejoin: round }
  .strong { stroke: #1f2933; stroke-width: 2 } .weak { stroke: #1f2933; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    .bg { fill: #11161c } text { fill: #e6eaf0 } .faint { fill: #9aa5b1 }
    .grid { stroke: #27313b } .axis { stroke: #7b8794 }
    .caught { fill: #6ea8fe } .missed { fill: #ff9f5a }
    .strong, .weak { stroke: #e6eaf0 } .mark { stroke: #11161c }
  }
`

// ticks of the axis of ages.
var ticks = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second,
	time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour,
}

// picture is where things are.
type picture struct {
	strings.Builder
	low, high float64 // logarithms of ages
	top       int64   // the largest number of the axis
}

func (p *picture) add(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *picture) x(age time.Duration) float64 {
	at := (math.Log(float64(max(age, time.Microsecond))) - p.low) / (p.high - p.low)
	return leftMargin + min(max(at, 0), 1)*(pictureWidth-leftMargin-rightMargin)
}

func (p *picture) y(n int64) float64 {
	return pictureHeight - bottomMargin - float64(n)/float64(p.top)*(pictureHeight-topMargin-bottomMargin)
}

// SVG is the picture, a document of its own. Ages are on a logarithmic axis, since retries
// come after milliseconds and after hours.
func (a Ages) SVG() string {
	low, high := a.edges()
	p := &picture{low: math.Log(float64(low)), high: math.Log(float64(high)), top: niceTop(a.highest())}
	p.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">`,
		pictureWidth, pictureHeight, pictureWidth, pictureHeight)
	p.add(`<title id="title">%s</title>`, escape(a.Title))
	p.add(`<desc id="desc">%s</desc>`, escape(a.describe()))
	p.add("<style>%s</style>", style)
	p.add(`<rect class="bg" width="%d" height="%d"/>`, pictureWidth, pictureHeight)
	p.add(`<text class="title" x="%d" y="28">%s</text>`, 20, escape(a.Title))
	p.add(`<text class="faint" x="%d" y="47">%s</text>`, 20, escape(a.Subtitle))
	p.legend(a)
	p.axes()
	p.buckets(a)
	p.marks(a.Marks)
	p.add("</svg>")
	return p.String()
}

// describe says in words what the picture shows.
func (a Ages) describe() string {
	text := fmt.Sprintf("%d retries were caught, %d missed.", a.Caught.Count, a.Missed.Count)
	if a.Unmeasured {
		text = fmt.Sprintf("The ages of retries that were caught are not measured; %d were missed.", a.Missed.Count)
	}
	for _, m := range a.Marks {
		if m.At > 0 {
			text += fmt.Sprintf(" %s: %s.", m.Name, screen.Duration(m.At))
		}
	}
	return text
}

func (p *picture) legend(a Ages) {
	y := 66
	caught := screen.Count(a.Caught.Count)
	if a.Unmeasured {
		caught = "not measured"
	}
	for i, entry := range []struct {
		class, text string
	}{
		{"caught", "caught by the window: " + caught},
		{"missed", "missed, a second entry: " + screen.Count(a.Missed.Count)},
	} {
		x := 20 + i*220
		p.add(`<rect class="%s" x="%d" y="%d" width="11" height="11" rx="2"/><text x="%d" y="%d">%s</text>`,
			entry.class, x, y-10, x+17, y, entry.text)
	}
}

func (p *picture) axes() {
	const bottom = pictureHeight - bottomMargin
	for i := range int64(5) {
		n := p.top * i / 4
		if p.top < 4 && i != 0 && i != 4 {
			continue
		}
		y := p.y(n)
		p.add(`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="faint" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			leftMargin, pictureWidth-rightMargin, y, y, leftMargin-8, y+4, screen.Count(n))
	}
	last := -100.0
	for _, t := range ticks {
		x := p.x(t)
		if l := math.Log(float64(t)); l < p.low || l > p.high || x-last < 40 {
			continue
		}
		last = x
		p.add(`<line class="axis" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x, x, bottom, bottom+5, x, bottom+20, screen.Duration(t))
	}
	p.add(`<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>`, leftMargin, pictureWidth-rightMargin, bottom, bottom)
	p.add(`<text class="faint" x="%d" y="%d" text-anchor="middle">how long after its original a retry came</text>`,
		(leftMargin+pictureWidth-rightMargin)/2, pictureHeight-16)
}

// buckets draws what was caught, and on it what was missed. What is there is seen, however
// little it is.
func (p *picture) buckets(a Ages) {
	caught := make(map[time.Duration]int64)
	draw := func(b window.Bucket, class, what string, below int64) {
		x, right := p.x(b.From), p.x(b.To)
		y := p.y(below + b.Count)
		height := max(p.y(below)-y, 2)
		p.add(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s to %s: %s %s</title></rect>`,
			class, x, p.y(below)-height, max(right-x-1, 1), height, screen.Duration(b.From), screen.Duration(b.To), screen.Count(b.Count), what)
	}
	for _, b := range a.Caught.Buckets {
		caught[b.To] = b.Count
		draw(b, "caught", "caught", 0)
	}
	for _, b := range a.Missed.Buckets {
		draw(b, "missed", "missed", caught[b.To])
	}
}

// marks draws each with its name on a line of its own, so that names that are close to each
// other don't cover one another.
func (p *picture) marks(marks []Mark) {
	y, texts := 82.0, ""
	for _, m := range marks {
		if m.At <= 0 {
			continue
		}
		class := "weak"
		if m.Strong {
			class = "strong"
		}
		x := p.x(m.At)
		text := m.Name + " " + screen.Duration(m.At)
		anchor, at := "start", x+5
		if at+float64(utf8.RuneCountInString(text))*textWidth > pictureWidth-10 {
			anchor, at = "end", x-5
		}
		p.add(`<line class="%s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%d"/>`, class, x, x, y-9, pictureHeight-bottomMargin)
		texts += fmt.Sprintf(`<text class="mark" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", at, y, anchor, escape(text))
		y += 14
	}
	p.WriteString(texts) // over all lines
}

// highest is the number of the highest bar.
func (a Ages) highest() int64 {
	sums, top := make(map[time.Duration]int64), int64(1)
	for _, d := range []window.Distribution{a.Caught, a.Missed} {
		for _, b := range d.Buckets {
			sums[b.To] += b.Count
			top = max(top, sums[b.To])
		}
	}
	return top
}

// niceTop is the next number that is easily divided by four.
func niceTop(n int64) int64 {
	if n <= 2 {
		return n
	}
	for step := int64(1); ; step *= 10 {
		for _, m := range []int64{4, 8, 12, 16, 20, 24, 32} {
			if step*m >= n {
				return step * m
			}
		}
	}
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}
