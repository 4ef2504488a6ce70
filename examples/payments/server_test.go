package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startServer starts one of the servers that `make servers` brings, on a socket in a
// folder of the test. Without them the test is skipped, in CI it fails.
func startServer(t *testing.T, kind string) (url string) {
	t.Helper()
	folder := os.Getenv("IDEMPOTENT_SERVERS")
	if folder == "" {
		folder = filepath.Join("..", "..", ".servers")
	}
	product, _, _ := strings.Cut(kind, "-")
	program, err := filepath.Abs(filepath.Join(folder, kind, product+"-server"))
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
			t.Fatal(err)
		}
		t.Skipf("%s is missing: `make servers` brings it on Debian; elsewhere set IDEMPOTENT_SERVERS (%v)", kind, err)
	}
	dir, err := os.MkdirTemp("", "payments-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	var log strings.Builder
	cmd := exec.CommandContext(t.Context(), program, "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url = "unix://" + socket
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); client.Ping(t.Context()).Err() != nil; <-tick.C {
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("%s does not answer:\n%s", kind, log.String())
		}
	}
	return url
}
