package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/onceward/watermill-idempotent/internal/layout"
)

// The command that sizes a window prints what the publisher does.
func TestSizingOfOperations(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	command := blocks(string(text), "sh")[0]
	if strings.Count(command, "entries=100000 ") != 1 {
		t.Fatalf("this is another command: %s", command)
	}
	for _, entries := range []int{1, 10_000, 10_001, 100_000, 1_000_000} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", strings.Replace(command, "100000", fmt.Sprint(entries), 1)).CombinedOutput()
		if want := fmt.Sprint(layout.ShardsFor(entries)); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%d entries: %s, %v; the publisher takes %s producer IDs", entries, out, err, want)
		}
	}
	sure := layout.Capacity(layout.ShardsFor(100_000), 10_000)
	if want := fmt.Sprintf("%d,%03d for 100,000", sure/1000, sure%1000); !strings.Contains(string(text), want) {
		t.Errorf("what they hold for sure is %s", want)
	}
}
