package cli

import (
	"testing"
	"time"
)

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "0s": 0, "36h": 36 * time.Hour, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour,
	} {
		if got, err := parseSpan(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "7", "d", "xd", "-1h", "1d-2h", "1h7d", "yesterday"} {
		if got, err := parseSpan(text); err == nil && (text == "" || got != 0) {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestMoments(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-12-03T02:04:05+01:00": time.Date(2026, 12, 3, 1, 4, 5, 0, time.UTC),
		"2026-12-03T02:04":          time.Date(2026, 12, 3, 2, 4, 0, 0, time.UTC),
		"2026-12-03 02:04:05Z":      time.Date(2026, 12, 3, 2, 4, 5, 0, time.UTC), // as the screens show it
		"2026-12-03":                time.Date(2026, 12, 3, 0, 0, 0, 0, time.UTC),
	} {
		var m moment
		if err := m.Set(text); err != nil || !m.Equal(want) {
			t.Errorf("%s: %v, %v", text, m, err)
		}
	}
	var m moment
	if err := m.Set("2h"); err != nil || time.Since(m.Time) < 2*time.Hour || time.Since(m.Time) > 3*time.Hour {
		t.Errorf("2h: %v, %v", m, err)
	}
	if err := m.Set("yesterday"); err == nil {
		t.Error("yesterday is no time")
	}
}
