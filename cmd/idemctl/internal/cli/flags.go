package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
)

// span is a flag for a duration, which may have days: 36h, 7d, 1d12h.
type span time.Duration

// Set implements pflag.Value.
func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	*s = span(d)
	return err
}

// String implements pflag.Value.
func (s *span) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Type implements pflag.Value.
func (s *span) Type() string { return "duration" }

func parseSpan(text string) (time.Duration, error) {
	days, rest, has := strings.Cut(text, "d")
	if !has {
		days, rest = "", text
	}
	var sum time.Duration
	if has {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration; write 90s, 30m, 36h, 7d or 1d12h", text)
		}
		sum = time.Duration(n * 24 * float64(time.Hour))
	}
	if rest != "" || !has {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is no duration; write 90s, 30m, 36h, 7d or 1d12h", text)
		}
		sum += d
	}
	if sum < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	return sum, nil
}

// moment is a flag for a time: absolute, or as how long ago that is.
type moment struct{ time.Time }

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	if d, err := parseSpan(text); err == nil {
		m.Time = time.Now().Add(-d)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			m.Time = t
			return nil
		}
	}
	return fmt.Errorf("%q is no time; write how long ago it was (2h, 3d), or 2006-01-02T15:04:05Z (UTC)", text)
}

// inOrder reports that nothing lies between two times of a command line.
func inOrder(fromFlag string, from moment, toFlag string, to moment) error {
	if from.IsZero() || to.IsZero() || from.Before(to.Time) {
		return nil
	}
	return exit.Errorf(exit.Usage, "%s %s is not before %s %s", fromFlag, screen.Time(from.Time), toFlag, screen.Time(to.Time))
}

// String implements pflag.Value.
func (m *moment) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Format(time.RFC3339)
}

// Type implements pflag.Value.
func (m *moment) Type() string { return "time" }
