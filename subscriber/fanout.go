package subscriber

import (
	"context"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// fanOutSource reads a stream without a group.
type fanOutSource struct {
	*shared
	block  time.Duration
	last   streamid.ID    // read up to here
	lookAt ledger.Instant // when to look whether the stream is another one
}

// start finds the ID to read from, so that what is added from now on is not missed.
func (s *fanOutSource) start(ctx context.Context) error {
	start := s.cfg.StartFrom.argument()
	info, _, err := s.group.Stream(ctx) // shows a key of another type
	switch start {
	case "0":
	case "$":
		s.last = info.Last
	default:
		id, parseErr := streamid.Parse(start)
		if parseErr != nil {
			return parseErr
		}
		s.last = id
	}
	return group.Explain(err)
}

func (s *fanOutSource) read(ctx context.Context, count int) ([]group.Entry, error) {
	entries, err := s.group.ReadAfter(ctx, s.last, count, s.block)
	if len(entries) > 0 {
		s.last = entries[len(entries)-1].ID
	}
	return entries, err
}

// idle notices a stream that was deleted and has begun again with lower IDs. It looks once a
// heartbeat.
func (s *fanOutSource) idle(ctx context.Context) error {
	now := s.ledger.Now()
	if now < s.lookAt {
		return nil
	}
	s.lookAt = now + ledger.Instant(s.cfg.Heartbeat)
	info, exists, err := s.group.Stream(ctx)
	if err != nil {
		return err
	}
	if exists && s.last.After(info.Last) {
		s.report.error("Reading the stream from its beginning", errStreamAnew, nil)
		s.last = streamid.ID{}
	}
	return nil
}
