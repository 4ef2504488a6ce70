package cli

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe"
)

// recordView is a record in JSON. Its names are stable.
type recordView struct {
	Key         string     `json:"key"`
	Namespace   string     `json:"namespace"`
	Topic       string     `json:"topic"`
	Handler     string     `json:"handler"`
	Event       string     `json:"event"`
	State       string     `json:"state"`
	CommittedAt *time.Time `json:"committed_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	Group       string     `json:"group,omitempty"`
	Outputs     int        `json:"outputs"`
	OutputBytes int        `json:"output_bytes"`
	Fingerprint string     `json:"fingerprint,omitempty"`
}

func viewOf(r dedupe.Record) recordView {
	return recordView{
		Key: r.Key.String(), Namespace: r.Key.Namespace, Topic: r.Key.Topic, Handler: r.Key.Handler, Event: r.Key.Event,
		State: stateName(r.State), CommittedAt: timeOf(r.CommittedAt), ExpiresAt: timeOf(r.ExpiresAt), Group: r.Group,
		Outputs: r.Outputs, OutputBytes: r.OutputBytes, Fingerprint: hex.EncodeToString(r.Fingerprint),
	}
}

// stateName is the name that --state takes.
func stateName(s dedupe.State) string { return strings.ReplaceAll(s.String(), " ", "-") }

// timeOf leaves zero times out of JSON; others are in UTC.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func recordViews(records []dedupe.Record) []recordView {
	all := make([]recordView, 0, len(records))
	for _, r := range records {
		all = append(all, viewOf(r))
	}
	return all
}

func sortRecords(records []dedupe.Record) {
	slices.SortFunc(records, func(a, b dedupe.Record) int {
		return cmp.Or(natural(a.Key.Namespace, b.Key.Namespace), natural(a.Key.Topic, b.Key.Topic),
			natural(a.Key.Handler, b.Key.Handler), natural(a.Key.Event, b.Key.Event))
	})
}

// natural compares as people count: pay:9 is before pay:10.
func natural(a, b string) int {
	restA, restB := a, b
	for restA != "" && restB != "" {
		partA, partB := part(restA), part(restB)
		numA, numB := partA, partB
		if isDigit(partA[0]) && isDigit(partB[0]) {
			numA, numB = strings.TrimLeft(partA, "0"), strings.TrimLeft(partB, "0")
			if c := cmp.Or(len(numA)-len(numB), strings.Compare(numA, numB)); c != 0 {
				return c
			}
		}
		if numA != numB {
			return strings.Compare(restA, restB)
		}
		restA, restB = restA[len(partA):], restB[len(partB):]
	}
	return cmp.Or(len(restA)-len(restB), strings.Compare(a, b))
}

// part is what a text begins with: digits, or none.
func part(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return isDigit(byte(min(r, 0x7f))) != isDigit(text[0]) })
	if end < 0 {
		return text
	}
	return text[:end]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func showRecord(p *screen.Page, r dedupe.Record, now time.Time) {
	outputs := "none that are not published"
	if r.Outputs > 0 {
		outputs = fmt.Sprintf("%s, %s, not published yet", screen.Plural(r.Outputs, "message", "messages"), screen.Bytes(int64(r.OutputBytes)))
	}
	if r.State == dedupe.StateInProgress {
		outputs = ""
	}
	skips := "skips the event until"
	if r.State == dedupe.StateInProgress {
		skips = "claim ends"
	}
	p.Facts(
		screen.Fact{Name: "event", Value: screen.Printable(r.Key.Event)},
		screen.Fact{Name: "namespace", Value: screen.Printable(r.Key.Namespace)},
		screen.Fact{Name: "topic", Value: screen.Or(screen.Printable(r.Key.Topic), "(empty)")},
		screen.Fact{Name: "handler", Value: screen.Or(screen.Printable(r.Key.Handler), "(empty)")},
		screen.Fact{Name: "state", Value: r.State.String()},
		screen.Fact{Name: "handled", Value: screen.Ago(r.CommittedAt, now)},
		screen.Fact{Name: skips, Value: screen.Ago(r.ExpiresAt, now)},
		screen.Fact{Name: "consumer group", Value: screen.Printable(r.Group)},
		screen.Fact{Name: "outputs", Value: outputs},
		screen.Fact{Name: "key", Value: screen.Printable(r.Key.String())},
	)
}

func recordTable(p *screen.Page, records []dedupe.Record, s *connect.Store, now time.Time) {
	if len(records) == 0 {
		p.Line("No records in %s.", s.Where)
		return
	}
	var rows [][]string
	for _, r := range records {
		handled, left := "", ""
		if !r.CommittedAt.IsZero() {
			handled = screen.Duration(now.Sub(r.CommittedAt)) + " ago"
		}
		if !r.ExpiresAt.IsZero() {
			left = screen.Duration(max(r.ExpiresAt.Sub(now), 0))
		}
		rows = append(rows, []string{
			screen.Printable(r.Key.Namespace), screen.Or(screen.Printable(r.Key.Topic), "-"), screen.Or(screen.Printable(r.Key.Handler), "-"),
			screen.Printable(r.Key.Event), r.State.String(), handled, left,
		})
	}
	p.Table([]string{"NAMESPACE", "TOPIC", "HANDLER", "EVENT", "STATE", "HANDLED", "LEFT"}, rows)
}

// quote quotes an argument for a shell, where it needs it.
func quote(text string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+,", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !safe(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
