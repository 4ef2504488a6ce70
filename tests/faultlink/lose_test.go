package faultlink_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestLostReply(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){"RESP2": resp2, "RESP3": func(*redis.Options) {}} {
		t.Run(name, func(t *testing.T) {
			l, behind, direct := pair(t, change)
			key := testserver.Topic(t)
			l.LoseNext(1, "INCR")
			if err := behind.Ping(t.Context()).Err(); err != nil {
				t.Fatalf("another command: %v", err)
			}
			if err := behind.Incr(t.Context(), key).Err(); err == nil {
				t.Error("the client saw no error")
			}
			wantInt(t, direct, key, 1)
			if s := l.Stats(); s.Lost != 1 || s.Cut != 1 {
				t.Errorf("%+v", s)
			}
			if err := behind.Incr(t.Context(), key).Err(); err != nil {
				t.Errorf("the one after: %v", err)
			}
			wantInt(t, direct, key, 2)
		})
	}
}

// What go-redis does by itself, and the reason of this project.
func TestLostReplyDoublesWithRetries(t *testing.T) {
	l, _, direct := pair(t)
	key := testserver.Topic(t)
	l.LoseNext(1)
	if err := l.Client().XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: []any{"f", "v"}}).Err(); err != nil {
		t.Error(err)
	}
	if n := direct.XLen(t.Context(), key).Val(); n != 2 {
		t.Errorf("%d entries", n)
	}
}

func TestLostTransaction(t *testing.T) {
	for _, lose := range []string{"EXEC", "INCR"} {
		t.Run(lose, func(t *testing.T) {
			l, behind, direct := pair(t)
			key := testserver.Topic(t)
			l.LoseNext(1, lose)
			_, err := behind.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Incr(t.Context(), key)
				p.Incr(t.Context(), key)
				return nil
			})
			if err == nil {
				t.Error("the client saw no error")
			}
			// Cut at the QUEUED of its command it would not have been run.
			wantInt(t, direct, key, 2)
			if s := l.Stats(); s.Lost != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestLostInTheMiddleOfAPipeline(t *testing.T) {
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	seen := 0
	l.Lose(func(c faultlink.Command) bool {
		if c.Is("INCR") {
			seen++
		}
		return seen == 3
	})
	results, err := behind.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for range 5 {
			p.Incr(t.Context(), key)
		}
		return nil
	})
	if err == nil {
		t.Error("the client saw no error")
	}
	if got := received(results); got != 2 {
		t.Errorf("the client got %d replies", got)
	}
	if n, err := direct.Get(t.Context(), key).Int(); n < 3 || err != nil {
		t.Errorf("the server ran %d, %v", n, err)
	}
}

// received counts the replies that came: the client gives every command of a pipeline
// the error, but those that were answered keep their values, too.
func received(results []redis.Cmder) (n int) {
	for _, r := range results {
		if r.(*redis.IntCmd).Val() > 0 {
			n++
		}
	}
	return n
}

func TestNothingRunNothingLost(t *testing.T) {
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	ctx := t.Context()
	if err := direct.Set(ctx, key, "text", 0).Err(); err != nil {
		t.Fatal(err)
	}
	l.LoseNext(1)
	if err := behind.Incr(ctx, key).Err(); !redis.HasErrorPrefix(err, "value is not an integer") {
		t.Errorf("a refused command: %v", err)
	}
	if err := behind.EvalSha(ctx, "0000000000000000000000000000000000000000", nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("a missing script: %v", err)
	}
	l.LoseNext(1, "EXEC")
	err := behind.Watch(ctx, func(tx *redis.Tx) error {
		direct.Set(ctx, key, "changed", 0)
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, key, "mine", 0).Err() })
		return err
	}, key)
	if err != redis.TxFailedErr { //nolint:errorlint // the client's own value
		t.Errorf("an aborted transaction: %v", err)
	}
	if s := l.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRate(t *testing.T) {
	const n, p = 2000, 0.05
	run := func(seed uint64) (failed []int) {
		l, behind, direct := pair(t)
		key := testserver.Topic(t)
		l.LoseRate(p, seed)
		for i := range n {
			if behind.Incr(t.Context(), key).Err() != nil {
				failed = append(failed, i)
			}
		}
		wantInt(t, direct, key, n) // every one was run
		if s := l.Stats(); s.Lost != len(failed) {
			t.Errorf("%d failed, %+v", len(failed), s)
		}
		return failed
	}
	first := run(1)
	if got := float64(len(first)) / n; got < p/2 || got > 2*p {
		t.Errorf("lost %v of the replies", got)
	}
	if again := run(1); !slices.Equal(first, again) {
		t.Error("the same seed lost other replies")
	}
	if other := run(2); slices.Equal(first, other) {
		t.Error("another seed lost the same replies")
	}
}

func TestRateIsPerPipeline(t *testing.T) {
	const n, p = 300, 0.2
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	l.LoseRate(p, 1)
	failed, places := 0, map[int]bool{}
	for range n {
		results, err := behind.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for range 20 {
				p.Incr(t.Context(), key)
			}
			return nil
		})
		if err == nil {
			continue
		}
		failed++
		places[received(results)] = true
	}
	if got := float64(failed) / n; got < p/2 || got > 2*p {
		t.Errorf("%v of the pipelines failed", got)
	}
	if len(places) < 5 {
		t.Errorf("always at the same places: %v", places)
	}
	if got, err := direct.Get(t.Context(), key).Int(); err != nil || got < (n-failed)*20 {
		t.Errorf("ran %d, %v", got, err)
	}
}
