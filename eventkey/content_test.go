package eventkey_test

import (
	"errors"
	"testing"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// JSON that is written in another way is the same event for CanonicalJSON, and another
// one for Content.
func TestReorderedJSONIsAnotherEvent(t *testing.T) {
	const doc = `{"amount":5.0,"items":[{"sku":"a/b","n":1}],"id":"caf\u00e9"}`
	for name, tt := range map[string]struct {
		payload string
		same    bool
	}{
		"the same":                   {doc, true},
		"names in another order":     {`{"id":"caf\u00e9","items":[{"n":1,"sku":"a/b"}],"amount":5.0}`, true},
		"white space":                {"{ \"amount\" : 5.0,\n\t\"items\":[ {\"sku\":\"a/b\",\"n\":1} ],\"id\":\"caf\\u00e9\"}\n", true},
		"escapes":                    {`{"amount":5.0,"items":[{"sku":"a\/b","n":1}],"i\u0064":"café"}`, true},
		"a byte order mark":          {"\ufeff" + doc, true},
		"another number":             {`{"amount":5.1,"items":[{"sku":"a/b","n":1}],"id":"caf\u00e9"}`, false},
		"a number written otherwise": {`{"amount":5,"items":[{"sku":"a/b","n":1}],"id":"caf\u00e9"}`, false},
		"a string for a number":      {`{"amount":"5.0","items":[{"sku":"a/b","n":1}],"id":"caf\u00e9"}`, false},
		"one name more":              {`{"amount":5.0,"items":[{"sku":"a/b","n":1}],"id":"caf\u00e9","x":null}`, false},
	} {
		for source, wantSame := range map[string]bool{"canonical": tt.same, "content": tt.payload == doc} {
			s := map[string]eventkey.Source{"canonical": eventkey.CanonicalJSON("tenant"), "content": eventkey.Content("tenant")}[source]
			a, errA := s.Key("t", newMessage(doc, "tenant", "eu"))
			b, errB := s.Key("t", newMessage(tt.payload, "tenant", "eu"))
			if errA != nil || errB != nil || (a == b) != wantSame {
				t.Errorf("%s, %s: %q, %v and %q, %v; want the same: %v", source, name, a, errA, b, errB, wantSame)
			}
		}
	}
	canonical := eventkey.CanonicalJSON("tenant")
	eu, _ := canonical.Key("t", newMessage(doc, "tenant", "eu"))
	for _, md := range [][]string{nil, {"tenant", ""}, {"tenant", "us"}} {
		if other, err := canonical.Key("t", newMessage(doc, md...)); err != nil || other == eu {
			t.Errorf("metadata %v: %q, %v", md, other, err)
		}
	}
	for payload, want := range map[string]error{
		"": eventkey.ErrNoKey, " \n": eventkey.ErrNoKey, "\ufeff": eventkey.ErrNoKey,
		"no": eventkey.ErrInvalidMessage, `{"a":1,"a":1}`: eventkey.ErrInvalidMessage, "{} {}": eventkey.ErrInvalidMessage,
	} {
		if key, err := canonical.Key("t", newMessage(payload, "tenant", "eu")); !errors.Is(err, want) || key != "" {
			t.Errorf("%q: %q, %v, want %v", payload, key, err, want)
		}
	}
	if err := eventkey.Validate(eventkey.CanonicalJSON("")); err == nil {
		t.Error("an empty metadata name is accepted")
	}
}

// Keys are compared by servers and stored with records: a change needs a migration.
func TestGoldenContentKeys(t *testing.T) {
	for want, source := range map[string]eventkey.Source{
		"sha256:AVtCPLT9jZsoqSQXGxRK6klx035TzeExEhwOYwqXSks":      eventkey.Content("tenant"),
		"json-sha256:ULXwgCPBykYyoLphRbwETugf4hLprttgO77btHWQKJI": eventkey.CanonicalJSON("tenant"),
	} {
		if got, err := source.Key("t", newMessage(`{"b": 1e3, "a": ["é\n", null]}`, "tenant", "eu")); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}
