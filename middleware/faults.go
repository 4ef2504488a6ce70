package middleware

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// logEvery is how often something that goes on is logged.
const logEvery = 30 * time.Second

// What the store is asked for. Each fails and is over by itself: a right may be missing
// for one of them alone.
const (
	faultClaim  = "claim"
	faultRecord = "record"
)

// faults remember what keeps events from being handled, for all goroutines together, so
// that one fault makes few log lines, and Health can report it.
type faults struct {
	logger watermill.LoggerAdapter
	// forgetAfter is when a fault counts as over that was not seen again: the messages
	// that it was about have gone elsewhere.
	forgetAfter time.Duration

	any  atomic.Bool // so that over costs nothing while all is well
	mu   sync.Mutex
	list map[string]*fault
}

type fault struct {
	text                string
	err                 error
	since, last, logged time.Time
}

// storeFault notes what the store has answered.
func (f *faults) storeFault(what string, err error, fields watermill.LogFields) {
	then := "events wait until it works again"
	if what == faultRecord {
		then = "a handler has run; its event comes again, and the handler runs again unless this was recorded after all"
	}
	text := "Store is unavailable: "
	switch {
	case errors.Is(err, dedupe.ErrRefused):
		text = "Store refuses, and an operator has to mend that (a missing table: run the store's Migrate; a missing right: grant it): "
	case errors.Is(err, dedupe.ErrClosed):
		text = "Store was closed while messages still come (close the Router first, then the Once, then the store): "
	case errors.Is(err, dedupe.ErrFull):
		text = "Store is full (give it more room, or a shorter Retention): "
	}
	text += then
	f.note(what, text, err, fields)
}

// note logs a fault when it begins or changes, and every 30 s while it is seen again.
func (f *faults) note(what, text string, err error, fields watermill.LogFields) {
	now := time.Now()
	f.mu.Lock()
	known := f.list[what]
	if known == nil || now.Sub(known.last) > f.forgetAfter {
		known = &fault{since: now}
		if f.list == nil {
			f.list = make(map[string]*fault)
		}
		f.list[what] = known
		f.any.Store(true)
	}
	isDue := known.text != text || now.Sub(known.logged) >= logEvery
	known.text, known.err, known.last = text, err, now
	if isDue {
		known.logged = now
	}
	since := known.since
	f.mu.Unlock()
	if isDue {
		f.logger.Error(text, err, fields.Add(watermill.LogFields{"since": since.Format(time.RFC3339), "for": now.Sub(since).Round(time.Second).String()}))
	}
}

// over notes that something works.
func (f *faults) over(what string) {
	if !f.any.Load() {
		return
	}
	f.mu.Lock()
	known := f.list[what]
	delete(f.list, what)
	f.any.Store(len(f.list) > 0)
	f.mu.Unlock()
	if known != nil {
		f.logger.Info("Store works again: events are handled", watermill.LogFields{"step": what, "for": time.Since(known.since).Round(time.Second).String()})
	}
}

func (f *faults) health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []error
	for what, known := range f.list {
		if time.Since(known.last) <= f.forgetAfter {
			list = append(list, fmt.Errorf("%s, since %s: %w", what, known.since.Format(time.RFC3339), known.err))
		}
	}
	slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(list...)
}

// seldom keeps the log from repeating itself. There is an entry for each topic, handler
// and the like, which are few.
type seldom struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// due reports that something was not logged in the last 30 s.
func (s *seldom) due(what ...string) bool { return s.pass(logEvery, what) }

// first reports that it was not logged before.
func (s *seldom) first(what ...string) bool { return s.pass(1<<63-1, what) }

func (s *seldom) pass(every time.Duration, what []string) bool {
	key, now := strings.Join(what, "\x00"), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[key]; ok && now.Sub(last) < every {
		return false
	}
	if s.last == nil {
		s.last = make(map[string]time.Time)
	}
	s.last[key] = now
	return true
}
