package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"
)

// handling is what a consumer did with a message.
type handling struct {
	report
	consumer string
	killed   bool // then, before the acknowledgement
}

// consumeAll has a process consume the stream that is killed in the middle, between its
// work and the acknowledgement, and another one that takes over.
func consumeAll(ctx context.Context, s *server, plain bool, entries int64) (all []handling, err error) {
	t := task{Addr: s.addr, Topic: s.topic, Plain: plain}
	t.Consumer, t.DieAt = "billing-1", int(entries+1)/2
	if err := consume(ctx, t, nil, &all); err == nil {
		return all, errors.New("the first consumer was to be killed, and was not")
	} else if len(all) != t.DieAt {
		return all, err
	}
	all[len(all)-1].killed = true
	t.Consumer, t.DieAt = "billing-2", 0
	return all, consume(ctx, t, s, &all)
}

// consume runs a process until everything is acknowledged, or until it dies.
func consume(ctx context.Context, t task, s *server, all *[]handling) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if s != nil {
		go func() {
			s.waitUntilConsumed(ctx)
			_ = stdin.Close() // ends it
		}()
	}
	lines := json.NewDecoder(stdout)
	for {
		h := handling{consumer: t.Consumer}
		if err := lines.Decode(&h.report); err != nil {
			if !errors.Is(err, io.EOF) {
				cancel()
				return errors.Join(err, cmd.Wait())
			}
			return cmd.Wait()
		}
		*all = append(*all, h)
	}
}

// waitUntilConsumed waits until the group has read and acknowledged every entry.
func (s *server) waitUntilConsumed(ctx context.Context) {
	tick := time.NewTicker(idle / 10)
	defer tick.Stop()
	for !s.consumed(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *server) consumed(ctx context.Context) bool {
	groups, err := s.direct.XInfoGroups(ctx, s.topic).Result()
	if err != nil || len(groups) != 1 || groups[0].Pending > 0 {
		return false
	}
	last, err := s.direct.XRevRangeN(ctx, s.topic, "+", "-", 1).Result()
	return err == nil && len(last) == 1 && groups[0].LastDeliveredID == last[0].ID
}

// told says it for people. A plain subscriber does the work again.
func (h handling) told(before bool) string {
	switch {
	case h.Skipped:
		return "skipped, since it is done"
	case before:
		return "handled AGAIN"
	case h.killed:
		return "handled, then killed before the acknowledgement"
	default:
		return "handled"
	}
}

// counts tells how often the handlers ran, and how often they did not have to.
func counts(all []handling) (handled, skipped int) {
	for _, h := range all {
		if h.Skipped {
			skipped++
		} else {
			handled++
		}
	}
	return handled, skipped
}
