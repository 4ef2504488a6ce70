package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// The forwarders are this test's program.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	if task := os.Getenv(forwarderEnv); task != "" {
		if err := forward(context.Background(), task, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestOneEntryForEachCommittedOrder(t *testing.T) {
	const kills = 5
	server := miniredis.RunT(t)
	var out bytes.Buffer
	if err := run(t.Context(), place{redis: server.Addr()}, kills, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var committed, rolledBack, killed, entries int
	if _, err := fmt.Sscanf(lines[len(lines)-1], "committed=%d rolled_back=%d kills=%d entries=%d duplicates=0 missing=0",
		&committed, &rolledBack, &killed, &entries); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if committed == 0 || rolledBack == 0 || killed != kills || entries != committed {
		t.Errorf("%s", &out)
	}
	// A run in which no forwarder died in between would show nothing.
	again := regexp.MustCompile(`off the outbox: (\d+)\.`).FindStringSubmatch(out.String())
	if again == nil || again[1] == "0" {
		t.Errorf("no event was published again:\n%s", &out)
	}
	if left := server.Keys(); len(left) > 0 {
		t.Errorf("left on the server: %q", left)
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		at   place
		want string
	}{
		"address of Redis": {place{redis: "redis://h:x"}, "REDIS_ADDR: "},
		"database":         {place{database: "postgres://nobody@127.0.0.1:1/x"}, "connect"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.at.redis == "" {
				c.at.redis = miniredis.RunT(t).Addr()
			}
			if err := run(t.Context(), c.at, 1, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
