package faultlink_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const misconf = "MISCONF Redis is configured to save RDB snapshots"

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestAnswerInTheServersPlace(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){"RESP2": resp2, "RESP3": func(*redis.Options) {}} {
		t.Run(name, func(t *testing.T) {
			l, behind, direct := pair(t, change)
			key := testserver.Topic(t)
			l.Answer(misconf, 1, "incr")
			if err := behind.Get(t.Context(), key).Err(); err != redis.Nil { //nolint:errorlint // exactly this
				t.Errorf("another command: %v", err)
			}
			wantError(t, behind.Incr(t.Context(), key).Err(), misconf)
			if n := direct.Exists(t.Context(), key).Val(); n != 0 {
				t.Error("the server has run it")
			}
			if err := behind.Incr(t.Context(), key).Err(); err != nil {
				t.Errorf("the second: %v", err)
			}
			l.Answer(misconf, -1)
			for range 3 {
				wantError(t, behind.Incr(t.Context(), key).Err(), misconf)
			}
			l.Heal()
			pipe := behind.Pipeline()
			l.Answer(misconf, 1, "decr")
			a, b, c := pipe.Incr(t.Context(), key), pipe.Decr(t.Context(), key), pipe.Incr(t.Context(), key)
			_, err := pipe.Exec(t.Context())
			wantError(t, err, misconf)
			wantError(t, b.Err(), misconf)
			if a.Val() != 2 || c.Val() != 3 {
				t.Errorf("around it: %v, %v", a, c)
			}
			if s := l.Stats(); s.Answered != 5 || s.Cut != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestAnswerInATransaction(t *testing.T) {
	for _, name := range []string{"multi", "decr", "exec"} {
		t.Run(name, func(t *testing.T) {
			l, behind, direct := pair(t)
			key := testserver.Topic(t)
			l.Answer(misconf, 1, name)
			tx := func() ([]redis.Cmder, error) {
				return behind.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
					pipe.Incr(context.Background(), key)
					pipe.Decr(context.Background(), key)
					pipe.Incr(context.Background(), key)
					return nil
				})
			}
			cmds, err := tx()
			if err == nil || !strings.Contains(err.Error()+cmds[1].Err().Error(), misconf) {
				t.Errorf("%v, %v", err, cmds)
			}
			if n := direct.Exists(t.Context(), key).Val(); n != 0 {
				t.Error("some of it was run")
			}
			if _, err := tx(); err != nil {
				t.Errorf("the next one: %v", err)
			}
			wantInt(t, direct, key, 1)
		})
	}
}

func TestAnswerInExec(t *testing.T) {
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	l.AnswerInExec(misconf, 1, "decr")
	cmds, _ := behind.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Incr(context.Background(), key)
		pipe.Decr(context.Background(), key)
		pipe.Incr(context.Background(), key)
		return nil
	})
	wantError(t, cmds[1].Err(), misconf)
	if cmds[0].Err() != nil || cmds[2].Err() != nil {
		t.Errorf("the others: %v", cmds)
	}
	wantInt(t, direct, key, 2)
}
