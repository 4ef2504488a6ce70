//go:build !linux

package testserver

import "syscall"

func childAttr() *syscall.SysProcAttr { return nil }

// hasExited can't tell here: a server that ends early is noticed by its deadline.
func hasExited(int) bool { return false }

func isStopped(int) bool { return true }
