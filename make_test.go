package idempotent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tested are the modules whose tests `make test` runs, each by a target that names it.
var tested = map[string]string{".": "test-root", "cmd/idemctl": "test-idemctl", "examples": "test-examples", "metrics": "test-metrics", "otelhooks": "test-otelhooks", "tests": "test-servers"}

// Every test that is not a fault run is run by `make test`: the fault runs are left out by
// their whole names, each of which is that of one test, and nothing else is left out.
func TestMakeTestLeavesNothingOut(t *testing.T) {
	documents(t) // skips where there is no checkout
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^FAULT_RUNS := (\w+(?:\|\w+)*)$`).FindSubmatch(makefile)
	if list == nil || !strings.Contains(string(makefile), "\nFAULTS     := ^($(FAULT_RUNS))$$\n") {
		t.Fatal("the Makefile has no FAULT_RUNS, or FAULTS is not their whole names")
	}
	left := strings.Split(string(list[1]), "|")
	found := testsByModule(t)
	for _, name := range left {
		n := 0
		for module, names := range found {
			for _, other := range names {
				if other == name {
					n++
					if module != "tests" {
						t.Errorf("%s is in module %s: a fault run belongs into tests/", name, module)
					}
				}
			}
		}
		if n != 1 {
			t.Errorf("%d tests are called %s, which is left out of `make test`", n, name)
		}
	}
	for module, names := range found {
		if tested[module] == "" && len(names) > 0 {
			t.Errorf("no target runs the tests of module %s: %v", module, names)
		}
	}
	recipes := recipesOf(string(makefile))
	for module, target := range tested {
		if !slices.Contains(strings.Fields(recipes["test"]), target) {
			t.Errorf("`make test` does not run %s, the tests of module %s", target, module)
		}
		recipe := strings.ReplaceAll(recipes[target], "-skip '$(FAULTS)'", "")
		if !strings.Contains(recipe, "./...") || regexp.MustCompile(`-(run|skip|short)\b`).MatchString(recipe) {
			t.Errorf("%s leaves tests out: %s", target, recipe)
		}
	}
}

// recipesOf are what targets need and do.
func recipesOf(makefile string) map[string]string {
	all, target := make(map[string]string), ""
	head := regexp.MustCompile(`^([a-z-]+): ?([^#]*)`)
	for line := range strings.Lines(makefile) {
		if m := head.FindStringSubmatch(line); m != nil {
			target = m[1]
			all[target] += m[2]
		} else if strings.HasPrefix(line, "\t") {
			all[target] += line
		}
	}
	return all
}

// testsByModule are the names of all test functions.
func testsByModule(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		module := moduleOf(path)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				found[module] = append(found[module], f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// moduleOf is the folder of the module that a file belongs to.
func moduleOf(path string) string {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
}

// Dependabot looks at every module.
func TestDependabotKnowsTheModules(t *testing.T) {
	documents(t) // skips where there is no checkout
	config, err := os.ReadFile(".github/dependabot.yml")
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.ReadFile("go.work")
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range regexp.MustCompile(`(?m)^\t\.(\S*)$`).FindAllStringSubmatch(string(work), -1) {
		if dir := "/" + strings.TrimPrefix(use[1], "/"); !strings.Contains(string(config), "\n      - "+dir+"\n") {
			t.Errorf("module %s is not in .github/dependabot.yml", dir)
		}
	}
}
