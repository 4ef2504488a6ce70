package testserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/tests/internal/port"
)

const (
	startWithin = 30 * time.Second // reading a large append-only file back takes its time
	adminWithin = 30 * time.Second // a busy machine answers late
	stopWithin  = 15 * time.Second // a primary waits up to 10 s for its replicas
)

type setting struct{ name, value string }

// Option changes how a server is started.
type Option func(*recipe)

// Set gives a line of the server's configuration; it wins over the harness' own.
func Set(name, value string) Option {
	return func(r *recipe) { r.settings = append(r.settings, setting{name, value}) }
}

// recipe is what a node is made of.
type recipe struct {
	program  string
	args     []string // behind the configuration file
	settings []setting
	base     func(port int) []setting // what the settings stand on
}

func plain(int) []setting {
	return []setting{
		{"save", ""}, {"appendonly", "no"},
		{"enable-debug-command", "yes"},
		{"repl-diskless-sync-delay", "0"}, // a replica is ready in milliseconds, not in 5 s
	}
}

// node is a server process with its port and its folder, over restarts.
type node struct {
	recipe
	dir     string
	port    int
	release func()

	mu   sync.Mutex
	proc *process // nil while it is down
}

// newNode starts a server in dir.
func newNode(r recipe, dir string) (*node, error) {
	for try := 1; ; try++ {
		number, release, err := port.Reserve()
		if err != nil {
			return nil, err
		}
		n := &node{recipe: r, dir: dir, port: number, release: release}
		if err = n.configure(); err == nil {
			err = n.start()
		}
		if err == nil {
			return n, nil
		}
		release()
		// Whoever does not know our locks may have taken the port meanwhile.
		if try == 5 || !strings.Contains(n.logTail(), "Address already in use") {
			return nil, err
		}
	}
}

func (n *node) addr() string { return port.Addr(n.port) }

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// configure writes the configuration file. It is written once: CONFIG REWRITE and
// Sentinel change it, and a restart must keep that.
func (n *node) configure() error {
	all := []setting{
		{"bind", "127.0.0.1"}, {"port", strconv.Itoa(n.port)}, {"protected-mode", "no"},
		{"dir", strconv.Quote(n.dir)}, {"daemonize", "no"}, {"logfile", ""},
	}
	if n.base != nil {
		all = append(all, n.base(n.port)...)
	}
	given := map[string]bool{}
	for _, s := range n.settings {
		given[strings.ToLower(s.name)] = true
	}
	var conf bytes.Buffer
	line := func(s setting) {
		if s.value == "" {
			s.value = `""`
		}
		fmt.Fprintf(&conf, "%s %s\n", s.name, s.value)
	}
	for _, s := range all {
		if !given[s.name] {
			line(s)
		}
	}
	for _, s := range n.settings {
		line(s)
	}
	return os.WriteFile(n.file("server.conf"), conf.Bytes(), 0o600)
}

// start starts the process and returns when it answers.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != nil {
		return fmt.Errorf("%s runs already", n.addr())
	}
	proc, err := spawn(n.program, append([]string{n.file("server.conf")}, n.args...), n.dir, n.file("log"))
	if err != nil {
		return err
	}
	err = poll(startWithin, func() error {
		// Looked at before the PING: another process' server may answer on this port.
		exited := hasExited(proc.cmd.Process.Pid)
		err := ping(n.addr())
		if exited {
			return fmt.Errorf("%w: it ended at once", errGivenUp)
		}
		return err
	})
	if err != nil {
		proc.kill()
		return fmt.Errorf("%s does not start: %w\n%s", filepath.Base(n.program), err, n.logTail())
	}
	n.proc = proc
	return nil
}

// take removes the process, so that it is ended once only.
func (n *node) take() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	proc := n.proc
	n.proc = nil
	return proc
}

func (n *node) running() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

func (n *node) kill() {
	if proc := n.take(); proc != nil {
		proc.kill()
	}
}

// end kills the server and gives its port back.
func (n *node) end() {
	n.kill()
	n.release()
}

func (n *node) log() string {
	log, err := os.ReadFile(n.file("log"))
	if err != nil {
		return err.Error()
	}
	return string(log)
}

func (n *node) logTail() string {
	lines := strings.Split(strings.TrimSpace(n.log()), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
