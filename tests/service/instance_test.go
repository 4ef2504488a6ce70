package service_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/internal/port"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// build builds the program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "service")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./service")
	cmd.Dir = filepath.Join("..", "..", "examples")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// instance is one of the service, at addresses that it keeps when it is started again.
type instance struct {
	t          *testing.T
	program    string
	env        []string
	api, admin string
	cmd        *exec.Cmd
	log        bytes.Buffer
}

func newInstance(t *testing.T, program string, env ...string) *instance {
	t.Helper()
	i := &instance{t: t, program: program, env: env}
	for _, a := range []struct {
		variable string
		url      *string
	}{{"HTTP_ADDR", &i.api}, {"ADMIN_ADDR", &i.admin}} {
		number, free, err := port.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(free)
		*a.url = "http://" + port.Addr(number)
		i.env = append(i.env, a.variable+"="+port.Addr(number))
	}
	t.Cleanup(func() {
		if i.cmd != nil {
			i.kill()
		}
		if t.Failed() {
			t.Logf("log of the instance at %s:\n%s", i.api, &i.log)
		}
	})
	return i
}

// start starts it, and returns when it is ready.
func (i *instance) start() {
	i.t.Helper()
	i.cmd = exec.Command(i.program)
	i.cmd.Env = append(os.Environ(), i.env...)
	i.cmd.Stdout, i.cmd.Stderr = &i.log, &i.log
	if err := i.cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	testserver.Eventually(i.t, 30*time.Second, func() error { return i.probe("/readyz", http.StatusOK) })
}

// stop sends SIGTERM, and checks that it ends well.
func (i *instance) stop() {
	i.t.Helper()
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		i.t.Fatal(err)
	}
	if err := i.cmd.Wait(); err != nil {
		i.t.Errorf("after SIGTERM: %v", err)
	}
	i.cmd = nil
}

// kill is kill -9.
func (i *instance) kill() {
	_ = i.cmd.Process.Kill()
	_ = i.cmd.Wait()
	i.cmd = nil
}

// probe is an error unless the probe answers with the code.
func (i *instance) probe(path string, want int) error {
	code, text, err := request(i.t.Context(), http.MethodGet, i.admin+path, "")
	if err == nil && code != want {
		err = fmt.Errorf("%s: %d %s", path, code, text)
	}
	return err
}

// metric reads the value of a series.
func (i *instance) metric(series string) float64 {
	i.t.Helper()
	_, text, err := request(i.t.Context(), http.MethodGet, i.admin+"/metrics", "")
	if err != nil {
		i.t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (.*)$`).FindStringSubmatch(text)
	if line == nil {
		return 0 // of something that it has not seen yet
	}
	value, err := strconv.ParseFloat(line[1], 64)
	if err != nil {
		i.t.Fatalf("%s: %v", series, err)
	}
	return value
}

func request(ctx context.Context, method, url, body string) (code int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Close = true // the server may be gone for the next one
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), err
}
