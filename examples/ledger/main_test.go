package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The workers are this test's program.
func TestMain(m *testing.M) {
	if task := os.Getenv(workerEnv); task != "" {
		if err := work(context.Background(), task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestLedger(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), "", len(steps), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if want := "payments=5 kills=5 sum=510 ledger=510\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("the last line is not %q:\n%s", want, out.String())
	}
	for _, step := range steps {
		if !strings.Contains(out.String(), step) {
			t.Errorf("nobody was killed %s", step)
		}
	}
}
