// Package group has every command and script of a consumer group, typed: what goes in and
// what comes out is checked here, and nowhere else. It keeps no state.
package group

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// HandbackConsumer is the consumer that entries are handed back to. The name is known
// to operators and to other versions of this library.
const HandbackConsumer = "handback"

// MaxBatch bounds the IDs of one call; Lua takes some 8,000 values.
const MaxBatch = 1000

// Errors of [Group.Create] and [Group.CheckDelete] on which callers branch; what they mean
// stands in package subscriber.
var (
	ErrWrongType   = errors.New("the topic's key is not a stream")
	ErrUnsupported = errors.New("not supported by the server")
)

// Group is one consumer of a group; without a name it is a reader of the stream.
type Group struct {
	client   redis.UniversalClient
	stream   string
	name     string
	consumer string
}

// New makes one. It does not connect.
func New(client redis.UniversalClient, stream, name, consumer string) *Group {
	return &Group{client: client, stream: stream, name: name, consumer: consumer}
}

// The contract of each script stands on top of its file.
var (
	//go:embed ack.lua
	ackSource string
	//go:embed activate.lua
	activateSource string
	//go:embed deadletter.lua
	deadLetterSource string
	//go:embed info.lua
	infoSource string
	//go:embed own.lua
	ownSource string
	//go:embed peek.lua
	peekSource string
	//go:embed prepare.lua
	prepareSource string
	//go:embed release.lua
	releaseSource string
	//go:embed renew.lua
	renewSource string
	//go:embed restore.lua
	restoreSource string
	//go:embed sweep.lua
	sweepSource string
	//go:embed take.lua
	takeSource string

	ackScript        = server.NewScript(ackSource)
	activateScript   = server.NewScript(activateSource)
	deadLetterScript = server.NewScript(deadLetterSource)
	infoScript       = server.NewScript(infoSource)
	ownScript        = server.NewScript(ownSource)
	peekScript       = server.NewScript(peekSource)
	prepareScript    = server.NewScript(prepareSource)
	releaseScript    = server.NewScript(releaseSource)
	renewScript      = server.NewScript(renewSource)
	restoreScript    = server.NewScript(restoreSource)
	sweepScript      = server.NewScript(sweepSource)
	takeScript       = server.NewScript(takeSource)
)

// run runs a script on the stream, which has at least so many parts in its reply.
func (g *Group) run(ctx context.Context, script *server.Script, least int, args ...any) ([]any, error) {
	reply, err := script.Run(ctx, g.client, []string{g.stream}, args...)
	if err != nil {
		return nil, err
	}
	return list(reply, least)
}

// withNames adds entry IDs to the arguments of a script.
func withNames(args []any, names []string) []any {
	for _, name := range names {
		args = append(args, name)
	}
	return args
}

// Create makes the group where it is missing, and the stream with it. It tells whether it
// was missing.
func (g *Group) Create(ctx context.Context, start string) (created bool, err error) {
	cmd := server.NewCommand(ctx, 2, "xgroup", "create", g.stream, g.name, start, "mkstream")
	err = server.Process(ctx, g.client, cmd)
	switch {
	case err == nil:
		return true, nil
	case hasPrefix(err, "BUSYGROUP"):
		return false, nil
	}
	return false, Explain(err)
}

// Explain makes errors of setting up clear.
func Explain(err error) error {
	switch {
	case hasPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("%w: %w", ErrWrongType, err)
	case server.IsRefusedByACL(err):
		return fmt.Errorf("the user needs the rights that Check lists: %w", err)
	}
	return err
}

// CheckDelete tells whether the server can delete what all groups have acknowledged.
func (g *Group) CheckDelete(ctx context.Context) error {
	// No group has the name of a consumer that was just made up: nothing is acknowledged.
	probe := server.NewCommand(ctx, 1, "xackdel", g.stream, g.consumer, "acked", "ids", 1, "0-1")
	err := server.Process(ctx, g.client, probe)
	var reply redis.Error
	switch {
	case err == nil, IsNoGroup(err):
	case hasPrefix(err, "WRONGTYPE"):
		return Explain(err)
	case errors.As(err, &reply) && server.Classify(err) == server.Final && !server.IsRefusedByACL(err):
		return fmt.Errorf("%w: DeleteOnAck needs XACKDEL (Redis 8.2.2 or newer): %w", ErrUnsupported, err)
	default:
		return Explain(err)
	}
	info, err := server.InfoSection(ctx, g.client, g.stream, "server")
	if err == nil && (info["redis_version"] == "8.2.0" || info["redis_version"] == "8.2.1") {
		return fmt.Errorf("%w: XACKDEL with several IDs crashes Redis %s; update it to 8.2.2", ErrUnsupported, info["redis_version"])
	}
	return nil
}

// Sweep removes consumers that nothing is pending for and that were not seen for so long.
func (g *Group) Sweep(ctx context.Context, idle time.Duration) error {
	_, err := sweepScript.Run(ctx, g.client, []string{g.stream}, g.name, g.consumer, idle.Milliseconds(), HandbackConsumer)
	return err
}

// Rights are those that reading uses.
func (g *Group) Rights(deleteOnAck bool) []preflight.Right {
	dead := rediskey.DeadLetter(g.stream)
	rights := preflight.Uses(g.stream, g.stream, "xinfo stream", "xrange")
	if g.name == "" {
		return append(rights, preflight.Uses(g.stream, g.stream, "xread")...)
	}
	rights = append(rights, preflight.Uses(g.stream, g.stream, "xgroup create", "xgroup delconsumer", "xinfo groups", "xinfo consumers",
		"xreadgroup", "xpending", "xclaim", "xack", "time")...)
	rights = append(rights, preflight.Uses(dead, dead, "xadd", "xlen", "xrevrange")...)
	rights = append(rights, preflight.Uses(g.stream, g.stream, "eval", "evalsha")...)
	if deleteOnAck {
		rights = append(rights, preflight.Uses(g.stream, g.stream, "xackdel")...)
	}
	return rights
}

// IsNoGroup tells that the stream or its group is gone.
func IsNoGroup(err error) bool { return hasPrefix(err, "NOGROUP") }

func hasPrefix(err error, prefix string) bool {
	return err != nil && redis.HasErrorPrefix(err, prefix)
}
