package server

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Script is a Lua script that is sent once, see [Command]. All of its keys must be
// in one slot.
type Script struct{ body, sha any } // texts

// NewScript makes a script of its source.
func NewScript(body string) *Script {
	sum := sha1.Sum([]byte(body))
	return &Script{body: body, sha: hex.EncodeToString(sum[:])}
}

// Run runs the script. A server that has not seen it yet has run nothing and is
// sent the source.
func (s *Script) Run(ctx context.Context, p Processor, keys []string, args ...any) (any, error) {
	words := make([]any, 0, len(keys)+len(args))
	for _, key := range keys {
		words = append(words, key)
	}
	return s.RunWords(ctx, p, len(keys), append(words, args...))
}

// RunWords is Run for keys and arguments that are in one list, the keys first.
func (s *Script) RunWords(ctx context.Context, p Processor, keys int, words []any) (any, error) {
	reply, err := s.send(ctx, p, "evalsha", s.sha, keys, words)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.send(ctx, p, "eval", s.body, keys, words)
	}
	return reply, err
}

func (*Script) send(ctx context.Context, p Processor, verb string, text any, keys int, words []any) (any, error) {
	all := append(make([]any, 0, 3+len(words)), verb, text, keys)
	cmd := NewCommand(ctx, 3, append(all, words...)...)
	if err := Process(ctx, p, cmd); err != nil {
		return nil, err
	}
	if cmd.Val() == nil { // a script's own nil is redis.Nil
		return nil, fmt.Errorf("script: %w", ErrNoReply)
	}
	return cmd.Result()
}
