package redisstore

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
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

	commitScript = newSpender(commitBody)
	renewScript  = server.NewScript(renewBody)
	removeScript = server.NewScript(removeBody)
	settleScript = newSpender(settleBody)
	forgetScript = server.NewScript(forgetBody)
)

// runner is a script.
type runner interface {
	RunWords(ctx context.Context, p server.Processor, keys int, words []any) (any, error)
}

// spender is a script that may use memory when the server has none left for writes. What
// it writes is the record of a handler that has run: refused, the handler runs again, and
// its claim, which the record replaces, has memory already.
//
// Servers before Redis 7.0 and those for tests, such as miniredis, take the flags for a
// fault of the script. They get it without.
type spender struct{ flagged, plain *server.Script }

func newSpender(body string) spender {
	return spender{server.NewScript("#!lua flags=allow-oom\n" + body), server.NewScript(body)}
}

// RunWords implements runner.
func (s spender) RunWords(ctx context.Context, p server.Processor, keys int, words []any) (any, error) {
	reply, err := s.flagged.RunWords(ctx, p, keys, words)
	if err != nil && redis.HasErrorPrefix(err, "Error compiling script") {
		return s.plain.RunWords(ctx, p, keys, words)
	}
	return reply, err
}

// step is one command or script. It is sent once each time it is run.
type step struct {
	run func(ctx context.Context, p server.Processor) (any, error)
	// key is set where the step is commands of this key by the processor that it is given,
	// and small: it may go out with those of others.
	key string
}

type reply struct {
	value any
	err   error
}

// sending is what became of a step that was sent, perhaps several times.
type sending struct {
	reply
	// last is when it was sent for the last time.
	last time.Time
	// unknown means that some try may have run without its reply having been seen.
	unknown bool
	// pending is closed when the try has ended that was still on its way when the caller's
	// context ended.
	pending <-chan struct{}
}

// once sends a step once, by itself. The caller's context ends the waiting, whatever the
// client thinks of contexts: by default go-redis does not look at their deadlines.
func (s *Store) once(ctx context.Context, st step) (r reply, pending <-chan struct{}) {
	if ctx.Err() != nil {
		return reply{err: context.Cause(ctx)}, nil
	}
	if !s.begin() {
		return reply{err: dedupe.ErrClosed}, nil
	}
	var got reply
	done := make(chan struct{})
	go func() {
		defer s.running.Done()
		defer close(done)
		defer func() {
			if p := recover(); p != nil { // a hook of the client's: it would end the process
				got = reply{err: fmt.Errorf("the client panicked: %v\n%s", p, debug.Stack())}
			}
		}()
		got.value, got.err = st.run(context.WithoutCancel(ctx), s.cfg.Client)
	}()
	select {
	case <-done:
		return got, nil
	case <-ctx.Done():
		return reply{err: context.Cause(ctx)}, done
	case <-s.ending:
		return reply{err: dedupe.ErrClosed}, done
	}
}

// together sends a step once, with those of others where that is possible.
func (s *Store) together(ctx context.Context, st step) (r reply, pending <-chan struct{}) {
	if st.key == "" || ctx.Err() != nil {
		return s.once(ctx, st)
	}
	node := s.batch.master(ctx, st.key)
	if node == nil {
		r, pending = s.once(ctx, st)
		if r.err == nil || errors.Is(r.err, redis.Nil) {
			s.batch.known.Store(true)
		}
		return r, pending
	}
	if !s.begin() {
		return reply{err: dedupe.ErrClosed}, nil
	}
	defer s.running.Done()
	p := &passenger{batcher: s.batch, node: node, ending: s.ending}
	r.value, r.err = st.run(ctx, p)
	return r, p.pending
}

// retryFor bounds the steps that no lease bounds: those of operators.
const retryFor = 10 * time.Second

// isFinal reports that a step would get the same answer again.
func isFinal(err error) bool {
	return errors.Is(err, dedupe.ErrTooLarge) || server.Classify(err) == server.Final
}

// send sends a step until the server has answered, the time is over, or ctx ends. All
// steps survive being sent twice.
func (s *Store) send(ctx context.Context, until time.Time, st step) sending {
	return s.sendUnless(ctx, isFinal, until, st)
}

// sendUnless sends a step as send does, but also after answers that are not final. Without
// a time ctx alone ends it. What has failed goes out by itself, so that one that can't be sent
// is no trouble for others, and a cluster's client hears of it.
func (s *Store) sendUnless(ctx context.Context, final func(error) bool, until time.Time, st step) (out sending) {
	var pause *backoff.ExponentialBackOff
	for try := s.together; ; try = s.once {
		out.last = time.Now()
		before := out.err
		out.reply, out.pending = try(ctx, st)
		if out.pending != nil {
			out.unknown = true
			out.err = errors.Join(out.err, before) // the server may have said why, a try ago
			return out
		}
		if out.err == nil || errors.Is(out.err, redis.Nil) || ctx.Err() != nil || errors.Is(out.err, dedupe.ErrClosed) || final(out.err) {
			return out
		}
		out.unknown = out.unknown || server.Classify(out.err) == server.Ambiguous
		if pause == nil {
			pause = &backoff.ExponentialBackOff{InitialInterval: 10 * time.Millisecond, Multiplier: 2, MaxInterval: 500 * time.Millisecond, RandomizationFactor: 0.3}
			pause.Reset()
		}
		next := pause.NextBackOff()
		if !until.IsZero() && time.Now().Add(next).After(until) {
			return out
		}
		if !wait.For(ctx, s.ending, next) {
			out.err = errors.Join(cmp.Or(context.Cause(ctx), dedupe.ErrClosed), out.err)
			return out
		}
	}
}

// script is a step that runs a script for the record of this name, which is the first of
// the words.
func script(script runner, words ...any) step {
	return step{key: words[0].(string), run: func(ctx context.Context, p server.Processor) (any, error) {
		return script.RunWords(ctx, p, 1, words)
	}}
}

// number reads the reply of a script.
func (r reply) number() (int64, error) {
	n, ok := r.value.(int64)
	if r.err == nil && !ok {
		return 0, fmt.Errorf("unexpected reply %v", r.value)
	}
	return n, r.err
}

// yes reads the reply of a script that returns 1 or 0.
func (r reply) yes() (bool, error) {
	n, err := r.number()
	return n == 1, err
}

// explain says what to do about an error of the server.
func (s *Store) explain(what, name string, err error) error {
	switch {
	case server.IsRefusedByACL(err) || redis.HasErrorPrefix(err, "unknown command"):
		return fmt.Errorf("redisstore: %s: %w: %s: %w", what, dedupe.ErrRefused, s.grant(), err)
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return fmt.Errorf("redisstore: %s: %w: the client needs a Username and Password that the server takes: %w", what, dedupe.ErrRefused, err)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("redisstore: %s %q: %w: %w", what, name, dedupe.ErrCorrupt, err)
	}
	return fmt.Errorf("redisstore: %s %q: %w", what, name, err)
}

// grant says what the store's user needs.
func (s *Store) grant() string {
	return "grant the user what the store needs: ACL SETUSER <user> ~" + string(s.names) + "* +set +get +pttl +pexpire +del +time +eval +evalsha"
}
