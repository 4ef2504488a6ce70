package testserver

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr lets the kernel end the server when the test process dies without its
// cleanups (a panic, a time-out, Ctrl-C), and keeps Ctrl-C from hitting it first.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// hasExited looks without reaping: that is left to Wait.
func hasExited(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the name, which stands in parentheses and may hold blanks.
	_, rest, found := bytes.Cut(stat, []byte(") "))
	return found && len(rest) > 0 && rest[0] == 'T'
}
