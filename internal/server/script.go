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
type Script struct{ body, sha string }

// NewScript makes a script of its source.
func NewScript(body string) *Script {
	sum := sha1.Sum([]byte(body))
	return &Script{body: body, sha: hex.EncodeToString(sum[:])}
}

// Run runs the script. A server that has not seen it yet has run nothing and is
// sent the source.
func (s *Script) Run(ctx context.Context, p Processor, keys []string, args ...any) (any, error) {
	reply, err := s.send(ctx, p, "evalsha", s.sha, keys, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.send(ctx, p, "eval", s.body, keys, args)
	}
	return reply, err
}

func (s *Script) send(ctx context.Context, p Processor, verb, text string, keys []string, args []any) (any, error) {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, verb, text, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	cmd := NewCommand(ctx, 3, append(words, args...)...)
	if err := Process(ctx, p, cmd); err != nil {
		return nil, err
	}
	if cmd.Val() == nil { // a script's own nil is redis.Nil
		return nil, fmt.Errorf("script: %w", ErrNoReply)
	}
	return cmd.Result()
}
