// Package port hands out loopback ports that no other test process gets.
//
// Asking the kernel for port 0 and closing it again is a race, twice over: another
// process may take the port before the server binds it, and, while a killed server is
// down, a client that dials it may be given that very port for its own end and talk
// to itself. So ports come from below the kernel's ephemeral range, and each is locked
// for as long as its owner wants it.
package port

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

const lowest, span = 20000, 12000

var (
	mu    sync.Mutex
	taken = map[int]bool{}
	// locks is never closed: closing it would give up every lock of this process.
	locks *os.File
)

// Reserve returns a free port and what gives it back.
func Reserve() (port int, release func(), err error) {
	mu.Lock()
	defer mu.Unlock()
	if locks == nil {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("watermill-idempotent-ports-%d.lock", os.Getuid()))
		if locks, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return 0, nil, fmt.Errorf("port locks: %w", err)
		}
	}
	for range 1000 {
		port = lowest + rand.IntN(span)
		// A lock of the process itself would be granted again, hence the map.
		if taken[port] || lock(port, syscall.F_WRLCK) != nil {
			continue
		}
		if !isFree(port) {
			_ = lock(port, syscall.F_UNLCK)
			continue
		}
		taken[port] = true
		return port, sync.OnceFunc(func() { giveBack(port) }), nil
	}
	return 0, nil, fmt.Errorf("no free port between %d and %d", lowest, lowest+span)
}

// Addr is the loopback address of a port.
func Addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func giveBack(port int) {
	mu.Lock()
	defer mu.Unlock()
	delete(taken, port)
	_ = lock(port, syscall.F_UNLCK)
}

// lock locks the one byte of the lock file that stands for a port.
func lock(port int, how int16) error {
	return syscall.FcntlFlock(locks.Fd(), syscall.F_SETLK, &syscall.Flock_t{
		Type: how, Whence: io.SeekStart, Start: int64(port), Len: 1,
	})
}

func isFree(port int) bool {
	l, err := net.Listen("tcp4", Addr(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
