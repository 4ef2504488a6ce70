package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Errors on which callers branch.
var (
	// ErrNotFound means that there is nothing of this name.
	ErrNotFound = errors.New("not found")
	// ErrWrongType means that the key of the topic holds something else than a stream.
	ErrWrongType = errors.New("the topic's key is not a stream")
	// ErrNoLatches means that the topic is not in mode Latch. In the other modes the server
	// remembers IDs by itself, and tells nobody which.
	ErrNoLatches = errors.New("the topic has no latches")
)

// Config configures an [Inspector]. Client is required.
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a *redis.ClusterClient. It
	// stays the caller's.
	Client redis.UniversalClient
	// Unmarshaller reads entries, as that of the topic's subscriber. Default: the format of
	// watermill-redisstream, and entries of others with their fields as metadata.
	Unmarshaller redisstream.Unmarshaller
}

// Inspector looks at topics. It is safe for concurrent use.
type Inspector struct {
	client redis.UniversalClient
	decode entries.Decoder
}

// New makes an Inspector. It connects to nothing. The error has all faults of the
// configuration.
func New(config Config) (*Inspector, error) {
	var f invalid.Faults
	if err := server.CheckClient(config.Client, "have these topics"); err != nil {
		f = append(f, err)
	}
	if err := f.Err("inspect: invalid config"); err != nil {
		return nil, err
	}
	return &Inspector{client: config.Client, decode: entries.NewDecoder(config.Unmarshaller)}, nil
}

// Check names the rights that the user of the client lacks for looking at a topic and its
// latches. The error is nil if there are none, and says which if there are. SCAN, for lists,
// needs no key; MEMORY USAGE and INFO are useful and not needed.
func (i *Inspector) Check(ctx context.Context, topic string) (missing []string, err error) {
	dead, latches := rediskey.DeadLetter(topic), rediskey.LatchPrefix(topic)
	rights := preflight.Uses(topic, topic, "xinfo stream", "xinfo groups", "xinfo consumers", "xpending", "xrange", "xrevrange")
	rights = append(rights, preflight.Uses(rediskey.LayoutKey(topic), rediskey.LayoutKey(topic), "hgetall")...)
	rights = append(rights, preflight.Uses(latches+"idempotent-check", latches+"*", "get", "pttl")...)
	rights = append(rights, preflight.Uses(dead, dead, "xlen")...)
	var warned error
	missing, err = preflight.Missing(ctx, i.client, topic, "topic "+topic, rights,
		func(format string, args ...any) { warned = fmt.Errorf(format, args...) })
	switch {
	case err != nil:
		return nil, fmt.Errorf("inspect: %w", err)
	case len(missing) > 0:
		return missing, fmt.Errorf("inspect: %w", preflight.Lacks(missing, "looking at topic "+topic))
	}
	return nil, warned
}

// explain says what an error of the server means to an operator.
func explain(topic string, err error) error {
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("inspect: topic %q: %w: %w", topic, ErrWrongType, err)
	case server.IsRefusedByACL(err):
		return fmt.Errorf("inspect: topic %q: the user lacks a right (Check names all that are needed): %w", topic, err)
	}
	return fmt.Errorf("inspect: topic %q: %w", topic, err)
}
