package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// report is what forwarders have done.
type report struct {
	events, again int
	last          string
}

func (r *report) add(other report) {
	r.events += other.events
	r.again += other.again
	r.last = other.last
}

// process is a running forwarder.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	events chan event // closed when it has ended
}

func (w *world) start(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(task{Redis: w.redisAddr, Database: w.db.url, ID: w.db.id})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), forwarderEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, events: make(chan event)}
	go func() {
		defer close(p.events)
		lines := json.NewDecoder(stdout)
		for {
			var e event
			if lines.Decode(&e) != nil {
				return // it has ended, perhaps in the middle of a line
			}
			p.events <- e
		}
	}()
	return p, nil
}

func (r *report) note(e event) {
	r.events++
	if e.Again {
		r.again++
	}
	r.last = e.Key[strings.LastIndexByte(e.Key, ':')+1:]
}

// errTooEarly means that a forwarder has ended by itself.
var errTooEarly = errors.New("the forwarder has ended by itself")

// forwardAndKill starts a forwarder, and kills it a random while after a random number of
// events: while it publishes one, or when it has and the row is still there.
func forwardAndKill(ctx context.Context, w *world) (r report, err error) {
	p, err := w.start(ctx)
	if err != nil {
		return r, err
	}
	var when <-chan time.Time
	for after := 1 + rand.IntN(20); ; {
		select {
		case e, ok := <-p.events:
			if !ok {
				return r, errors.Join(errTooEarly, p.cmd.Wait())
			}
			if r.note(e); r.events == after {
				when = time.After(rand.N(3 * time.Millisecond))
			}
		case <-when:
			if err := p.cmd.Process.Kill(); err != nil {
				return r, err
			}
			for e := range p.events { // what it has done until then
				r.note(e)
			}
			_ = p.cmd.Wait() // "signal: killed" is what was asked for
			return r, nil
		}
	}
}

// forwardAll lets a forwarder work until the outbox is empty.
func forwardAll(ctx context.Context, w *world) (r report, err error) {
	p, err := w.start(ctx)
	if err != nil {
		return r, err
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for open := true; open; {
		var e event
		select {
		case e, open = <-p.events:
			if open {
				r.note(e)
			}
		case <-look.C:
			rows, _, err := w.db.outbox().Backlog(ctx)
			if err != nil {
				return r, err
			}
			if rows == 0 {
				_ = p.stdin.Close() // it ends in order
			}
		}
	}
	if err := p.cmd.Wait(); err != nil {
		return r, fmt.Errorf("the last forwarder: %w", err)
	}
	return r, nil
}
