package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const childEnv = "SERVICE_TEST_CHILD" // set in the instances, which are this test's program

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// instance is a running service.
type instance struct {
	api, admin string
	cmd        *exec.Cmd
	log        *bytes.Buffer // to be read when it has ended
	read       chan struct{} // closed when its log has been read to the end
}

// launch starts the service as a process, and returns when it serves.
func launch(t *testing.T, env ...string) *instance {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "HTTP_ADDR=127.0.0.1:0", "ADMIN_ADDR=127.0.0.1:0")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	i := &instance{cmd: cmd, log: new(bytes.Buffer), read: make(chan struct{})}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-i.read
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of an instance:\n%s", i.log)
		}
	})
	listening := make(chan [2]string, 2)
	go func() {
		defer close(i.read)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			i.log.Write(append(scan.Bytes(), '\n'))
			var line struct{ Msg, Part, Addr string }
			if json.Unmarshal(scan.Bytes(), &line) == nil && line.Msg == "listening" {
				listening <- [2]string{line.Part, "http://" + line.Addr}
			}
		}
	}()
	for range 2 {
		select {
		case l := <-listening:
			if l[0] == "api" {
				i.api = l[1]
			} else {
				i.admin = l[1]
			}
		case <-i.read:
			t.Fatal("the service has ended")
		case <-time.After(30 * time.Second):
			t.Fatal("the service does not listen")
		}
	}
	return i
}

// stop sends SIGTERM, and checks that it ends well.
func (i *instance) stop(t *testing.T) {
	t.Helper()
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-i.read
	if err := i.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// kill is kill -9.
func (i *instance) kill(t *testing.T) {
	t.Helper()
	if err := i.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-i.read
	_ = i.cmd.Wait()
}

// request makes a request. The code is 0 without an answer, as while the service is restarted.
func request(t *testing.T, method, url, key, body string) (code int, answer string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return res.StatusCode, string(text), res.Header
}

// eventually polls until done is nil.
func eventually(t *testing.T, done func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in 30 s: %v", err)
		}
	}
}

// wantMetric waits until a line of /metrics ends with the value.
func (i *instance) wantMetric(t *testing.T, series, value string) {
	t.Helper()
	eventually(t, func() error {
		_, text, _ := request(t, http.MethodGet, i.admin+"/metrics", "", "")
		for line := range strings.Lines(text) {
			if got, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
				if got == value {
					return nil
				}
				return fmt.Errorf("%s is %s, want %s", series, got, value)
			}
		}
		return fmt.Errorf("there is no %s", series)
	})
}
