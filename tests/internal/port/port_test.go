package port

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

const asked = "PORT_TEST_ASKED"

// TestMain is also the other process: it says by its exit code whether it got the port.
func TestMain(m *testing.M) {
	number := os.Getenv(asked)
	if number == "" {
		os.Exit(m.Run())
	}
	_, release, err := Reserve()
	if err != nil {
		os.Exit(2)
	}
	release()
	p, err := strconv.Atoi(number)
	if err != nil {
		os.Exit(2)
	}
	if lock(p, syscall.F_WRLCK) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func anotherProcessGets(t *testing.T, port int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asked+"="+strconv.Itoa(port))
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 {
		t.Fatal(err)
	}
	return err == nil
}

func TestAReservedPortIsOurs(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		p, release, err := Reserve()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		if seen[p] {
			t.Fatalf("port %d twice", p)
		}
		seen[p] = true
	}
	p, release, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", Addr(p))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if anotherProcessGets(t, p) {
		t.Error("another process got it, too")
	}
	release()
	if !anotherProcessGets(t, p) {
		t.Error("it was given back, and nobody gets it")
	}
}
