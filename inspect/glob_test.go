package inspect

import (
	"testing"

	"pgregory.net/rapid"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*c", "abbc", true}, {"a*c", "abb", false},
		{"a?c", "abc", true}, {"a?c", "ac", false}, {"[ab]x", "bx", true}, {"[ab]x", "cx", false}, {"[^ab]x", "cx", true}, {"[a-c]x", "bx", true},
		{"[c-a]x", "bx", true}, {"[a-", "a", true}, {`a\*`, "a*", true}, {`a\*`, "ab", false}, {`[\]]`, "]", true}, {"a", "b", false}, {"**a", "xa", true},
		{"[", "a", false}, {`\`, `\`, true}, {"?", "", false}, {"[a]", "", false},
	} {
		if got := glob(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

// What is escaped matches itself, and nothing else.
func TestEscapedGlob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, other := rapid.String().Draw(t, "name"), rapid.String().Draw(t, "other")
		if !glob(globEscaper.Replace(name), name) {
			t.Fatalf("%q does not match itself", name)
		}
		if name != other && glob(globEscaper.Replace(name), other) {
			t.Fatalf("%q matches %q", name, other)
		}
		_ = glob(name, other) // ends, and does not panic
	})
}
