package testdb

import "syscall"

// childAttr lets the kernel end the server when the test process dies without its
// cleanups, and keeps Ctrl-C from hitting it first.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
