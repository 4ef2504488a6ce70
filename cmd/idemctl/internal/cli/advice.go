package cli

import (
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/chart"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/window"
)

// showAdvice is the page of `idemctl window`: what was seen, the picture, what to do.
func showAdvice(p *screen.Page, t inspect.Topic, o window.Observation, ad window.Advice, ages chart.Ages, width int) {
	p.Facts(
		screen.Fact{Name: "topic", Value: screen.Printable(o.Topic)},
		screen.Fact{Name: "watched", Value: fmt.Sprintf("%s: %s", screen.Duration(o.Lasted), seenText(o))},
		screen.Fact{Name: "rate", Value: fmt.Sprintf("%s, %s at peak", screen.Rate(ad.Rate), screen.Rate(ad.Peak))},
		screen.Fact{Name: "window", Value: inForce(t, o)},
		screen.Fact{Name: "full after", Value: fullText(o, ad)},
		screen.Fact{Name: "caught", Value: caughtText(t.Window, o)},
		screen.Fact{Name: "retries", Value: retriesText(o, ad)},
		screen.Fact{Name: "covers", Value: coversText(ad)},
		screen.Fact{Name: "slowest group", Value: lagText(o, ad)},
	)
	if lines := ages.Lines(width); len(lines) > 0 {
		p.Gap()
		for _, line := range lines {
			p.Line("%s", line)
		}
	}
	p.Gap()
	p.Facts(
		screen.Fact{Name: "verdict", Value: ad.Verdict.String() + " (" + confidenceText(ad.Confidence) + ")"},
		screen.Fact{Name: "use", Value: settingText(ad.Window, o.Mode)},
	)
	if len(ad.Reasons) > 0 {
		p.Gap()
		p.Sentences("- ", ad.Reasons...)
	}
	if len(ad.Changes) == 0 {
		return
	}
	p.Gap()
	var rows [][]string
	var effects []string
	for _, c := range ad.Changes {
		rows = append(rows, []string{"Window." + c.Field, c.Now, c.Want})
		effects = append(effects, c.Field+": "+c.Effect)
	}
	p.Table([]string{"SETTING", "NOW", "ADVISED"}, rows)
	p.Gap()
	p.Sentences("- ", effects...)
}

func seenText(o window.Observation) string {
	text := screen.Plural(o.Added, "new event", "new events")
	if o.Duplicates >= 0 {
		text += ", " + screen.Plural(o.Duplicates, "duplicate", "duplicates") + " caught"
	}
	return text
}

// caughtText says what the server knows of retries whose ages nobody has collected.
func caughtText(w inspect.Window, o window.Observation) string {
	switch {
	case o.Caught.Count > 0:
		return ""
	case !w.InServer:
		return "not measured; see --ages"
	}
	return fmt.Sprintf("%s by the server since the stream was made; it does not tell how late they came, see --ages", screen.Count(w.Duplicates))
}

func inForce(t inspect.Topic, o window.Observation) string {
	switch {
	case o.Window.Duration == 0:
		return "not known"
	case o.Mode == publisher.ModeLatch || o.Window.Entries == 0:
		return screen.Duration(o.Window.Duration) + ", any number of events"
	}
	return fmt.Sprintf("%s; %s remembered now", roomText(t), screen.Plural(o.Tracked, "ID", "IDs"))
}

func fullText(o window.Observation, ad window.Advice) string {
	switch {
	case o.Window.Entries == 0:
		return ""
	case ad.FullAfter == 0:
		return "never, at this rate"
	}
	return fmt.Sprintf("%s at peak; a retry is caught for %s", screen.Duration(ad.FullAfter), screen.Duration(ad.Remembers))
}

func retriesText(o window.Observation, ad window.Advice) string {
	if ad.Retries == 0 {
		return "no age is known; see --ages"
	}
	text := fmt.Sprintf("median %s, 99 %% below %s, oldest %s", screen.Duration(ad.Typical), screen.Duration(ad.P99), screen.Duration(ad.Oldest))
	if o.Missed.Count > 0 {
		text += fmt.Sprintf("; %s missed", screen.Count(o.Missed.Count))
	}
	return text
}

func coversText(ad window.Advice) string {
	if ad.Outage <= 0 {
		return "no outage"
	}
	return "an outage of up to " + screen.Duration(ad.Outage)
}

func lagText(o window.Observation, ad window.Advice) string {
	switch {
	case o.Lag < 0:
		return ""
	case o.Lag == 0:
		return "has read everything"
	case ad.Backlog > 0:
		return fmt.Sprintf("has %s left to read, the next of %s ago", screen.Plural(o.Lag, "entry", "entries"), screen.Duration(ad.Backlog))
	}
	return fmt.Sprintf("has %s left to read", screen.Plural(o.Lag, "entry", "entries"))
}

func confidenceText(c window.Confidence) string {
	switch c {
	case window.Good:
		return "good confidence"
	case window.Low:
		return "low confidence: watch for longer"
	default:
		return "a guess: the ages of retries are not known"
	}
}

// settingText is what to write into the configuration.
func settingText(w publisher.Window, mode publisher.Mode) string {
	if w.Duration == 0 {
		return ""
	}
	if mode == publisher.ModeLatch || w.Entries == 0 {
		return fmt.Sprintf("publisher.Window{Duration: %s}", goDuration(w.Duration))
	}
	return fmt.Sprintf("publisher.Window{Duration: %s, Entries: %s}", goDuration(w.Duration), goNumber(w.Entries))
}

func goDuration(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {time.Second, "time.Second"}} {
		if d%unit.of == 0 {
			return fmt.Sprintf("%d * %s", d/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%d * time.Millisecond", d.Milliseconds())
}

func goNumber(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "_" + text[i:]
	}
	return text
}
