package eventkey_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
)

func newMessage(payload string, md ...string) *message.Message {
	msg := message.NewMessage("uuid-7", []byte(payload))
	for i := 0; i < len(md); i += 2 {
		msg.Metadata.Set(md[i], md[i+1])
	}
	return msg
}

func TestTemplate(t *testing.T) {
	const payload = `{"order_id": 1001, "payment_id": "p9001", "big": 12345678901234567890123, "exp": 1e3, "float": 1.50,
		"yes": true, "nested": {"to": [{"x": "deep"}, "second"]}, "with": "a:b%c", "@id": "ld", "es\u0063aped": "caf\u00e9 \ud83d\ude00"}`
	for _, tt := range []struct{ template, want string }{
		{"pay:{$.order_id}:{$.payment_id}", "pay:1001:p9001"},
		{"{tenant}/{$.order_id}", "t%3A1/1001"},
		{"{tenant}", "t%3A1"},
		{"{a.dotted.name}", "dotted"},
		{"{$.big}", "12345678901234567890123"},
		{"{$.exp}", "1e3"},
		{"{$.float}", "1.50"},
		{"{$.yes}", "true"},
		{"{$.nested.to[0].x}", "deep"},
		{"{$.nested.to[1]}", "second"},
		{"{$.with}", "a%3Ab%25c"},
		{"{$.@id}", "ld"},
		{"{$.escaped}", "café 😀"},
		{"{{{tenant}}}", "{t%3A1}"},
		{"{{x}}{tenant}", "{x}t%3A1"},
		{"{$.order_id}-{$.order_id}", "1001-1001"},
		{"{dash}:{tenant}", "a-b:t%3A1"},
		{"{dash}-{tenant}", "a%2Db-t%3A1"},
		{"{dash} - {tenant}", "a%2Db - t%3A1"},
		{"{dash}%2D_{under}", "a-b%2D_x%5Fy"},
		{"{$.yes}.{$.order_id}.{$.exp}.{$.big}.{$.float}.{$.with}.{$.@id}.{$.payment_id}.{$.nested.to[1]}",
			"true.1001.1e3.12345678901234567890123.1%2E50.a%3Ab%25c.ld.p9001.second"},
	} {
		t.Run(tt.template, func(t *testing.T) {
			source := eventkey.Template(tt.template)
			if err := eventkey.Validate(source); err != nil {
				t.Fatal(err)
			}
			got, err := source.Key("orders", newMessage(payload, "tenant", "t:1", "a.dotted.name", "dotted", "dash", "a-b", "under", "x_y"))
			if err != nil || got != tt.want {
				t.Fatalf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
	if key, err := eventkey.Template("{$[1].a}").Key("t", newMessage(`[{"a":1},{"a":2}]`)); key != "2" || err != nil {
		t.Errorf("array as root: %q, %v", key, err)
	}
}

func TestTemplateFaults(t *testing.T) {
	for _, tt := range []struct{ template, want string }{
		{"", "no valid field"},
		{"pay", "no valid field"},
		{"{{a}}", "no valid field"},
		{"pay:{a", "the { at byte 4 is not closed"},
		{"pay:{a:{b}", "the { at byte 4 is not closed"},
		{"pay:{", "the { at byte 4 is not closed"},
		{"pay:a}", "the } at byte 5 closes nothing"},
		{"pay:{}", "has no name"},
		{"{ a }", "unexpected ' '"},
		{"{a|upper}", "unexpected '|'"},
		{"{a:05d}", "unexpected ':'"},
		{"{%s}", "unexpected '%'"},
		{"{$}", "path is empty"},
		{"{$a}", "a path is made of"},
		{"{$.}", "a name is missing"},
		{"{$.a..b}", "a name is missing"},
		{"{$.a.}", "a name is missing"},
		{"{$.a[}", "unclosed ["},
		{"{$.a[]}", "is no index"},
		{"{$.a[-1]}", "is no index"},
		{"{$.a[01]}", "is no index"},
		{"{$.a[*]}", "needs one value"},
		{"{$.a[99999999999999999999]}", "is no index"},
		{"{$.a[0]b}", "a path is made of"},
		{"{$.a b}", "unexpected ' '"},
		{"{a}{b}", "nothing separates {a} from {b}"},
		{"{a}x{b}", "nothing separates {a} from {b}"},
		{"{a}%{b}", "nothing separates {a} from {b}"},
		{"{a}é{$.b}", "nothing separates {a} from {$.b}"},
		{"{a}:\xff", "not valid UTF-8"},
		{"{a\xff}", "not valid UTF-8"},
		{"{$.a\xff}", "not valid UTF-8"},
		{strings.Repeat("{a}:", 65), "at most 64 fields"},
	} {
		t.Run(tt.template, func(t *testing.T) {
			source := eventkey.Template(tt.template)
			err := eventkey.Validate(source)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("Validate = %v, want %q in it", err, tt.want)
			}
			if key, err := source.Key("orders", newMessage(`{"a":1}`, "a", "1")); err == nil || errors.Is(err, eventkey.ErrNoKey) {
				t.Fatalf("a faulty template gave %q, %v", key, err)
			}
		})
	}

	err := eventkey.Validate(eventkey.Template("{a}{b}:{}:{c d}:{e"))
	for _, want := range []string{"nothing separates", "has no name", "unexpected ' '", "not closed"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("all faults at once: %v lacks %q", err, want)
		}
	}
}

// The error names the field that is missing or empty.
func TestMissingFieldIsNamed(t *testing.T) {
	for _, tt := range []struct{ template, payload, field string }{
		{"pay:{tenant}:{$.order_id}", `{"order_id":1}`, "tenant"},
		{"pay:{empty}", `{}`, "empty"},
		{"pay:{$.order_id}", `{}`, "$.order_id"},
		{"pay:{$.order_id}", `{"order_id":""}`, "$.order_id"},
		{"pay:{$.order_id}", `{"order_id":null}`, "$.order_id"},
		{"pay:{$.order_id}", `{"Order_ID":1}`, "$.order_id"},
		{"pay:{$.a.b}", `{"a":"x"}`, "$.a.b"},
		{"pay:{$.a.b}", `{"a":null}`, "$.a.b"},
		{"pay:{$.a.b}", `{"a":[]}`, "$.a.b"},
		{"pay:{$.a[2]}", `{"a":[0,1]}`, "$.a[2]"},
		{"pay:{$.a[0]}", `{"a":{"0":1}}`, "$.a[0]"},
		{"pay:{$.a}", `7`, "$.a"},
		{"pay:{$.a}", ``, "$.a"},
		{"pay:{$.a}", " \n", "$.a"},
	} {
		t.Run(tt.template+" "+tt.payload, func(t *testing.T) {
			key, err := eventkey.Template(tt.template).Key("orders", newMessage(tt.payload, "empty", ""))
			var e *eventkey.NoKeyError
			if key != "" || !errors.Is(err, eventkey.ErrNoKey) || !errors.As(err, &e) {
				t.Fatalf("got %q, %v", key, err)
			}
			if e.Field != tt.field || e.Topic != "orders" || e.UUID != "uuid-7" {
				t.Errorf("error says %+v", e)
			}
			hint := "" // a field of the payload, written without $.
			if !strings.HasPrefix(tt.field, "$.") {
				hint = "in the metadata (a field of the payload is written {$." + tt.field + "})"
			}
			for _, want := range []string{tt.field, "uuid-7", "orders", hint} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func TestUnusablePayload(t *testing.T) {
	for _, tt := range []struct{ payload, want string }{
		{`{"a":{"b":1}}`, "it is an object"},
		{`{"a":[1]}`, "it is an array"},
		{`{"a":1,"a":1}`, "duplicate name"},
		{`{"a":1,"\u0061":2}`, "duplicate name"},
		{`{"a":1`, "not valid JSON"},
		{`{"a":1}}`, "not valid JSON"},
		{`{"a":1, b}`, "not valid JSON"},
		{`not json`, "not valid JSON"},
		{"{\"a\":\"\xff\"}", "not valid UTF-8"},
		{`{"a":"\ud800"}`, "not valid UTF-8"},
		{`{"x":{"y":1},"x":{"y":2},"a":1}`, ""}, // twice, but not on the way to a field
		{"{\"a\":1,\"x\":\"\xff\"}", ""},
	} {
		t.Run(tt.payload, func(t *testing.T) {
			key, err := eventkey.Template("{$.a}").Key("orders", newMessage(tt.payload))
			if tt.want == "" {
				if err != nil || key != "1" {
					t.Fatalf("got %q, %v", key, err)
				}
				return
			}
			if err == nil || errors.Is(err, eventkey.ErrNoKey) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %q, %v, want %q", key, err, tt.want)
			}
			if !strings.Contains(err.Error(), "$.a") || !strings.Contains(err.Error(), "uuid-7") {
				t.Errorf("%q names neither field nor message", err)
			}
		})
	}
	if _, err := eventkey.Template("{a}").Key("orders", newMessage("", "a", "\xff")); err == nil || errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("metadata that is not UTF-8: %v", err)
	}
}

// value draws non-empty UTF-8 strings, often made of what templates are made of.
func value() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[ab:%/\-.{}23A5]{1,6}`),
		rapid.StringN(1, 10, -1),
	)
}

func TestJoinIsInjective(t *testing.T) {
	parts := rapid.SliceOfN(rapid.OneOf(value(), rapid.Just("")), 1, 5)
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		if (eventkey.Join(a...) == eventkey.Join(b...)) != slices.Equal(a, b) {
			t.Fatalf("%q and %q give %q and %q", a, b, eventkey.Join(a...), eventkey.Join(b...))
		}
	})
}

// Values that contain the separator.
func TestValuesWithTheSeparator(t *testing.T) {
	for _, pair := range [][2][]string{
		{{"a:b", "c"}, {"a", "b:c"}},
		{{"a%3Ab", "c"}, {"a:b", "c"}},
		{{"a", ""}, {"a"}},
		{{"", "a"}, {"a", ""}},
	} {
		if x, y := eventkey.Join(pair[0]...), eventkey.Join(pair[1]...); x == y {
			t.Errorf("%q and %q are both %q", pair[0], pair[1], x)
		}
	}
}

func TestTemplateEqualsJoin(t *testing.T) {
	inMetadata, inPayload := eventkey.Template("pay:{a}:{b}"), eventkey.Template("pay:{$.a}:{$.b}")
	rapid.Check(t, func(t *rapid.T) {
		a, b := value().Draw(t, "a"), value().Draw(t, "b")
		payload, err := json.Marshal(map[string]string{"a": a, "b": b})
		if err != nil {
			t.Fatal(err)
		}
		want := eventkey.Join("pay", a, b)
		for _, source := range []eventkey.Source{inMetadata, inPayload} {
			if got, err := source.Key("orders", newMessage(string(payload), "a", a, "b", b)); err != nil || got != want {
				t.Fatalf("%v: got %q, %v, Join has %q", source, got, err, want)
			}
		}
	})
}

// Every valid template, not only those with colons, gives different keys for
// different values.
func TestTemplateIsInjective(t *testing.T) {
	literal := rapid.StringMatching(`[a:%/.\-_2A]{0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "fields")
		text := literal.Draw(t, "literal")
		for i := range n {
			text += fmt.Sprintf(rapid.SampledFrom([]string{"{f%d}", "{$.f%d}"}).Draw(t, "field"), i) + literal.Draw(t, "literal")
		}
		source := eventkey.Template(text)
		if eventkey.Validate(source) != nil {
			t.Skip("nothing separates two fields")
		}
		key := func(values []string) string {
			md, payload := []string{}, map[string]string{}
			for i, v := range values {
				name := fmt.Sprintf("f%d", i)
				md, payload[name] = append(md, name, v), v
			}
			text, err := json.Marshal(payload)
			if err != nil {
				t.Fatal(err)
			}
			key, err := source.Key("orders", newMessage(string(text), md...))
			if err != nil {
				t.Fatal(err)
			}
			return key
		}
		values := rapid.SliceOfN(rapid.StringMatching(`[a:%/.\-_2A]{1,4}`), n, n)
		a, b := values.Draw(t, "a"), values.Draw(t, "b")
		if (key(a) == key(b)) != slices.Equal(a, b) {
			t.Fatalf("template %q: %q and %q give %q and %q", text, a, b, key(a), key(b))
		}
	})
}

// combinations are all different concatenations of shortest to longest fragments.
func combinations(fragments []string, shortest, longest int) []string {
	seen := map[string]bool{}
	var all []string
	var add func(prefix string, n int)
	add = func(prefix string, n int) {
		if n >= shortest && !seen[prefix] {
			seen[prefix] = true
			all = append(all, prefix)
		}
		if n < longest {
			for _, f := range fragments {
				add(prefix+f, n+1)
			}
		}
	}
	add("", 0)
	return all
}

// Values that are made of what the template and the escapes are made of, all pairs.
func TestTemplateOfHostileValues(t *testing.T) {
	for _, text := range []string{"{a}:{b}", "{a}-{b}", "a-{a}-a{b}", "{a}a-:{b}", "{a}%-%{b}", "{a}}}{{{b}", "{a}2D-{b}a"} {
		source := eventkey.Template(text)
		if err := eventkey.Validate(source); err != nil {
			t.Fatal(err)
		}
		values := combinations([]string{"a", "-", ":", "%", "2D", "3A", "{", "}"}, 1, 2)
		owner := make(map[string][2]string)
		for _, a := range values {
			for _, b := range values {
				key, err := source.Key("orders", newMessage("", "a", a, "b", b))
				if err != nil {
					t.Fatal(err)
				}
				if other, taken := owner[key]; taken {
					t.Fatalf("template %q: %q and %q share the key %q", text, other, [2]string{a, b}, key)
				}
				owner[key] = [2]string{a, b}
			}
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, text := range []string{"pay:{a}:{$.b}", "{", "}", "{{}}", "{$.a[0].b}-{c}", "{a}{b}", "{\xff}"} {
		f.Add(text, `{"a":1,"b":"x"}`)
	}
	f.Fuzz(func(t *testing.T, text, payload string) {
		source := eventkey.Template(text)
		key, err := source.Key("orders", newMessage(payload, "a", "1", "c", "2"))
		if (key == "") == (err == nil) {
			t.Fatalf("got %q, %v", key, err)
		}
		if eventkey.Validate(source) != nil && err == nil {
			t.Fatalf("a faulty template gave %q", key)
		}
		if err == nil && !utf8.ValidString(key) {
			t.Fatalf("key %q is not UTF-8", key)
		}
	})
}

// FuzzPayload compares what a template finds with what encoding/json finds.
func FuzzPayload(f *testing.F) {
	for _, payload := range []string{`{"a":"x"}`, `{"a":1e3}`, `{"a":null}`, `{"a":{"b":1}}`, `{"\u0061":true}`, `[1]`, `{"a":"\ud83d\ude00"}`} {
		f.Add(payload)
	}
	source := eventkey.Template("{$.a}")
	f.Fuzz(func(t *testing.T, payload string) {
		key, err := source.Key("orders", newMessage(payload))
		if err != nil {
			return
		}
		d := json.NewDecoder(strings.NewReader(payload))
		d.UseNumber()
		var object map[string]any
		if err := d.Decode(&object); err != nil {
			t.Fatalf("key %q from %q, which encoding/json refuses: %v", key, payload, err)
		}
		if want := eventkey.Join(fmt.Sprint(object["a"])); key != want {
			t.Fatalf("key %q from %q, want %q", key, payload, want)
		}
	})
}

const benchPayload = `{"event":"payment_received","order_id":"1001","payment_id":"p9001","amount":{"value":"129.90","currency":"EUR"},` +
	`"customer":"c-88172","received_at":"2025-11-29T14:46:00.123Z","tags":["web","retry"]}`

func BenchmarkTemplate(b *testing.B) {
	for _, tt := range []struct{ name, template string }{
		{"metadata", "pay:{tenant}"},
		{"payload", "pay:{$.order_id}:{$.payment_id}"},
		{"both", "pay:{tenant}:{$.order_id}:{$.amount.currency}"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			source, msg := eventkey.Template(tt.template), newMessage(benchPayload, "tenant", "eu-1")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := source.Key("orders", msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("encoding/json into a struct, for comparison", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v struct {
				OrderID   string `json:"order_id"`
				PaymentID string `json:"payment_id"`
			}
			if err := json.Unmarshal([]byte(benchPayload), &v); err != nil {
				b.Fatal(err)
			}
			_ = eventkey.Join("pay", v.OrderID, v.PaymentID)
		}
	})
}
