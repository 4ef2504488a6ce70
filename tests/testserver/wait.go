package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Eventually waits until check returns nil, and fails the test with its last error
// when it does not within the time given.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	if err := poll(within, check); err != nil {
		t.Fatalf("not within %v: %v", within, err)
	}
}

// errGivenUp ends polling before the deadline.
var errGivenUp = errors.New("given up")

func poll(within time.Duration, check func() error) error {
	deadline := time.Now().Add(within)
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		err := check()
		if err == nil || errors.Is(err, errGivenUp) || time.Now().After(deadline) {
			return err
		}
		pause.Reset(5 * time.Millisecond)
		<-pause.C
	}
}

// ping tells whether the server at addr takes commands. It speaks the protocol itself:
// a pooled client would keep connections to a server that is about to be killed.
func ping(addr string) error {
	conn, err := net.DialTimeout("tcp4", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(line, "+PONG"), strings.HasPrefix(line, "-NOAUTH"), strings.HasPrefix(line, "-NOPERM"):
		return nil
	default: // LOADING, MASTERDOWN
		return fmt.Errorf("PING: %s", strings.TrimSpace(line))
	}
}
