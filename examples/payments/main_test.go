package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	if task := os.Getenv(workerEnv); task != "" { // the consumers are this test's program
		os.Exit(runWorker(context.Background(), task))
	}
	os.Exit(m.Run())
}

// runOK runs the program and returns what it printed.
func runOK(t *testing.T, addr string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, addr, strings.NewReader(""), &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	return stdout.String()
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// What the shipped file has.
const (
	once        = "events=10 publishes=16 entries=10 duplicates=5 conflicts=1 mode="
	handledOnce = " handled=10 skipped=1"
)

func TestShippedEventsAreInTheStreamOnce(t *testing.T) {
	for loss, seeds := range map[string][]string{"0": {"1"}, "0.2": {"2", "40"}, "0.5": {"1", "2"}} {
		for _, seed := range seeds {
			t.Run("loss "+loss+" seed "+seed, func(t *testing.T) {
				t.Parallel()
				out := runOK(t, "", "-loss", loss, "-seed", seed)
				if got := lastLine(out); got != once+"latch"+handledOnce {
					t.Errorf("%s\nwanted %slatch%s", out, once, handledOnce)
				}
				if !strings.Contains(out, "then killed before the acknowledgement") {
					t.Errorf("nobody was killed:\n%s", out)
				}
				for line := range strings.Lines(out) {
					if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 120 {
						t.Errorf("wider than 120 columns: %s", line)
					}
				}
				if !strings.Contains(out, "CONFLICT amount 25.00, stored 20.00") {
					t.Errorf("the conflict is not told:\n%s", out)
				}
				if strings.Contains(out, "(reply lost") != (loss == "0.5") && loss != "0.2" {
					t.Errorf("loss %s, seed %s:\n%s", loss, seed, out)
				}
			})
		}
	}
}

func TestPlainLeavesDuplicates(t *testing.T) {
	if got, want := lastLine(runOK(t, "", "-plain", "-loss", "0")), "events=10 publishes=16 entries=16 duplicates=6 conflicts=0 mode=plain handled=17 skipped=0"; got != want {
		t.Errorf("without loss: %s, wanted %s", got, want)
	}
	out := runOK(t, "", "-plain", "-loss", "0.5")
	var entries, duplicates, handled int
	if _, err := fmt.Sscanf(lastLine(out), "events=10 publishes=16 entries=%d duplicates=%d conflicts=0 mode=plain handled=%d skipped=0", &entries, &duplicates, &handled); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if entries <= 16 || duplicates != entries-10 {
		t.Errorf("lost replies left no duplicates:\n%s", out)
	}
	if handled != entries+1 { // the one whose consumer was killed comes again
		t.Errorf("handled %d of %d entries:\n%s", handled, entries, out)
	}
}

func TestReadsFilesAndStandardInput(t *testing.T) {
	const input = `{"order_id":7,"payment_id":"a"}

{"order_id":7,"payment_id":"a"}
{"order_id":7,"payment_id":"b","amount":1e3}`
	file := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "events=2 publishes=3 entries=2 duplicates=1 conflicts=0 mode=latch handled=2 skipped=1"
	if out := runOK(t, "", "-in", file); lastLine(out) != want {
		t.Errorf("%s\nwanted %s", out, want)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-in", "-"}, "", strings.NewReader(input), &stdout, &stderr); code != exitOK || lastLine(stdout.String()) != want {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		addr  string
		input string
		code  int
		want  string
	}{
		"flag":          {args: []string{"-los", "1"}, code: exitUsage, want: "-los"},
		"loss":          {args: []string{"-loss", "1"}, code: exitUsage, want: "-loss 1 is outside 0 to 0.9"},
		"NaN":           {args: []string{"-loss", "NaN"}, code: exitUsage, want: "-loss NaN is outside"},
		"argument":      {args: []string{"events.jsonl"}, code: exitUsage, want: `unexpected argument "events.jsonl"`},
		"no file":       {args: []string{"-in", "no-such-file"}, code: exitFailed, want: "no-such-file"},
		"empty":         {input: "\n\n", code: exitFailed, want: "standard input: no events"},
		"not JSON":      {input: "{\"order_id\":1,\"payment_id\":\"a\"}\n\n{", code: exitFailed, want: "standard input, line 3: not a JSON object"},
		"no payment":    {input: `{"order_id":"1"}`, code: exitFailed, want: "line 1: the field $.payment_id is missing or empty"},
		"empty payment": {input: `{"order_id":"1","payment_id":""}`, code: exitFailed, want: "the field $.payment_id is missing or empty"},
		"object":        {input: `{"order_id":{},"payment_id":"a"}`, code: exitFailed, want: "it is an object"},
		"long key":      {input: `{"order_id":1,"payment_id":"` + strings.Repeat("a", 2048) + `"}`, code: exitFailed, want: "line 1: idempotency key is 2054 bytes long"},
		"long line":     {input: "\n" + strings.Repeat("a", maxLine+1), code: exitFailed, want: "line 2: longer than"},
		"address":       {addr: "redis://h:x", args: []string{"-loss", "0"}, code: exitFailed, want: "REDIS_ADDR: "},
	} {
		t.Run(name, func(t *testing.T) {
			args := c.args
			if args == nil {
				args = []string{"-in", "-"}
			}
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), args, c.addr, strings.NewReader(c.input), &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, wanted %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("%q is not in: %s", c.want, &stderr)
			}
		})
	}
}

func TestRealServers(t *testing.T) {
	for kind, mode := range map[string]string{
		"redis-8.6": "idmp", "redis-8.0": "latch", "redis-7.0": "latch", "valkey-8.1": "latch", "valkey-9.1": "latch",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			addr := startServer(t, kind)
			for range 2 { // a run is repeatable
				if got, want := lastLine(runOK(t, addr, "-loss", "0.5")), once+mode+handledOnce; got != want {
					t.Errorf("%s, wanted %s", got, want)
				}
			}
			out := lastLine(runOK(t, addr, "-plain", "-loss", "0.5"))
			if !regexp.MustCompile(`entries=(1[7-9]|[2-9]\d) .*mode=plain handled=`).MatchString(out) {
				t.Errorf("plain: %s", out)
			}
			ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer stop()
			if code := run(ctx, []string{"-loss", "0.9"}, addr, nil, io.Discard, io.Discard); code != exitFailed {
				t.Errorf("interrupted: exit code %d", code)
			}
			o, err := clientOptions(addr)
			if err != nil {
				t.Fatal(err)
			}
			client := redis.NewClient(o)
			defer func() { _ = client.Close() }()
			if keys, err := client.Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
				t.Errorf("left behind: %q, %v", keys, err)
			}
		})
	}
}
