// Package docs_test does what the documents say: README.md in an empty
// folder, as a newcomer does, and the rights of docs/operations.md on real servers.
package docs_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// within is how long one step may take: the first build of a program on a busy machine.
const within = 5 * time.Minute

func TestProgramOfTheREADME(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, install, found := strings.Cut(string(text), "## Install")
	if !found {
		t.Fatal("README.md has no section Install")
	}
	client := testserver.Shared(t, testserver.Redis86).Client()
	defer client.Close()

	dir := t.TempDir()
	if err := os.Symlink(root, filepath.Join(dir, "watermill-idempotent")); err != nil {
		t.Fatal(err)
	}
	shell := blocks(install, "sh")
	if len(shell) < 2 || !strings.HasPrefix(shell[0], "git clone ") || shell[1] != "go mod tidy && go run .\n" {
		t.Fatalf("these are not the two steps: %q", shell)
	}
	_, set, _ := strings.Cut(shell[0], "\n") // the clone is there: this checkout
	bash(t, dir, set)

	programs := blocks(install, "go")
	if len(programs) != 1 {
		t.Fatalf("%d Go programs to install, want 1", len(programs))
	}
	const address = `Addr: "localhost:6379"`
	if strings.Count(programs[0], address) != 1 {
		t.Fatalf("the program has no %s", address)
	}
	program := strings.Replace(programs[0], address, `Addr: "`+client.Options().Addr+`"`, 1)
	dir = filepath.Join(dir, "first")
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	bash(t, dir, "go mod tidy && go build -trimpath -o first .")

	want := strings.Split(strings.TrimSuffix(blocks(install, "")[0], "\n"), "\n")
	if got := run(t, dir, len(want)); !slices.Equal(got, want) {
		t.Errorf("it prints\n%s\nREADME.md says\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// "Both are duplicates, and nothing is charged."
	want = []string{want[1], want[1]}
	if got := run(t, dir, len(want)); !slices.Equal(got, want) {
		t.Errorf("the second time it prints\n%s", strings.Join(got, "\n"))
	}
	if n, err := client.XLen(t.Context(), "payments").Result(); n != 1 || err != nil {
		t.Errorf("%d entries, %v; want 1", n, err)
	}
}

// blocks are the fenced blocks of a language.
func blocks(text, language string) []string {
	var found []string
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 0 { // between blocks
			continue
		}
		if head, body, _ := strings.Cut(part, "\n"); head == language {
			found = append(found, body+"\n")
		}
	}
	return found
}

func bash(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=local", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// run starts the program, presses Ctrl-C after so many lines, and returns all that it printed.
func run(t *testing.T, dir string, lines int) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "first"))
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	giveUp := time.AfterFunc(within, func() { _ = cmd.Process.Kill() })
	defer giveUp.Stop()
	var got []string
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		if got = append(got, scanner.Text()); len(got) == lines {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v after %q\n%s", err, got, log.String())
	}
	return got
}
