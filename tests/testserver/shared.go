package testserver

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shared holds the servers that the tests of this process share.
var shared = struct {
	sync.Mutex
	nodes map[Kind]*node
}{nodes: map[Kind]*node{}}

// Shared returns the one plain server of its kind in this test process, starting it if
// nobody has. Tests on it keep apart by unique names, see [Topic], and don't stop it or
// change its configuration. TestMain must call [Main], which ends it.
func Shared(t testing.TB, kind Kind) *Server {
	t.Helper()
	program := kind.program(t)
	shared.Lock()
	defer shared.Unlock()
	n := shared.nodes[kind]
	if n == nil {
		dir, err := os.MkdirTemp("", "shared-"+string(kind)+"-") //nolint:usetesting // it outlives this test
		if err != nil {
			t.Fatal(err)
		}
		if n, err = newNode(recipe{program: program, base: plain}, dir); err != nil {
			_ = os.RemoveAll(dir)
			t.Fatalf("%s: %v", kind, err)
		}
		shared.nodes[kind] = n
	}
	return &Server{node: n, t: t, kind: kind, isShared: true}
}

// Each runs a test on the shared server of every kind.
func Each(t *testing.T, run func(t *testing.T, s *Server)) {
	t.Helper()
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) { run(t, Shared(t, kind)) })
	}
}

// Topic returns a name that no other test and no earlier run uses.
func Topic(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		default:
			return '_'
		}
	}, t.Name())
	return fmt.Sprintf("%s-%08x", name, rand.Uint32())
}

// Main runs the tests of a package, ends the shared servers and then looks for leaked
// goroutines:
//
//	func TestMain(m *testing.M) { testserver.Main(m) }
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	EndShared()
	if code == 0 {
		err := goleak.Find(ignore...)
		// The dialer of a client whose server was down looks once a second whether the
		// client is closed.
		for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
			err = goleak.Find(ignore...)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "goleak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// EndShared ends the servers that tests have shared.
func EndShared() {
	shared.Lock()
	defer shared.Unlock()
	for kind, n := range shared.nodes {
		n.end()
		_ = os.RemoveAll(n.dir)
		delete(shared.nodes, kind)
	}
}
