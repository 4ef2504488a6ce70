package jsonpath

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

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
		steps, err := Parse(tt.path)
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		if got := Format(steps); got != tt.printed || steps[len(steps)-1].Name != tt.last {
			t.Errorf("%s is printed %s, want %s; its last name is %q", tt.path, got, tt.printed, steps[len(steps)-1].Name)
		}
	}
}

// names are those of members: usual ones, those of real webhooks, and any.
var names = rapid.OneOf(
	rapid.StringMatching(`[ab]`),
	rapid.SampledFrom([]string{"", "+1", "-1", "@type", "@odata.etag", "$ref", "a.b", "a b", `a"b\`, "a]b", "[0]", "*", "a/b", "{", "}}", "é", "😀", "\u200b", "日", "\ufffd", "%", ":"}),
	rapid.String(),
)

// agreePath checks that a path that can be read is printed as one that is read the same.
func agreePath(t interface{ Fatalf(string, ...any) }, path string) {
	steps, err := Parse(path)
	if err != nil {
		return
	}
	printed := Format(steps)
	again, err := Parse(printed)
	if err != nil || !slices.Equal(again, steps) || Format(again) != printed {
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
		steps := []Step{{Kind: Member, Name: name}, {Kind: Element, Index: rapid.IntRange(0, 20).Draw(t, "index")}}
		got, err := Parse(Format(steps))
		if err != nil || !slices.Equal(got, steps) {
			t.Fatalf("%q is printed as %s, which is read as %+v, %v", name, Format(steps), got, err)
		}
	})
}
