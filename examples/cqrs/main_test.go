package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// The command is sent twice, and one of two handlers fails the first time: all is done once.
func TestOrderIsDoneOnce(t *testing.T) {
	server := miniredis.RunT(t)
	var out bytes.Buffer
	if err := run(t.Context(), server.Addr(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := lines[len(lines)-1], "placed 1, charged 1, mails tried 2, mailed 1"; got != want {
		t.Errorf("%s\nwant %s", &out, want)
	}
	for _, want := range []string{"customer: the command was sent: added", "customer: the command was sent: duplicate"} {
		if !slices.Contains(lines, want) {
			t.Errorf("%s\nwant %q", &out, want)
		}
	}
	if left := server.Keys(); len(left) > 0 {
		t.Errorf("left on the server: %q", left)
	}
}
