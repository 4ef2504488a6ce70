package eventkey

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"
)

func payload(text string) *message.Message { return message.NewMessage("u", []byte(text)) }

// equal tells whether a fingerprint takes two payloads for the same content.
func equal(t interface{ Fatal(...any) }, f Fingerprint, a, b string) bool {
	sumA, errA := Sum(f, payload(a))
	sumB, errB := Sum(f, payload(b))
	if errA != nil || errB != nil {
		t.Fatal(a, b, errA, errB)
	}
	return string(sumA) == string(sumB)
}

// Paths as they are written, how they are printed, and the name of the last step.
func TestPaths(t *testing.T) {
	for _, tt := range []struct{ path, printed, last string }{
		{"received_at", "$.received_at", "received_at"},
		{"$.received_at", "$.received_at", "received_at"},
		{`$["received_at"]`, "$.received_at", "received_at"},
		{`["a.b"]`, `$["a.b"]`, "a.b"},
		{`labels["a.b"]`, `$.labels["a.b"]`, "a.b"},
		{`$.labels["a.b"].c`, `$.labels["a.b"].c`, "c"},
		{`["@odata.etag"]`, `$["@odata.etag"]`, "@odata.etag"},
		{`["@odata"].etag`, `$["@odata"].etag`, "etag"},
		{"$.@type", `$["@type"]`, "@type"},
		{"@type", `$["@type"]`, "@type"},
		{"@graph[0].name", `$["@graph"][0].name`, "name"},
		{"$.$ref", `$["$ref"]`, "$ref"},
		{`reactions["+1"]`, `$.reactions["+1"]`, "+1"},
		{`["a b"]`, `$["a b"]`, "a b"},
		{`["a\"b\\c"]`, `$["a\"b\\c"]`, `a"b\c`},
		{`["a]b[0"]`, `$["a]b[0"]`, "a]b[0"},
		{`["{}"]`, `$["\u007b\u007d"]`, "{}"},
		{`["\u00e9\n"]`, `$["é\u000a"]`, "é\n"},
		{`["é"]`, `$.é`, "é"},
		{"größe.日本", "$.größe.日本", "日本"},
		{`["\ud83d\ude00"]`, `$["😀"]`, "😀"},
		{`["\udb40\udc20"]`, `$["\udb40\udc20"]`, "\U000E0020"},
		{`["\ud800"]`, `$["\ud800"]`, "\xed\xa0\x80"},
		{`[""]`, `$[""]`, ""},
		{`a[""].b`, `$.a[""].b`, "b"},
		{"[0].a-1", "$[0].a-1", "a-1"},
		{"12.34", "$.12.34", "34"},
		{"variants[*].updated_at", "$.variants[*].updated_at", "updated_at"},
		{"[*].a", "$[*].a", "a"},
	} {
		steps, err := parsePath(tt.path)
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		if got := formatPath(steps); got != tt.printed || steps[len(steps)-1].name != tt.last {
			t.Errorf("%s is printed %s, want %s; its last name is %q", tt.path, got, tt.printed, steps[len(steps)-1].name)
		}
	}
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
		for _, f := range []Fingerprint{JSONWithout(path), JSONOnly("ok", path)} {
			err := ValidateFingerprint(f)
			for _, text := range want {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %v, want %s in it", path, err, text)
				}
			}
		}
		for _, text := range want {
			if steps, err := parsePath(text); strings.HasPrefix(text, "$") && (err != nil || formatPath(steps) != text) {
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
		key, err := Template(template).Key("t", payload(doc))
		if err != nil || key != want {
			t.Errorf("%s: %q, %v, want %q", template, key, err, want)
		}
	}
	// A member is no element, and an element no member.
	for template, doc := range map[string]string{"{$.a[0]}": `{"a":{"":1}}`, `{$.a["x"]}`: `{"a":[1]}`, `{$.a[""]}`: `{"a":[1]}`} {
		if key, err := Template(template).Key("t", payload(doc)); !errors.Is(err, ErrNoKey) {
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
		if err := Validate(Template(template)); err == nil || !strings.Contains(err.Error(), want) {
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
				print Fingerprint
				diff  string
			}{
				{JSONWithout("variants[*].at", "$.variants[*].tags[*].n"), tt.without},
				{JSONOnly("id", "variants[*].sku", "variants[*].tags[*].n"), tt.only},
			} {
				if err := ValidateFingerprint(f.print); err != nil {
					t.Fatal(err)
				}
				if got := equal(t, f.print, tt.a, tt.b); got != (f.diff == "") {
					t.Errorf("equal %v, want the difference %q", got, f.diff)
				}
				for _, pair := range [][2]string{{tt.a, tt.b}, {tt.b, tt.a}} {
					if d := FirstDifference(f.print, []byte(pair[0]), []byte(pair[1])); d != f.diff {
						t.Errorf("difference %q, want %q", d, f.diff)
					}
				}
			}
		})
	}
	// An index beside [*], both under each other.
	both := JSONWithout("a[*].x", "a[0].y", "b[0].x", "b[*].y")
	if !equal(t, both, `{"a":[{"x":1,"y":1,"z":1}],"b":[{"x":1,"y":1,"z":1}]}`, `{"a":[{"x":2,"y":2,"z":1}],"b":[{"x":2,"y":2,"z":1}]}`) {
		t.Error("a path with an index hides one with [*]")
	}
	if equal(t, both, `{"a":[0,{"y":1}]}`, `{"a":[0,{"y":2}]}`) {
		t.Error("an index counts for another element")
	}
	// With nothing but [*], an array of nothing is something, and one without the field isn't.
	only := JSONOnly("a[*].id")
	if _, err := Sum(only, payload(`{"a":[]}`)); err != nil {
		t.Error(err)
	}
	if _, err := Sum(only, payload(`{"a":[{"ID":1}]}`)); err == nil {
		t.Error("nothing is compared")
	}
	if !equal(t, JSONWithout("a[1]"), `{"a":[1]}`, `{"a":[1,2]}`) || !equal(t, JSONWithout("a[*]"), `{"a":[1]}`, `{"a":[]}`) {
		t.Error("whether an excluded element is there counts")
	}
	if a, b := JSONOnly(`["id"]`, "id"), JSONOnly("$.id"); !slices.Equal(must(Sum(a, payload(`{"id":1}`))), must(Sum(b, payload(`{"id":1}`)))) {
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
		field := FirstDifference(nil, []byte(a), []byte(b))
		var without []string
		for field != "" {
			template := Template("{" + field + "}")
			if err := Validate(template); err != nil {
				t.Fatal(field, err)
			}
			nodeA, nodeB := at(t, a, field), at(t, b, field)
			if nodeA == nil && nodeB == nil {
				t.Fatalf("%s is nowhere in %s and %s", field, a, b)
			}
			for doc, node := range map[string]*jsonNode{a: nodeA, b: nodeB} {
				if node == nil || node.kind == kindNull || node.kind == kindObject || node.kind == kindArray {
					continue
				}
				if key, err := template.Key("t", payload(doc)); err != nil || key != node.text {
					t.Fatalf("%s in %s: %q, %v", field, doc, key, err)
				}
			}
			if without = append(without, field); len(without) > maxFields {
				t.Skip("too many differences")
			}
			f := JSONWithout(without...)
			if err := ValidateFingerprint(f); err != nil {
				t.Fatal(err)
			}
			next := FirstDifference(f, []byte(a), []byte(b))
			if (next == "") != equal(t, f, a, b) || slices.Contains(without, next) {
				t.Fatalf("%s and %s without %s: next is %q", a, b, without, next)
			}
			field = next
		}
	})
}

// at is the value at a printed path, found with encoding/json's idea of names.
func at(t *rapid.T, doc, path string) *jsonNode {
	steps, err := parsePath(path)
	if err != nil || formatPath(steps) != path {
		t.Fatalf("%s is read as %s: %v", path, formatPath(steps), err)
	}
	var value any
	if err := json.Unmarshal([]byte(doc), &value); err != nil {
		t.Fatal(err)
	}
	for _, st := range steps {
		switch v := value.(type) {
		case map[string]any:
			next, ok := v[st.name]
			if st.kind != toMember || !ok {
				return nil
			}
			value = next
		case []any:
			if st.kind != toElement || st.index >= len(v) {
				return nil
			}
			value = v[st.index]
		default:
			return nil
		}
	}
	return must(parseJSON(must(json.Marshal(value))))
}

// agreePath checks that a path that can be read is printed as one that is read the same.
func agreePath(t interface{ Fatalf(string, ...any) }, path string) {
	steps, err := parsePath(path)
	if err != nil {
		return
	}
	printed := formatPath(steps)
	again, err := parsePath(printed)
	if err != nil || !slices.Equal(again, steps) || formatPath(again) != printed {
		t.Fatalf("%q is printed as %q, which is read as %+v, %v", path, printed, again, err)
	}
}

func FuzzPath(f *testing.F) {
	for _, path := range []string{"a.b", "$.a[0]", `["a.b"][*]`, `["\ud83d\ude00\ud800"]`, "[\"\xed\xa0\xbd\xed\xb8\x80\"]", "[\"\xff\"]", "@a.b", `[""]`} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) { agreePath(t, path) })
}

func TestPathsOfAnyName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := string(rapid.SliceOf(rapid.SampledFrom([]byte("a.\"\\{\x00\xff\xed\xa0\x80\xbd\xb8\xc3\xa9"))).Draw(t, "name"))
		if rapid.Bool().Draw(t, "text") {
			name = names.Draw(t, "name")
		}
		steps := []step{{kind: toMember, name: name}, {kind: toElement, index: rapid.IntRange(0, 20).Draw(t, "index")}}
		got, err := parsePath(formatPath(steps))
		if err != nil || !slices.Equal(got, steps) {
			t.Fatalf("%q is printed as %s, which is read as %+v, %v", name, formatPath(steps), got, err)
		}
	})
}

// A payload with a byte order mark is the payload without it.
func TestByteOrderMark(t *testing.T) {
	const doc = `{"id":1,"at":2}`
	marked := byteOrderMark + doc
	for name, source := range map[string]Source{"template": Template("{$.id}"), "canonical": CanonicalJSON()} {
		key, errA := source.Key("t", payload(doc))
		other, errB := source.Key("t", payload(marked))
		if errA != nil || errB != nil || key != other {
			t.Errorf("%s: %q, %v and %q, %v", name, key, errA, other, errB)
		}
		if _, err := source.Key("t", payload(byteOrderMark+" ")); !errors.Is(err, ErrNoKey) {
			t.Errorf("%s: nothing but a mark: %v", name, err)
		}
	}
	for name, f := range map[string]Fingerprint{"without": JSONWithout("at"), "only": JSONOnly("id"), "all of it": JSONOnly("id", "at")} {
		if !equal(t, f, doc, marked) || !equal(t, f, byteOrderMark+" "+doc, doc) {
			t.Errorf("%s: a mark makes a difference", name)
		}
	}
	if d := FirstDifference(nil, []byte(marked), []byte(`{"id":2}`)); d != "$.at" {
		t.Errorf("difference %q", d)
	}
	for _, doc := range []string{byteOrderMark + byteOrderMark + doc, " " + byteOrderMark + doc, doc + byteOrderMark} {
		if key, err := Template("{$.id}").Key("t", payload(doc)); err == nil {
			t.Errorf("%q has the key %q", doc, key)
		}
	}
}
