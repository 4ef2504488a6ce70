package inspect

import (
	"strings"
	"testing"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// An entry that can't be compared as others hides duplicates: it is named, with what to do about it,
// before all else.
func TestWhatCouldNotBeCompared(t *testing.T) {
	plain := entries.Entry{ID: "7-0", Values: map[string]any{wire.FieldUUID: "u", wire.FieldPayload: `{"id":1}`}}
	for _, c := range []struct {
		name    string
		source  eventkey.Source
		entries []entries.Entry
		first   string
	}{
		{"no key", nil, []entries.Entry{entry(9, "a", ""), plain}, "1 entry has no key of this library: written past it"},
		{"no key, several", nil, []entries.Entry{plain, plain}, "2 entries have no key of this library"},
		{"a source that finds nothing", eventkey.Template("pay:{$.nope}"), []entries.Entry{plain}, "The source of keys makes none for any of the entries that bring none"},
		{"a source that finds some", eventkey.Template("pay:{$.id}"),
			[]entries.Entry{plain, {ID: "6-0", Values: map[string]any{wire.FieldUUID: "u", wire.FieldPayload: "{}"}}}, "1 entry has no key, and the source of keys finds none"},
		{"a source that nobody needs", eventkey.Template("pay:{$.id}"), []entries.Entry{entry(9, "a", "")}, "No event is there twice among the 1 entry"},
	} {
		s := newScanning(Window{})
		s.Key = c.source
		for _, e := range c.entries {
			s.add(e)
		}
		d := s.result()
		if !strings.HasPrefix(d.Findings[0], c.first) || d.Keyless > 0 && !strings.Contains(d.Findings[0], d.KeylessIDs[0]) {
			t.Errorf("%s: %q", c.name, d.Findings)
		}
		if needless := strings.Contains(strings.Join(d.Findings, ""), "was not needed"); needless != (c.name == "a source that nobody needs") {
			t.Errorf("%s: %q", c.name, d.Findings)
		}
	}
	var o odd
	for range 12 {
		o.add("1-0")
	}
	if text := listed(o.ids, o.n); o.n != 12 || !strings.HasSuffix(text, " and 2 more") {
		t.Errorf("%s of %d", text, o.n)
	}
}
