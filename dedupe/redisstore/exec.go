package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
)

var (
	//go:embed commit.lua
	commitBody string
	//go:embed renew.lua
	renewBody string
	//go:embed remove.lua
	removeBody string
	//go:embed settle.lua
	settleBody string
	//go:embed forget.lua
	forgetBody string

	commitScript = server.NewScript(commitBody)
	renewScript  = server.NewScript(renewBody)
	removeScript = server.NewScript(removeBody)
	settleScript = server.NewScript(settleBody)
	forgetScript = server.NewScript(forgetBody)
)

// step is one command or script. It is sent once each time it is called.
type step func(ctx context.Context) (any, error)

type reply struct {
	value any
	err   error
}

// sending tells what became of a step that was sent, perhaps several times.
type sending struct {
	reply
	// last is when it was sent for the last time.
	last time.Time
	// unknown tells that some try may have run without its reply having been seen.
	unknown bool
	// pending is the try that was still on its way when the caller's context ended.
	pending <-chan reply
}

// once sends a step once. The caller's context ends the waiting, whatever the client
// thinks of contexts: by default go-redis does not look at their deadlines.
func (s *Store) once(ctx context.Context, run step) (r reply, pending <-chan reply) {
	if ctx.Err() != nil {
		return reply{err: context.Cause(ctx)}, nil
	}
	if !s.begin() {
		return reply{err: dedupe.ErrClosed}, nil
	}
	done := make(chan reply, 1)
	go func() {
		defer s.running.Done()
		value, err := run(context.WithoutCancel(ctx))
		done <- reply{value, err}
	}()
	select {
	case r = <-done:
		return r, nil
	case <-ctx.Done():
		return reply{err: context.Cause(ctx)}, done
	case <-s.ending:
		return reply{err: dedupe.ErrClosed}, done
	}
}

// send sends a step until the server has answered, RetryFor is over, or ctx ends. All
// steps survive being sent twice.
func (s *Store) send(ctx context.Context, run step) (out sending) {
	giveUp := time.Now().Add(s.cfg.RetryFor)
	pause := &backoff.ExponentialBackOff{InitialInterval: 10 * time.Millisecond, Multiplier: 2, MaxInterval: 500 * time.Millisecond, RandomizationFactor: 0.3}
	pause.Reset()
	for {
		out.last = time.Now()
		out.reply, out.pending = s.once(ctx, run)
		if out.pending != nil {
			out.unknown = true
			return out
		}
		if out.err == nil || errors.Is(out.err, redis.Nil) || ctx.Err() != nil || errors.Is(out.err, dedupe.ErrClosed) || errors.Is(out.err, dedupe.ErrTooLarge) {
			return out
		}
		class := server.Classify(out.err)
		if class == server.Final {
			return out
		}
		out.unknown = out.unknown || class == server.Ambiguous
		wait := pause.NextBackOff()
		if time.Now().Add(wait).After(giveUp) {
			return out
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			out.err = errors.Join(context.Cause(ctx), out.err)
			return out
		case <-s.ending:
			timer.Stop()
			out.err = errors.Join(dedupe.ErrClosed, out.err)
			return out
		}
	}
}

func (s *Store) script(script *server.Script, name string, args ...any) step {
	return func(ctx context.Context) (any, error) { return script.Run(ctx, s.cfg.Client, []string{name}, args...) }
}

// yes reads the reply of a script that returns 1 or 0.
func (r reply) yes() (bool, error) {
	n, ok := r.value.(int64)
	if r.err == nil && !ok {
		return false, fmt.Errorf("unexpected reply %v", r.value)
	}
	return n == 1, r.err
}

// explain says what to do about an error of the server.
func explain(what, name string, err error) error {
	switch {
	case server.IsRefusedByACL(err) || redis.HasErrorPrefix(err, "unknown command"):
		return fmt.Errorf("redisstore: %s: %w: the user needs SET, GET, PTTL, PEXPIRE, DEL, TIME, EVAL and EVALSHA on %s*: %w", what, dedupe.ErrRefused, recordPrefix, err)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("redisstore: %s %q: %w: %w", what, name, dedupe.ErrCorrupt, err)
	}
	return fmt.Errorf("redisstore: %s %q: %w", what, name, err)
}
