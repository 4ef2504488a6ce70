// Package idemctl_test runs the operator's tool as an operator does, as a process of its own,
// against real servers.
package idemctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/idemctl/shop"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // of servers that are away on purpose
	code := testdb.Run(m)
	if file, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(file))
	}
	os.Exit(code)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// within bounds one run of the program: it is there for hangs.
const within = time.Minute

// program builds the tool once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "idemctl-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "idemctl")
	cmd := exec.Command("go", "build", "-o", file, "github.com/onceward/watermill-idempotent/cmd/idemctl")
	cmd.Dir = filepath.Join("..", "..") // where go.work is
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

// tool runs the program with the environment of one operator.
type tool struct {
	t   *testing.T
	env []string
	dir string // where it runs; "": here
}

// at is an operator's tool for a server.
func at(t *testing.T, address string) tool {
	return tool{t: t, env: []string{"IDEMCTL_REDIS=redis://" + address, "HOME=" + t.TempDir(), "USER=anna"}}
}

// result is what a run left.
type result struct {
	t        *testing.T
	line     string
	out, err string
	code     int
}

func (o tool) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	file, err := program()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Dir = o.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, o.env...)
	return cmd, nil
}

func (o tool) run(args ...string) result {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.t.Context()), within)
	defer cancel()
	cmd, err := o.command(ctx, args...)
	if err != nil {
		o.t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		o.t.Fatal(err)
	}
	r := result{t: o.t, line: "idemctl " + strings.Join(args, " "), out: out.String(), err: errs.String(), code: cmd.ProcessState.ExitCode()}
	if strings.Contains(r.out+r.err, "panic:") || strings.Contains(r.out+r.err, "hunter2") {
		o.t.Errorf("%s panics, or shows a password:\n%s%s", r.line, r.out, r.err)
	}
	return r
}

// wants compares the exit code, and looks for texts in what was written.
func (r result) wants(code int, texts ...string) result {
	r.t.Helper()
	if r.code != code {
		r.t.Errorf("%s: exit code %d, want %d\n%s%s", r.line, r.code, code, r.out, r.err)
	}
	said := r.out + r.err
	joined := strings.Join(strings.Fields(said), " ") // lines are wrapped
	for _, text := range texts {
		if !strings.Contains(said, text) && !strings.Contains(joined, text) {
			r.t.Errorf("%s does not say %q:\n%s%s", r.line, text, r.out, r.err)
		}
	}
	return r
}

// lacks looks that a text is not there.
func (r result) lacks(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		if strings.Contains(r.out+r.err, text) {
			r.t.Errorf("%s says %q:\n%s%s", r.line, text, r.out, r.err)
		}
	}
	return r
}

// into decodes JSON, in which nothing may stand beside the result.
func (r result) into(v any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.out), v); err != nil {
		r.t.Fatalf("%s: %v\n%s%s", r.line, err, r.out, r.err)
	}
}

// filled starts a server that has the shop on it.
func filled(t *testing.T, kind testserver.Kind, opts ...testserver.Option) *testserver.Server {
	t.Helper()
	s := testserver.Start(t, kind, opts...)
	fill(t, s.Client())
	return s
}

func fill(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := shop.Fill(ctx, client); err != nil {
		t.Fatal(err)
	}
}

// contents are all keys of a server with their values, to see that nothing was changed.
func contents(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	all := make(map[string]string)
	names, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		dump, err := client.Dump(t.Context(), name).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		all[name] = dump
	}
	return all
}
