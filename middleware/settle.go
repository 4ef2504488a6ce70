package middleware

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

const (
	settleAtATime = 4
	// settleWait bounds the wait for an acknowledgement. The Router acknowledges as soon
	// as it has published; a loop of one's own may forget to.
	settleWait = 10 * time.Minute
	// How often the acknowledgements are looked at: mostly they come at once.
	firstLook = 10 * time.Millisecond
	lastLook  = time.Second
)

// settler settles claims whose outputs are published: after the acknowledgement, since
// until then a redelivery would need them. Best effort: what is not settled is only
// memory.
//
// One goroutine looks at all messages that are not acknowledged yet, and a few settle.
// They are there only while there is something to do. Messages can't be waited for in any
// other way without a goroutine for each, of which a slow publisher makes thousands.
type settler struct {
	timeout time.Duration // of one step
	logger  watermill.LoggerAdapter
	closing chan struct{}
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // of the goroutines, which close waits for
	wg      sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	watching bool
	workers  int
	waiting  []settlement // for the acknowledgement
	due      []settlement // acknowledged
}

// settlement is a claim to be settled after the acknowledgement of its message.
type settlement struct {
	msg   *message.Message
	key   dedupe.Key
	claim dedupe.Claim
	until time.Time // nobody will acknowledge it any more
}

func newSettler(timeout time.Duration, logger watermill.LoggerAdapter) *settler {
	s := &settler{timeout: timeout, logger: logger, closing: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// afterAck settles the claim once the message is acknowledged.
func (s *settler) afterAck(msg *message.Message, key dedupe.Key, claim dedupe.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.waiting = append(s.waiting, settlement{msg, key, claim, time.Now().Add(settleWait)})
	if !s.watching {
		s.watching = true
		s.wg.Go(s.watch)
	}
}

// watch looks until nothing waits any more, less and less often while nothing happens.
func (s *settler) watch() {
	for pause := firstLook; wait.For(s.ctx, s.closing, pause); {
		s.mu.Lock()
		acked := s.look(time.Now()) > 0
		s.watching = len(s.waiting) > 0
		goesOn := s.watching
		s.mu.Unlock()
		if !goesOn {
			return
		}
		if pause = min(2*pause, lastLook); acked {
			pause = firstLook
		}
	}
}

// look finds out which messages are acknowledged, drops those that won't be, and sees to it
// that somebody settles; with the lock.
func (s *settler) look(now time.Time) (acked int) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w settlement) bool {
		if isAcked(w.msg) {
			s.due = append(s.due, w)
			acked++
			return true
		}
		return isNacked(w.msg) || now.After(w.until)
	})
	for range min(acked, settleAtATime-s.workers) {
		s.workers++
		s.wg.Go(s.work)
	}
	return acked
}

// work settles until nothing is due.
func (s *settler) work() {
	for {
		s.mu.Lock()
		if len(s.due) == 0 || s.ctx.Err() != nil {
			s.workers--
			s.mu.Unlock()
			return
		}
		next := s.due[0]
		s.due[0] = settlement{} // its message may be large
		s.due = s.due[1:]
		s.mu.Unlock()
		s.settle(next)
	}
}

func (s *settler) settle(next settlement) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := next.claim.Settle(ctx); err != nil {
		s.logger.Debug("Recorded messages could not be taken off a record; they stay until its retention is over, which costs memory only",
			watermill.LogFields{"error": err.Error(), "key": next.key.String()})
	}
}

func (s *settler) isClosed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// close settles what is acknowledged by now, and no more.
func (s *settler) close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
		s.look(time.Now())
		s.waiting = nil
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		s.stop()
		return nil
	case <-ctx.Done():
		s.stop()
		<-done
		return context.Cause(ctx)
	}
}
