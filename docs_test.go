package idempotent_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are checked: their Go snippets must stand in an example of some package, so
// that they compile, and a whole program in them is compiled as it is.
func documents(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat("tests"); err != nil {
		t.Skip("the tests on real servers are not part of the module")
	}
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return append(names, "README.md", "metrics/README.md", "otelhooks/README.md", "middleware/oncetest/README.md")
}

func TestSnippetsCompile(t *testing.T) {
	names := documents(t)
	var compiled string
	for _, pattern := range []string{"example_test.go", "*/example_test.go", "*/*/example_test.go"} {
		examples, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range examples {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			compiled += unindent(string(source))
		}
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(text), "```go\n")[1:] {
			snippet, _, closed := strings.Cut(block, "```")
			switch {
			case !closed:
				t.Errorf("%s, snippet %d: not closed", name, i+1)
			case strings.HasPrefix(snippet, "package main"):
				vet(t, name, snippet)
			case !strings.Contains(compiled, unindent(snippet)):
				t.Errorf("%s, snippet %d is in no example_test.go:\n%s", name, i+1, snippet)
			}
		}
	}
}

// A document that names a test promises that it is there.
func TestNamedTestsExist(t *testing.T) {
	names := documents(t)
	root := os.DirFS(".")
	exist := make(map[string]bool)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(root, path)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			exist[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			if !exist[test] && test != "TestReconnect" { // Watermill's
				t.Errorf("%s names %s, which is no test", name, test)
			}
		}
	}
}

func unindent(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

func vet(t *testing.T, name, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "vet", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// Links between the documents lead somewhere, also to the heading that they name.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, name := range append(documents(t), "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(match[1], "#")
			target := filepath.Join(filepath.Dir(name), path)
			if path == "" {
				target = name
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, match[1], err)
				continue
			}
			if anchor == "" || filepath.Ext(target) != ".md" {
				continue
			}
			there, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !hasHeading(string(there), anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, match[1])
			}
		}
	}
}

// hasHeading looks for a heading by the name that GitHub gives it.
func hasHeading(text, anchor string) bool {
	drop := regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	for line := range strings.Lines(text) {
		heading, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !is || !strings.HasPrefix(line, "#") {
			continue
		}
		name := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
		if strings.ReplaceAll(name, " ", "-") == anchor {
			return true
		}
	}
	return false
}
