package existingapp

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// maxChanged is how many lines the move may change, removed and added ones together.
const maxChanged = 10

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// changed counts the lines that are in one of two lists and not in the other.
func changed(a, b []string) int {
	counts := make(map[string]int)
	for _, line := range a {
		counts[line]++
	}
	for _, line := range b {
		counts[line]--
	}
	n := 0
	for _, c := range counts {
		n += max(c, -c)
	}
	return n
}

func TestMoveIsSmall(t *testing.T) {
	n := changed(lines(t, "before/app.go"), lines(t, "after/app.go"))
	if n == 0 || n > maxChanged {
		t.Errorf("%d lines change, at most %d may", n, maxChanged)
	}
}

func TestBothRunAlike(t *testing.T) {
	const want = "charged  {\"order_id\":1,\"amount\":100}\n" +
		"charged  {\"order_id\":3,\"amount\":300}\n" +
		"poisoned {\"order_id\":2,\"amount\":0}\n"
	for _, app := range []string{"before", "after"} {
		cmd := exec.Command("go", "run", "./"+app)
		cmd.Env = append(os.Environ(), "REDIS_ADDR=")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", app, err)
		}
		if string(out) != want {
			t.Errorf("%s prints:\n%swant:\n%s", app, out, want)
		}
	}
}
