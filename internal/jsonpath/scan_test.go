package jsonpath

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var jsonTexts = []string{
	``, ` `, `{}`, `[]`, `""`, `0`, `-0`, `-`, `01`, `1.`, `.5`, `1.5e`, `1e+5`, `1E-5`, `1e3`, `truefalse`, `true`, `tru`, `nul`, `null`,
	`{"a":1}`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `{"a":}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `[1,[2,{"b":[]}]]`, `{"a":{"b":{"c":null}}}`,
	`"\u00e9"`, `"\u00g9"`, `"\x"`, `"\`, `"\u12`, `"a`, "\"a\nb\"", `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\ud83dA"`,
	"\ufeff{}", "\ufeff\ufeff{}", " \ufeff{}", "\ufeff", "\"\xff\"", `{} {}`, `{"a":1}x`, "\t\n\r {\"a\" : [ 1 , 2 ] } \n", `{"a":1,"a":2}`, `"\/\"\\\b\f\n\r\t"`,
}

// agree compares the scanner with encoding/json.
func agree(t interface{ Fatalf(string, ...any) }, text []byte) {
	err := NewPicker().Pick(text, nil)
	plain := bytes.TrimPrefix(text, []byte("\ufeff")) // which encoding/json does not read
	if (err == nil) != json.Valid(plain) && !errors.Is(err, errTooDeep) {
		t.Fatalf("%q: scanner says %v, encoding/json valid=%v", text, err, json.Valid(plain))
	}
	node, err := Read(text)
	if err != nil {
		return
	}
	if !json.Valid(plain) {
		t.Fatalf("%q: parsed, but encoding/json does not", text)
	}
	if canonical := node.AppendTo(nil, nil); !json.Valid(canonical) {
		t.Fatalf("%q: canonical form %q is not JSON", text, canonical)
	}
	if node.Kind == String && utf8.ValidString(node.Text) {
		var want string
		if err := json.Unmarshal(plain, &want); err != nil || want != node.Text {
			t.Fatalf("%q: string %q, encoding/json has %q, %v", text, node.Text, want, err)
		}
	}
}

func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range jsonTexts {
		agree(t, []byte(text))
	}
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.SampledFrom(jsonTexts).Draw(t, "text"))
		for range rapid.IntRange(0, 3).Draw(t, "edits") {
			if len(text) > 0 {
				text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = rapid.SampledFrom([]byte(`{}[]",:\u0e-+. 1t`)).Draw(t, "byte")
			}
		}
		agree(t, text)
	})
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(rapid.String().Draw(t, "string"))
		if err != nil {
			t.Fatal(err)
		}
		agree(t, text)
	})
}

func TestScannerBoundsDepth(t *testing.T) {
	deep := strings.Repeat("[", 1_000_000)
	if err := NewPicker().Pick([]byte(deep), nil); !errors.Is(err, errTooDeep) {
		t.Errorf("pick: %v", err)
	}
	if _, err := Read([]byte(deep)); !errors.Is(err, errTooDeep) {
		t.Errorf("Read: %v", err)
	}
}

func TestHalvesOfSurrogatePairsStayDifferent(t *testing.T) {
	a, b := unescape([]byte(`\ud800`)), unescape([]byte(`\ud801`))
	if string(a) == string(b) || utf8.Valid(a) || utf8.Valid(b) {
		t.Errorf("%q and %q", a, b)
	}
	if got, want := string(unescape([]byte(`\ud800\ud83d\ude00`))), string(a)+"😀"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzScanner(f *testing.F) {
	for _, text := range jsonTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { agree(t, text) })
}
