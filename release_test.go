package idempotent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// clone is a clone of this repository, in which releases are tried.
type clone struct {
	t   *testing.T
	dir string
}

func newClone(t *testing.T) clone {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c := clone{t, filepath.Join(t.TempDir(), "clone")}
	c.git("clone", "--quiet", "--no-tags", root, c.dir)
	c.git("-C", c.dir, "config", "user.name", "test")
	c.git("-C", c.dir, "config", "user.email", "test@localhost")
	script, err := os.ReadFile("scripts/release-check.sh") // as it is now, committed or not
	if err != nil {
		t.Fatal(err)
	}
	c.write("scripts/release-check.sh", string(script))
	return c
}

func (c clone) git(args ...string) {
	c.t.Helper()
	if out, err := exec.CommandContext(c.t.Context(), "git", args...).CombinedOutput(); err != nil {
		c.t.Fatalf("git %q: %v: %s", args, err, out)
	}
}

func (c clone) commit() {
	c.t.Helper()
	c.git("-C", c.dir, "add", "--all")
	c.git("-C", c.dir, "commit", "--quiet", "--allow-empty", "-m", "test")
}

func (c clone) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o755); err != nil { //nolint:gosec // one is a script
		c.t.Fatal(err)
	}
}

func (c clone) changelog(section string) {
	c.t.Helper()
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("CHANGELOG.md", strings.Replace(string(text), "## [Unreleased]\n", "## [Unreleased]\n\n"+section+"\n", 1))
}

// check runs the script and returns the lines of its checklist.
func (c clone) check(version string) (lines []string, err error) {
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.dir, "scripts/release-check.sh"), version)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LAST_TAG=") || strings.HasPrefix(e, "APIDIFF=") })
	out, err := cmd.CombinedOutput()
	c.t.Logf("%s", out)
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err
}

// A commit that is ready passes, and each module that is for installing is installed. One that has
// everything wrong that the check looks for fails in each of these, and in nothing else.
func TestReleaseCheck(t *testing.T) {
	documents(t)
	if testing.Short() {
		t.Skip("installs every module twice, with a module cache of its own")
	}
	for _, program := range []string{"git", "bash", "awk"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs ", program, ": ", err)
		}
	}
	t.Run("ready", func(t *testing.T) {
		t.Parallel()
		c := newClone(t)
		c.changelog("## [0.9.8] - 2026-01-01\n\n### Added\n\n- Everything.\n")
		c.commit()
		lines, err := c.check("v0.9.8")
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		if strings.Contains(text, "\nfailed") || !strings.Contains(text, "skipped the API is compared: there is no earlier tag") {
			t.Error("not every line is ok")
		}
		for module := range tested {
			path := strings.TrimSuffix(modulePath+"/"+module, "/.")
			if want := module != "examples" && module != "tests"; want != strings.Contains(text, " "+path+"@v0.9.8") {
				t.Errorf("%s is installed: %v", path, !want)
			}
		}
	})
	t.Run("all wrong", func(t *testing.T) {
		t.Parallel()
		c := newClone(t)
		c.write("go.work", "go 1.26.0\n\nuse (\n\t.\n\t./metrics\n)\n") // two modules do: each takes its time
		c.changelog("## [0.9.7] - 2026-01-01\n\n- Everything.\n")
		c.write("eventkey/gone.go", "package eventkey\n\n// Gone is removed by a patch.\nfunc Gone() {}\n")
		c.commit()
		c.git("-C", c.dir, "tag", "v0.9.7")
		if err := os.Remove(filepath.Join(c.dir, "eventkey/gone.go")); err != nil {
			t.Fatal(err)
		}
		c.write("docs/recipes.md", "go get "+modulePath+"@v0.9.7\n")
		c.write("metrics/broken.go", "package metrics\n\nvar _ = missing\n")
		c.commit()
		c.git("-C", c.dir, "tag", "v0.9.8")
		c.write("forgotten.go", "package idempotent\n")
		lines, err := c.check("v0.9.8")
		if err == nil {
			t.Error("it passes")
		}
		var failed []string
		for _, line := range lines {
			if what, ok := strings.CutPrefix(line, "failed  "); ok {
				failed = append(failed, what)
			}
		}
		want := []string{
			"the tree is clean", "the tag v0.9.8 is free", "CHANGELOG.md has a section [0.9.8]", "documents name no other version",
			"go get " + modulePath + "/metrics@v0.9.8, and all of it builds",
			"the API of " + modulePath + " since v0.9.7 is compatible, as a patch has to be",
			"the API of " + modulePath + "/metrics since v0.9.7 is compared", // it does not compile
		}
		if !slices.Equal(failed, want) {
			t.Errorf("failed:\n%s\nwant:\n%s", strings.Join(failed, "\n"), strings.Join(want, "\n"))
		}
	})
	t.Run("no version", func(t *testing.T) {
		if lines, err := newClone(t).check("1.0"); err == nil || !strings.Contains(lines[0], "usage:") {
			t.Errorf("%q, %v", lines, err)
		}
	})
}
