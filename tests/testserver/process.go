package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is one server process. It has no goroutine of its own, so that a leak check
// in the middle of a test does not find one of ours.
type process struct {
	cmd *exec.Cmd
}

func spawn(program string, args []string, dir, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd}, nil
}

// kill ends it at once and reaps it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // "signal: killed" is what was asked for
}

// terminate asks it to end, and kills it when it has not within the time given.
func (p *process) terminate(within time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	late := poll(within, func() error {
		if !hasExited(p.cmd.Process.Pid) {
			return fmt.Errorf("still running %v after SIGTERM", within)
		}
		return nil
	})
	if late != nil {
		_ = p.cmd.Process.Kill()
	}
	_ = p.cmd.Wait()
	return late
}

// freeze returns when the process really stands still: the signal alone only asks.
func (p *process) freeze() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(5*time.Second, func() error {
		if !isStopped(p.cmd.Process.Pid) {
			return fmt.Errorf("pid %d runs on after SIGSTOP", p.cmd.Process.Pid)
		}
		return nil
	})
}

func (p *process) thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
