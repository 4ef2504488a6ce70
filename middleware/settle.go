package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

const (
	settleAtATime = 4
	// settleWait bounds the wait for an acknowledgement. The Router acknowledges as soon
	// as it has published; a loop of one's own may forget to.
	settleWait = 10 * time.Minute
)

func (s *settler) init(o *Once) {
	s.once, s.slots, s.closing = o, make(chan struct{}, settleAtATime), make(chan struct{})
	s.ctx, s.stop = context.WithCancel(context.Background())
}

// afterAck settles the claim once the message is acknowledged.
func (s *settler) afterAck(msg *message.Message, key dedupe.Key, claim dedupe.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wg.Go(func() {
		if acked(s.ctx, msg, s.closing) {
			s.settle(key, claim)
		}
	})
}

// acked waits for the acknowledgement. When closing, it only looks.
func acked(ctx context.Context, msg *message.Message, closing <-chan struct{}) bool {
	timer := time.NewTimer(settleWait)
	defer timer.Stop()
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
	case <-timer.C:
	case <-ctx.Done():
	case <-closing:
		return isAcked(msg)
	}
	return false
}

func isAcked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func (s *settler) settle(key dedupe.Key, claim dedupe.Claim) {
	select {
	case s.slots <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	defer func() { <-s.slots }()
	ctx, cancel := context.WithTimeout(s.ctx, s.once.cfg.StoreTimeout)
	defer cancel()
	if err := claim.Settle(ctx); err != nil {
		s.once.logger.Debug("Recorded messages could not be taken off a record; they stay until its retention is over, which costs memory only",
			watermill.LogFields{"error": err.Error(), "key": key.String()})
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

func (s *settler) close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
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
