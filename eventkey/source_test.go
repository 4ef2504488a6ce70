package eventkey_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
)

type nilPointerSource struct{ text string }

func (s *nilPointerSource) Key(string, *message.Message) (string, error) { return s.text, nil }
func (s *nilPointerSource) Validate() error {
	if s.text == "" {
		return errors.New("no text")
	}
	return nil
}

func TestValidateFindsAllFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		source eventkey.Source
		want   []string // none for a valid source
	}{
		{"nil", nil, []string{"is nil"}},
		{"nil func", eventkey.Func(nil), []string{"Func is nil"}},
		{"nil pointer", (*nilPointerSource)(nil), []string{"panicked"}},
		{"a user's own fault", &nilPointerSource{}, []string{"no text"}},
		{"a user's own source", &nilPointerSource{"x"}, nil},
		{"unnamed metadata", eventkey.Metadata(""), []string{"name of a metadata field"}},
		{"unnamed content", eventkey.Content("a", ""), []string{"empty metadata name"}},
		{"empty First", eventkey.First(), []string{"at least one"}},
		{"nested", eventkey.First(eventkey.Template("{a"), nil, eventkey.First(eventkey.Func(nil))),
			[]string{"source 1", "not closed", "source 2: the eventkey.Source is nil", "source 3", "Func is nil"}},
		{"good ones", eventkey.First(eventkey.Metadata("a"), eventkey.MessageUUID(), eventkey.Content(), eventkey.Template("{a}"),
			eventkey.Func(func(string, *message.Message) (string, error) { return "k", nil })), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := eventkey.Validate(tt.source)
			if (err != nil) != (len(tt.want) > 0) {
				t.Fatalf("Validate = %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
}

func TestSources(t *testing.T) {
	boom := errors.New("boom")
	fails := eventkey.Func(func(string, *message.Message) (string, error) { return "", boom })
	empty := eventkey.Func(func(string, *message.Message) (string, error) { return "", nil })
	wrapped := eventkey.Func(func(string, *message.Message) (string, error) {
		return "", errors.Join(errors.New("mine"), eventkey.ErrNoKey)
	})
	full := newMessage("p", "a", "1:2")
	bare := message.NewMessage("", nil)
	bare.Metadata = nil
	for _, tt := range []struct {
		name   string
		source eventkey.Source
		msg    *message.Message
		want   string
		err    error
		text   string
	}{
		{"metadata as it is", eventkey.Metadata("a"), full, "1:2", nil, ""},
		{"metadata missing", eventkey.Metadata("b"), full, "", eventkey.ErrNoKey, "b is missing"},
		{"nil metadata", eventkey.Metadata("a"), bare, "", eventkey.ErrNoKey, "a is missing"},
		{"UUID", eventkey.MessageUUID(), full, "uuid-7", nil, ""},
		{"no UUID", eventkey.MessageUUID(), bare, "", eventkey.ErrNoKey, "message UUID"},
		{"first skips no key", eventkey.First(eventkey.Metadata("b"), eventkey.Metadata("a")), full, "1:2", nil, ""},
		{"first takes the first", eventkey.First(eventkey.Metadata("a"), eventkey.MessageUUID()), full, "1:2", nil, ""},
		{"first skips an empty key", eventkey.First(empty, eventkey.MessageUUID()), full, "uuid-7", nil, ""},
		{"first skips a wrapped ErrNoKey", eventkey.First(wrapped, eventkey.MessageUUID()), full, "uuid-7", nil, ""},
		{"first stops at an error", eventkey.First(fails, eventkey.MessageUUID()), full, "", boom, "boom"},
		{"first stops at a payload that is no JSON", eventkey.First(eventkey.Template("{$.a}"), eventkey.MessageUUID()), full, "", nil, "not valid JSON"},
		{"first has none", eventkey.First(eventkey.Metadata("b"), eventkey.Template("{c}")), full, "", eventkey.ErrNoKey, "b, then c"},
		{"content of nothing", eventkey.Content("a"), bare, "", eventkey.ErrNoKey, "payload"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key, err := tt.source.Key("orders", tt.msg)
			if key != tt.want || (err != nil) != (tt.want == "") {
				t.Fatalf("got %q, %v, want %q", key, err, tt.want)
			}
			if err != nil && (tt.err != nil && !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.text)) {
				t.Fatalf("got %v, want %v with %q", err, tt.err, tt.text)
			}
		})
	}
}

func TestContentIsInjective(t *testing.T) {
	text := rapid.StringMatching(`[ab\x00\x01\x02]{0,3}`)
	type content struct {
		payload string
		md      map[string]string
	}
	draw := rapid.Custom(func(t *rapid.T) content {
		return content{text.Draw(t, "payload"), rapid.MapOf(rapid.SampledFrom([]string{"a", "ab", "b"}), text).Draw(t, "metadata")}
	})
	source := eventkey.Content("b", "a", "ab", "a")
	rapid.Check(t, func(t *rapid.T) {
		key := func(c content) string {
			msg := newMessage(c.payload, "ignored", rapid.String().Draw(t, "ignored"))
			maps.Copy(msg.Metadata, c.md)
			key, err := source.Key("orders", msg)
			if err != nil {
				t.Skip("nothing in it")
			}
			return key
		}
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if (key(a) == key(b)) != (a.payload == b.payload && maps.Equal(a.md, b.md)) {
			t.Fatalf("%q and %q give %q and %q", a, b, key(a), key(b))
		}
	})
}

// The cases that a digest of the concatenation would get wrong.
func TestContentIsFramed(t *testing.T) {
	key := func(names []string, payload string, md ...string) string {
		key, err := eventkey.Content(names...).Key("orders", newMessage(payload, md...))
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	names := []string{"a", "b"}
	for _, pair := range [][2]string{
		{key(names, "x", "a", "1"), key(names, "xa1")},
		{key(names, "x", "a", "1"), key(names, "xa", "a", "1")},
		{key(names, "x", "a", "b"), key(names, "x", "a", "", "b", "")},
		{key(names, "x", "a", ""), key(names, "x")},
		{key(names, "x", "a", "1"), key(names, "x", "b", "1")},
	} {
		if pair[0] == pair[1] {
			t.Errorf("different content, one key %q", pair[0])
		}
	}
	if a, b := key([]string{"a", "b"}, "x", "a", "1"), key([]string{"b", "a", "a"}, "x", "a", "1"); a != b {
		t.Errorf("the order of the names matters: %q and %q", a, b)
	}
	// Keys stand in streams and records: a change needs a migration.
	if got, want := key(names, "x", "a", "1"), "sha256:ni9_ar7mkJ7dJHM_Q-wzQ5RUgKEBqmlOYI4NIbCV7Yc"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckKey(t *testing.T) {
	for _, tt := range []struct {
		key  string
		want string // in the error; "" for a good key
	}{
		{"pay:1001:p9001", ""},
		{strings.Repeat("k", eventkey.MaxKeyBytes), ""},
		{strings.Repeat("k", eventkey.MaxKeyBytes+1), "1025 bytes"},
		{strings.Repeat("\xff", 2048), "2048 bytes"},
		{"a\xff", "not valid UTF-8"},
		{"", "empty"},
	} {
		err := eventkey.CheckKey(tt.key)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("CheckKey(%.10q) = %v, want %q", tt.key, err, tt.want)
		}
		if errors.Is(err, eventkey.ErrNoKey) != (tt.key == "") {
			t.Errorf("CheckKey(%.10q) = %v", tt.key, err)
		}
	}
}

func TestSourcesLeaveTheMessageAlone(t *testing.T) {
	msg := newMessage(benchPayload, "a", "1")
	want := msg.Copy()
	for _, source := range []eventkey.Source{eventkey.Template("{a}:{$.order_id}"), eventkey.Content("a"), eventkey.Metadata("a"), eventkey.MessageUUID()} {
		if _, err := source.Key("orders", msg); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []eventkey.Fingerprint{eventkey.Payload(), eventkey.JSONWithout("order_id"), eventkey.JSONOnly("order_id")} {
		if _, err := f.Sum(msg); err != nil {
			t.Fatal(err)
		}
	}
	if !msg.Equals(want) || !slices.Equal(msg.Payload, want.Payload) {
		t.Errorf("changed to %v", msg)
	}
}
