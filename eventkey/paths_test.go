package eventkey_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/jsonpath"
)

const byteOrderMark = "\ufeff"

func payload(text string) *message.Message { return message.NewMessage("u", []byte(text)) }

// equal reports whether a fingerprint takes two payloads for the same content.
func equal(t interface{ Fatal(...any) }, f eventkey.Fingerprint, a, b string) bool {
	sumA, errA := identity.Sum(f, payload(a))
	sumB, errB := identity.Sum(f, payload(b))
	if errA != nil || errB != nil {
		t.Fatal(a, b, errA, errB)
	}
	return string(sumA) == string(sumB)
}

// A path that may mean something else is refused when the fingerprint is made, with what
// to write instead.
func TestPathMeansAnotherField(t *testing.T) {
	for path, want := range map[string][]string{
		"@odata.etag":          {`$["@odata.etag"]`, `$["@odata"].etag`},
		"a[0].@odata.etag.b":   {`$.a[0]["@odata.etag"].b`, `$.a[0]["@odata"].etag.b`},
		"Items@odata.count[1]": {`$["Items@odata.count"][1]`, `$["Items@odata"].count[1]`},
		"+1":                   {`$["+1"]`},
		"reactions.+1":         {`$.reactions["+1"]`},
		"a b.c":                {`$["a b"].c`},
		"a/b[0]":               {`$["a/b"][0]`},
		"a\xff":                {"unexpected"},
		"$ref":                 {`["name"]`},
		"a.*":                  {"[*]"},
		"a[b]":                 {"double quotes"},
		"a['b']":               {"double quotes"},
		`a["b`:                 {"closing quote"},
		`a["\x"]`:              {"an escape"},
		`a["b"`:                {"no ]"},
		`a["b"c]`:              {"no ]"},
		`a["b"]c`:              {"a path is made of"},
		"a..b":                 {"a name is missing", `[""]`},
		"":                     {"the path is empty"},
		"$":                    {"whole payload"},
	} {
		for _, f := range []eventkey.Fingerprint{eventkey.JSONWithout(path), eventkey.JSONOnly("ok", path)} {
			err := identity.ValidateFingerprint(f)
			for _, text := range want {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %v, want %s in it", path, err, text)
				}
			}
		}
		for _, text := range want {
			if steps, err := jsonpath.Parse(text); strings.HasPrefix(text, "$") && (err != nil || jsonpath.Format(steps) != text) {
				t.Errorf("%s: the advice %s can't be followed: %v", path, text, err)
			}
		}
	}
}

func TestTemplateWithOddNames(t *testing.T) {
	const doc = `{"labels":{"a.b":1,"a}b{":2,"say \"hi\"\\":3,"":4,"+1":5,"\u00e9":6},"@odata.etag":7,"@odata":{"etag":8},"$ref":9}`
	for template, want := range map[string]string{
		`{$.labels["a.b"]}`:                      "1",
		`{$.labels["a}b{"]}`:                     "2",
		`{$.labels["a\u007db\u007b"]}`:           "2",
		`{$.labels["say \"hi\"\\"]}`:             "3",
		`{$.labels[""]}`:                         "4",
		`{$.labels["+1"]}`:                       "5",
		`{$.labels.é}`:                           "6",
		`{$["@odata.etag"]}`:                     "7",
		`{$["@odata"].etag}`:                     "8",
		`{$.$ref}`:                               "9",
		`{{{$.labels["a}b{"]}}}:{$.labels.é}`:    "{2}:6",
		`x{$["labels"]["a.b"]}:{$.labels["+1"]}`: "x1:5",
	} {
		key, err := eventkey.Template(template).Key("t", payload(doc))
		if err != nil || key != want {
			t.Errorf("%s: %q, %v, want %q", template, key, err, want)
		}
	}
	// A member is no element, and an element no member.
	for template, doc := range map[string]string{"{$.a[0]}": `{"a":{"":1}}`, `{$.a["x"]}`: `{"a":[1]}`, `{$.a[""]}`: `{"a":[1]}`} {
		if key, err := eventkey.Template(template).Key("t", payload(doc)); !errors.Is(err, eventkey.ErrNoKey) {
			t.Errorf("%s in %s: %q, %v", template, doc, key, err)
		}
	}
	for template, want := range map[string]string{
		"{$.items[*].id}": "a key needs one value",
		"{$.@odata.etag}": `$["@odata.etag"]`,
		`{$["a}`:          "not closed",
		`{$["a]}:{b}`:     "not closed",
		`{a"b}`:           "unexpected '\"'",
	} {
		if err := eventkey.Validate(eventkey.Template(template)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", template, err, want)
		}
	}
}

func TestEachElement(t *testing.T) {
	const base = `{"id":1,"variants":[{"sku":"x","at":1},{"sku":"y","at":2,"tags":[{"n":1},{"n":2}]}]}`
	edit := strings.NewReplacer(`"at":1`, `"at":8`, `"at":2`, `"at":9`).Replace(base)
	for _, tt := range []struct {
		name, a, b    string
		without, only string // differences, "" for none
	}{
		{"the same", base, base, "", ""},
		{"in each", base, edit, "", ""},
		{"in one", base, strings.Replace(base, `"at":1`, `"at":8`, 1), "", ""},
		{"without it", base, strings.Replace(base, `,"at":1`, ``, 1), "", ""},
		{"beside it", base, strings.Replace(base, `"sku":"y"`, `"sku":"z"`, 1), "$.variants[1].sku", "$.variants[1].sku"},
		{"one more element", base, strings.Replace(base, `[{"sku"`, `[{},{"sku"`, 1), "$.variants[0].sku", "$.variants[0].sku"},
		{"one more at the end", base, strings.Replace(base, `]}]}`, `]},{}]}`, 1), "$.variants[2]", "$.variants[2]"},
		{"nested", base, strings.Replace(base, `{"n":2}`, `{"n":3}`, 1), "", "$.variants[1].tags[1].n"},
		{"nested, missing and null", base, strings.Replace(base, `{"n":2}`, `{"n":null}`, 1), "", "$.variants[1].tags[1].n"},
		{"nested, a whole array", base, strings.Replace(base, `,"tags":[{"n":1},{"n":2}]`, ``, 1), "$.variants[1].tags", "$.variants[1].tags"},
		{"no array", base, `{"id":1,"variants":{"sku":1}}`, "$.variants", "$.variants"},
		{"no array in both", `{"id":1,"variants":1}`, `{"id":1,"variants":2}`, "$.variants", ""},
		{"no array and missing", `{"id":1,"variants":1}`, `{"id":1}`, "$.variants", ""},
		{"empty and missing", `{"id":1,"variants":[]}`, `{"id":1}`, "$.variants", "$.variants"},
		{"one element without the field, and none", `{"id":1,"variants":[{}]}`, `{"id":1,"variants":[]}`, "$.variants[0]", "$.variants[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range []struct {
				print eventkey.Fingerprint
				diff  string
			}{
				{eventkey.JSONWithout("variants[*].at", "$.variants[*].tags[*].n"), tt.without},
				{eventkey.JSONOnly("id", "variants[*].sku", "variants[*].tags[*].n"), tt.only},
			} {
				if err := identity.ValidateFingerprint(f.print); err != nil {
					t.Fatal(err)
				}
				if got := equal(t, f.print, tt.a, tt.b); got != (f.diff == "") {
					t.Errorf("equal %v, want the difference %q", got, f.diff)
				}
				for _, pair := range [][2]string{{tt.a, tt.b}, {tt.b, tt.a}} {
					if d := identity.FirstDifference(f.print, []byte(pair[0]), []byte(pair[1])); d != f.diff {
						t.Errorf("difference %q, want %q", d, f.diff)
					}
				}
			}
		})
	}
	// An index beside [*], both under each other.
	both := eventkey.JSONWithout("a[*].x", "a[0].y", "b[0].x", "b[*].y")
	if !equal(t, both, `{"a":[{"x":1,"y":1,"z":1}],"b":[{"x":1,"y":1,"z":1}]}`, `{"a":[{"x":2,"y":2,"z":1}],"b":[{"x":2,"y":2,"z":1}]}`) {
		t.Error("a path with an index hides one with [*]")
	}
	if equal(t, both, `{"a":[0,{"y":1}]}`, `{"a":[0,{"y":2}]}`) {
		t.Error("an index counts for another element")
	}
	// With nothing but [*], an array of nothing is something, and one without the field isn't.
	only := eventkey.JSONOnly("a[*].id")
	if _, err := identity.Sum(only, payload(`{"a":[]}`)); err != nil {
		t.Error(err)
	}
	if _, err := identity.Sum(only, payload(`{"a":[{"ID":1}]}`)); err == nil {
		t.Error("nothing is compared")
	}
	if !equal(t, eventkey.JSONWithout("a[1]"), `{"a":[1]}`, `{"a":[1,2]}`) || !equal(t, eventkey.JSONWithout("a[*]"), `{"a":[1]}`, `{"a":[]}`) {
		t.Error("whether an excluded element is there counts")
	}
	if a, b := eventkey.JSONOnly(`["id"]`, "id"), eventkey.JSONOnly("$.id"); !slices.Equal(must(identity.Sum(a, payload(`{"id":1}`))), must(identity.Sum(b, payload(`{"id":1}`)))) {
		t.Error("one field written in two ways is two")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// names are those of members: usual ones, those of real webhooks, and any.
var names = rapid.OneOf(
	rapid.StringMatching(`[ab]`),
	rapid.SampledFrom([]string{"", "+1", "-1", "@type", "@odata.etag", "$ref", "a.b", "a b", `a"b\`, "a]b", "[0]", "*", "a/b", "{", "}}", "é", "😀", "\u200b", "日", "\ufffd", "%", ":"}),
	rapid.String(),
)

func documents(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{rapid.IntRange(1, 3).AsAny(), rapid.Bool().AsAny(), rapid.SampledFrom([]string{"x", "y"}).AsAny(), rapid.Just[any](nil)}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(documents(depth-1), 0, 3).AsAny(),
		rapid.MapOfN(names, documents(depth-1), 0, 3).AsAny(), rapid.MapOfN(names, documents(depth-1), 1, 3).AsAny())...)
}

// What FirstDifference prints means that field wherever a path is read: a template finds
// its value, and JSONWithout leaves it out, until nothing differs any more.
func TestPrintedPathMeansTheField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wrap := func(v any) string { return string(must(json.Marshal(map[string]any{"id": 1, "doc": v}))) }
		a, b := wrap(documents(3).Draw(t, "a")), wrap(documents(3).Draw(t, "b"))
		field := identity.FirstDifference(nil, []byte(a), []byte(b))
		var without []string
		for field != "" {
			template := eventkey.Template("{" + field + "}")
			if err := eventkey.Validate(template); err != nil {
				t.Fatal(field, err)
			}
			nodeA, nodeB := at(t, a, field), at(t, b, field)
			if nodeA == nil && nodeB == nil {
				t.Fatalf("%s is nowhere in %s and %s", field, a, b)
			}
			for doc, node := range map[string]*jsonpath.Node{a: nodeA, b: nodeB} {
				if node == nil || node.Kind == jsonpath.Null || node.Kind == jsonpath.Object || node.Kind == jsonpath.Array {
					continue
				}
				if key, err := template.Key("t", payload(doc)); err != nil || key != node.Text {
					t.Fatalf("%s in %s: %q, %v", field, doc, key, err)
				}
			}
			if without = append(without, field); len(without) > 64 {
				t.Skip("too many differences")
			}
			f := eventkey.JSONWithout(without...)
			if err := identity.ValidateFingerprint(f); err != nil {
				t.Fatal(err)
			}
			next := identity.FirstDifference(f, []byte(a), []byte(b))
			if (next == "") != equal(t, f, a, b) || slices.Contains(without, next) {
				t.Fatalf("%s and %s without %s: next is %q", a, b, without, next)
			}
			field = next
		}
	})
}

// at is the value at a printed path, found with encoding/json's idea of names.
func at(t *rapid.T, doc, path string) *jsonpath.Node {
	steps, err := jsonpath.Parse(path)
	if err != nil || jsonpath.Format(steps) != path {
		t.Fatalf("%s is read as %s: %v", path, jsonpath.Format(steps), err)
	}
	var value any
	if err := json.Unmarshal([]byte(doc), &value); err != nil {
		t.Fatal(err)
	}
	for _, st := range steps {
		switch v := value.(type) {
		case map[string]any:
			next, ok := v[st.Name]
			if st.Kind != jsonpath.Member || !ok {
				return nil
			}
			value = next
		case []any:
			if st.Kind != jsonpath.Element || st.Index >= len(v) {
				return nil
			}
			value = v[st.Index]
		default:
			return nil
		}
	}
	return must(jsonpath.Read(must(json.Marshal(value))))
}

// A payload with a byte order mark is the payload without it.
func TestByteOrderMark(t *testing.T) {
	const doc = `{"id":1,"at":2}`
	marked := byteOrderMark + doc
	for name, source := range map[string]eventkey.Source{"template": eventkey.Template("{$.id}"), "canonical": eventkey.CanonicalJSON()} {
		key, errA := source.Key("t", payload(doc))
		other, errB := source.Key("t", payload(marked))
		if errA != nil || errB != nil || key != other {
			t.Errorf("%s: %q, %v and %q, %v", name, key, errA, other, errB)
		}
		if _, err := source.Key("t", payload(byteOrderMark+" ")); !errors.Is(err, eventkey.ErrNoKey) {
			t.Errorf("%s: nothing but a mark: %v", name, err)
		}
	}
	for name, f := range map[string]eventkey.Fingerprint{"without": eventkey.JSONWithout("at"), "only": eventkey.JSONOnly("id"), "all of it": eventkey.JSONOnly("id", "at")} {
		if !equal(t, f, doc, marked) || !equal(t, f, byteOrderMark+" "+doc, doc) {
			t.Errorf("%s: a mark makes a difference", name)
		}
	}
	if d := identity.FirstDifference(nil, []byte(marked), []byte(`{"id":2}`)); d != "$.at" {
		t.Errorf("difference %q", d)
	}
	for _, doc := range []string{byteOrderMark + byteOrderMark + doc, " " + byteOrderMark + doc, doc + byteOrderMark} {
		if key, err := eventkey.Template("{$.id}").Key("t", payload(doc)); err == nil {
			t.Errorf("%q has the key %q", doc, key)
		}
	}
}
