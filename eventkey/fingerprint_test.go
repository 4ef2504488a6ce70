package eventkey_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
)

func TestFingerprints(t *testing.T) {
	const base = `{"id":1,"amount":5.0,"received_at":"10:00","trace":{"span":"a","id":"t"},"items":[{"sku":"x","at":1},{"sku":"y"}]}`
	without := eventkey.JSONWithout("received_at", "$.trace.span", "items[0].at", "list[1]")
	only := eventkey.JSONOnly("id", "items[0].sku", "trace.id", "maybe")
	for _, tt := range []struct {
		name       string
		a, b       string
		payload    bool // equal for Payload
		without    string
		only       string
		difference string // for Payload
	}{
		{"same bytes", base, base, true, "", "", ""},
		{"a volatile field", base, strings.Replace(base, "10:00", "10:05", 1), false, "", "", "$.received_at"},
		{"a volatile field left out", base, strings.Replace(base, `"received_at":"10:00",`, "", 1), false, "", "", "$.received_at"},
		{"a volatile nested field", base, strings.Replace(base, `"span":"a"`, `"span":"b"`, 1), false, "", "", "$.trace.span"},
		{"a volatile element's field", base, strings.Replace(base, `"at":1`, `"at":2`, 1), false, "", "", "$.items[0].at"},
		{"white space", base, strings.ReplaceAll(base, ",", " ,\n"), false, "", "", ""},
		{"order of names", `{"id":1,"b":2}`, `{"b":2,"id":1}`, false, "", "", ""},
		{"an escape", `{"id":"a"}`, `{"id":"\u0061"}`, false, "", "", ""},
		{"another amount", base, strings.Replace(base, "5.0", "6.0", 1), false, "$.amount", "", "$.amount"},
		{"a number written differently", base, strings.Replace(base, "5.0", "5", 1), false, "$.amount", "", "$.amount"},
		{"another id", base, strings.Replace(base, `"id":1`, `"id":2`, 1), false, "$.id", "$.id", "$.id"},
		{"a string for a number", `{"id":1}`, `{"id":"1"}`, false, "$.id", "$.id", "$.id"},
		{"one more element", base, strings.Replace(base, `{"sku":"y"}`, `{"sku":"y"},1`, 1), false, "$.items[2]", "", "$.items[2]"},
		{"an excluded element", `{"id":1,"list":[1,2,3]}`, `{"id":1,"list":[1,9,3]}`, false, "", "", "$.list[1]"},
		{"elements keep their place", `{"id":1,"list":[1,2,3]}`, `{"id":1,"list":[1,2,4]}`, false, "$.list[2]", "", "$.list[2]"},
		{"missing and null", `{"id":1}`, `{"id":1,"maybe":null}`, false, "$.maybe", "$.maybe", "$.maybe"},
		{"an odd name", `{"id":1,"a b":1}`, `{"id":1,"a b":2}`, false, `$["a b"]`, "", `$["a b"]`},
		{"the first of several, sorted", `{"id":1,"z":1,"b":1}`, `{"z":2,"id":2,"b":2}`, false, "$.b", "$.id", "$.b"},
		{"another kind", `{"id":1,"x":{}}`, `{"id":1,"x":[]}`, false, "$.x", "", "$.x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range []struct {
				name  string
				f     eventkey.Fingerprint
				equal bool
				diff  string
			}{
				{"Payload", eventkey.Payload(), tt.payload, tt.difference},
				{"nil", nil, tt.payload, tt.difference},
				{"JSONWithout", without, tt.without == "", tt.without},
				{"JSONOnly", only, tt.only == "", tt.only},
			} {
				if err := identity.ValidateFingerprint(f.f); err != nil {
					t.Fatal(err)
				}
				a, errA := identity.Sum(f.f, newMessage(tt.a))
				b, errB := identity.Sum(f.f, newMessage(tt.b))
				if errA != nil || errB != nil {
					t.Fatal(f.name, errA, errB)
				}
				if (string(a) == string(b)) != f.equal || len(a) != 32 {
					t.Errorf("%s: %x and %x, want equal=%v", f.name, a, b, f.equal)
				}
				for _, diff := range []string{identity.FirstDifference(f.f, []byte(tt.a), []byte(tt.b)), identity.FirstDifference(f.f, []byte(tt.b), []byte(tt.a))} {
					if diff != f.diff {
						t.Errorf("%s: difference %q, want %q", f.name, diff, f.diff)
					}
				}
			}
		})
	}
}

func TestFingerprintOfOtherPayloads(t *testing.T) {
	sum := func(f eventkey.Fingerprint, payload string) string {
		sum, err := f.Sum(newMessage(payload))
		if err != nil {
			t.Fatal(err)
		}
		return string(sum)
	}
	without := eventkey.JSONWithout("at")
	for _, pair := range [][2]string{{"not json", "not  json"}, {`{"a":1,"a":2}`, `{"a":2,"a":1}`}, {"", " "}, {`{"at":1`, `{"at":2`}} {
		if sum(without, pair[0]) == sum(without, pair[1]) {
			t.Errorf("%q and %q are the same", pair[0], pair[1])
		}
		if d := identity.FirstDifference(without, []byte(pair[0]), []byte(pair[1])); d != "" {
			t.Errorf("difference %q of what is no JSON", d)
		}
	}
	// "[,2]" is how [1,2] without its first element is written in canonical form.
	if element := eventkey.JSONWithout("[0]"); sum(element, "[1,2]") == sum(element, "[,2]") {
		t.Error("a payload that is not JSON passes for one that is")
	}
	if first, again := sum(without, "not json"), sum(without, "not json"); first != again {
		t.Error("the same bytes differ")
	}
	only := eventkey.JSONOnly("id")
	for _, payload := range []string{"", "not json", `{"x":1}`, `{"id":1,"id":1}`, `{"id":{"a":1,"a":2}}`} {
		if _, err := only.Sum(newMessage(payload)); err == nil {
			t.Errorf("JSONOnly compares nothing in %q without an error", payload)
		}
	}
	if d := identity.FirstDifference(nil, []byte("1"), []byte("2")); d != "$" {
		t.Errorf("difference of whole payloads is %q", d)
	}
}

func TestFingerprintFaults(t *testing.T) {
	panics := eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { panic("boom") })
	for name, f := range map[string]eventkey.Fingerprint{
		"no path":      eventkey.JSONWithout(),
		"no only path": eventkey.JSONOnly(),
		"empty":        eventkey.JSONOnly(""),
		"root":         eventkey.JSONWithout("$"),
		"bracket":      eventkey.JSONWithout("a[", "ok"),
		"space":        eventkey.JSONOnly("a b"),
		"wildcard":     eventkey.JSONOnly("a.*"),
		"too many":     eventkey.JSONOnly(strings.Split(strings.Repeat("a,", 64)+"a", ",")...),
		"nil func":     eventkey.FingerprintFunc(nil),
	} {
		if identity.ValidateFingerprint(f) == nil {
			t.Errorf("%s: no fault found", name)
		}
		if _, err := identity.Sum(f, newMessage(`{"a":1}`)); err == nil {
			t.Errorf("%s: a faulty fingerprint gave a sum", name)
		}
	}
	if err := identity.ValidateFingerprint(eventkey.JSONWithout("a..b", "c d")); err == nil ||
		!strings.Contains(err.Error(), "a..b") || !strings.Contains(err.Error(), "c d") {
		t.Errorf("all faults at once: %v", err)
	}
	if _, err := identity.Sum(panics, newMessage("")); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("a panic became %v", err)
	}
	boom := errors.New("boom")
	fails := eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { return nil, boom })
	if _, err := identity.Sum(fails, newMessage("")); !errors.Is(err, boom) || !strings.Contains(err.Error(), "uuid-7") {
		t.Errorf("got %v", err)
	}
}

// jsonValues draws JSON values as Go values.
func jsonValues(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.IntRange(-3, 3).AsAny(), rapid.StringMatching(`[a"\\\n]{0,2}`).AsAny(),
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(jsonValues(depth-1), 0, 3).AsAny(),
		rapid.MapOfN(rapid.StringMatching(`[ab"]{0,2}`), jsonValues(depth-1), 0, 3).AsAny())...)
}

// The fingerprint, the difference and encoding/json have one idea of equality.
func TestFingerprintIsEqualityOfJSON(t *testing.T) {
	f := eventkey.JSONWithout("nothing_is_called_so")
	rapid.Check(t, func(t *rapid.T) {
		valueA, valueB := jsonValues(3).Draw(t, "a"), jsonValues(3).Draw(t, "b")
		if rapid.Bool().Draw(t, "same") {
			valueB = valueA
		}
		a, err := json.Marshal(valueA) // sorted names
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.MarshalIndent(valueB, " ", "\t")
		if err != nil {
			t.Fatal(err)
		}
		compactB, err := json.Marshal(valueB)
		if err != nil {
			t.Fatal(err)
		}
		sumA, errA := f.Sum(newMessage(string(a)))
		sumB, errB := f.Sum(newMessage(string(b)))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		equal := string(a) == string(compactB)
		if (string(sumA) == string(sumB)) != equal {
			t.Fatalf("%s and %s: equal sums=%v", a, b, !equal)
		}
		if diff := identity.FirstDifference(f, a, b); (diff == "") != equal {
			t.Fatalf("%s and %s: difference %q", a, b, diff)
		}
		canonical := eventkey.CanonicalJSON()
		keyA, errA := canonical.Key("t", newMessage(string(a)))
		keyB, errB := canonical.Key("t", newMessage(string(b)))
		if errA != nil || errB != nil || (keyA == keyB) != equal {
			t.Fatalf("%s and %s: canonical keys %q, %v and %q, %v", a, b, keyA, errA, keyB, errB)
		}
	})
}

// Sums are stored with keys: a change needs a migration.
func TestGoldenFingerprints(t *testing.T) {
	for want, f := range map[string]eventkey.Fingerprint{
		"WnsBGDzfPYcBd2-9_pXsXZSEFW8V2xnGZcaJn4i6yB4": eventkey.Payload(),
		"ivF9ISfbgQv3RzAizF6xuhdJdvndNhfAlFLlZxPvniw": eventkey.JSONWithout("at"),
		"hYSQzHu_LjSmwRatrBqDcThAH4W7IVoUiVxieHkuzCA": eventkey.JSONOnly("id", "b.c", "missing"),
	} {
		sum, err := f.Sum(newMessage(`{"id": 1e3, "b": {"c": ["é\n", null]}, "at": 1}`))
		if got := base64.RawURLEncoding.EncodeToString(sum); err != nil || got != want {
			t.Errorf("%#v: got %q, %v, want %q", f, got, err, want)
		}
	}
}

func BenchmarkFingerprint(b *testing.B) {
	msg := newMessage(benchPayload)
	for name, f := range map[string]eventkey.Fingerprint{"Payload": eventkey.Payload(), "JSONWithout": eventkey.JSONWithout("received_at"), "JSONOnly": eventkey.JSONOnly("order_id", "amount")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Sum(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
