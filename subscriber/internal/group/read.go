package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Entry is an entry as the server sends it.
type Entry struct {
	Name  string
	ID    streamid.ID
	Pairs []string // name, value, name, value; nil where it is deleted
}

// entryOverhead is about what an entry takes in memory above its fields.
const entryOverhead = 512

// Size is about what an entry takes in memory.
func Size(pairs []string) int {
	n := entryOverhead
	for _, p := range pairs {
		n += len(p)
	}
	return n
}

// Read asks for new entries of the group; none came where the error is nil and the list
// empty. The command is never repeated by the client: what a lost reply has made pending
// would stay behind, and later entries would overtake it.
func (g *Group) Read(ctx context.Context, count int, block time.Duration) ([]Entry, error) {
	return g.read(ctx, server.NewCommand(ctx, 9, "xreadgroup", "group", g.name, g.consumer,
		"count", count, "block", block.Milliseconds(), "streams", g.stream, ">"))
}

// ReadAfter asks for the entries above an ID, without a group.
func (g *Group) ReadAfter(ctx context.Context, after streamid.ID, count int, block time.Duration) ([]Entry, error) {
	return g.read(ctx, server.NewCommand(ctx, 6, "xread",
		"count", count, "block", block.Milliseconds(), "streams", g.stream, after.String()))
}

func (g *Group) read(ctx context.Context, cmd server.Command) ([]Entry, error) {
	err := server.Process(ctx, g.client, cmd)
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return streamEntries(cmd.Val(), g.stream)
}

// streamEntries reads the reply of XREAD and XREADGROUP, a map or a list by the
// protocol version.
func streamEntries(reply any, stream string) ([]Entry, error) {
	switch r := reply.(type) {
	case nil:
		return nil, nil
	case map[any]any:
		return entries(r[stream])
	case []any:
		if len(r) == 1 {
			if pair, ok := r[0].([]any); ok && len(pair) == 2 {
				return entries(pair[1])
			}
		}
	}
	return nil, fmt.Errorf("reading: unexpected reply %T of the server", reply)
}

func entries(reply any) ([]Entry, error) {
	l, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("reading: unexpected reply %T of the server", reply)
	}
	out := make([]Entry, len(l))
	for i, item := range l {
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("reading: unexpected entry %T in a reply of the server", item)
		}
		e := &out[i]
		e.Name, _ = pair[0].(string)
		var err error
		if e.ID, err = streamid.Parse(e.Name); err != nil {
			return nil, err
		}
		if pair[1] == nil { // deleted while pending
			continue
		}
		if e.Pairs, err = texts(pair[1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Fetch reads one entry; found is false where it is not in the stream.
func (g *Group) Fetch(ctx context.Context, name string) (e Entry, found bool, err error) {
	cmd := server.NewCommand(ctx, 1, "xrange", g.stream, name, name)
	if err := server.Process(ctx, g.client, cmd); err != nil {
		return e, false, err
	}
	list, err := entries(cmd.Val())
	if err != nil || len(list) == 0 {
		return e, false, err
	}
	return list[0], true, nil
}

// Bounds of what one call of peek.lua returns: a reply must come within the client's read
// time-out.
const (
	peekEntries = 64
	peekBytes   = 256 << 10
)

// Peek reads the first of the entries without touching them, and tells how many of the
// names it has looked at.
func (g *Group) Peek(ctx context.Context, names []string) (found []Entry, seen int, err error) {
	parts, err := g.run(ctx, peekScript, 2, withNames([]any{peekBytes}, names[:min(len(names), peekEntries)])...)
	if err != nil {
		return nil, 0, err
	}
	seen = int(integer(parts[0]))
	if seen < 1 || seen > len(names) {
		return nil, 0, fmt.Errorf("unexpected reply of the server: looked at %d of %d entries", seen, len(names))
	}
	found, err = entries(parts[1])
	return found, seen, err
}

// Preparation is what came of preparing an entry for its hand-out.
type Preparation uint8

const (
	// Prepared means that the entry is ours, and its delivery count written.
	Prepared Preparation = iota
	// Anothers means that it is pending for another consumer.
	Anothers
	// Nobodys means that it is pending for nobody.
	Nobodys
	// Gone means that it is not in the stream.
	Gone
)

// Prepare reads an entry that goes out now, renews it and writes its delivery count.
func (g *Group) Prepare(ctx context.Context, name string, count int) (pairs []string, p Preparation, err error) {
	if g.name == "" {
		e, found, err := g.Fetch(ctx, name)
		if !found {
			return nil, Gone, err
		}
		return e.Pairs, Prepared, nil
	}
	rows, err := g.run(ctx, prepareScript, 1, g.name, g.consumer, name, count)
	if err != nil {
		return nil, 0, err
	}
	row, err := list(rows[0], 1)
	if err != nil {
		return nil, 0, err
	}
	switch row[0] {
	case "ok":
		if len(row) == 2 {
			pairs, err := texts(row[1])
			return pairs, Prepared, err
		}
	case "anothers":
		return nil, Anothers, nil
	case "nobodys":
		return nil, Nobodys, nil
	case "gone":
		return nil, Gone, nil
	}
	return nil, 0, fmt.Errorf("unexpected reply of the server to preparing %s", name)
}
