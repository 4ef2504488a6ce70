package group

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
)

func ackVerb(deleteOnAck bool) string {
	if deleteOnAck {
		return "delete"
	}
	return "ack"
}

// Ack acknowledges entries. Those that are pending for others or for nobody are refused,
// unless deadline, by the server's clock in milliseconds, has not come yet.
func (g *Group) Ack(ctx context.Context, names []string, deadline int64, deleteOnAck bool) (others, nobodys map[string]bool, err error) {
	args := make([]any, 0, len(names)+4)
	args = append(args, g.name, g.consumer, ackVerb(deleteOnAck), deadline)
	parts, err := g.run(ctx, ackScript, 2, withNames(args, names)...)
	if err != nil {
		return nil, nil, err
	}
	s, err := sets(parts[0], parts[1])
	if err != nil {
		return nil, nil, err
	}
	return s[0], s[1], nil
}

// Release is an entry that is given away, with the idle time and the delivery count that it
// has then.
type Release struct {
	Name  string
	Idle  time.Duration
	Count int
}

// Release gives entries to a consumer, which may be this one. With leave this consumer is
// removed if nothing is pending for it then. It returns those that were not pending for it,
// and those that are gone from the stream.
func (g *Group) Release(ctx context.Context, to string, leave bool, list []Release) (notOurs, deleted map[string]bool, err error) {
	verb := "stay"
	if leave {
		verb = "leave"
	}
	args := make([]any, 0, 3*len(list)+4)
	args = append(args, g.name, g.consumer, to, verb)
	for _, r := range list {
		args = append(args, r.Name, r.Idle.Milliseconds(), r.Count)
	}
	parts, err := g.run(ctx, releaseScript, 4, args...)
	if err != nil {
		return nil, nil, err
	}
	s, err := sets(parts[0], parts[3])
	if err != nil {
		return nil, nil, err
	}
	return s[0], s[1], nil
}

// WriteCounts writes delivery counts of entries that stay. It returns those that are gone
// from the stream.
func (g *Group) WriteCounts(ctx context.Context, names []string, counts []int) (deleted map[string]bool, err error) {
	list := make([]Release, len(names))
	for i, name := range names {
		list[i] = Release{Name: name, Count: counts[i]}
	}
	_, deleted, err = g.Release(ctx, g.consumer, false, list)
	return deleted, err
}

// DeadLetterResult says what came of moving an entry to the dead letters.
type DeadLetterResult uint8

const (
	// Moved means that it is there, now or by an earlier try.
	Moved DeadLetterResult = iota
	// NotOurs means that it is pending for another consumer.
	NotOurs
	// NotPending means that it is pending for nobody.
	NotPending
	// NoEntry means that it is gone from the stream.
	NoEntry
)

var deadLetterResults = map[string]DeadLetterResult{"moved": Moved, "anothers": NotOurs, "nobodys": NotPending, "gone": NoEntry}

// DeadLetter moves an entry to the dead letters, with further fields (name, value, name,
// value), and acknowledges it. It returns the ID that it has there.
func (g *Group) DeadLetter(ctx context.Context, name string, maxLen int64, deleteOnAck bool, fields ...any) (r DeadLetterResult, id string, err error) {
	args := append([]any{g.name, g.consumer, name, maxLen, ackVerb(deleteOnAck)}, fields...)
	reply, err := deadLetterScript.Run(ctx, g.client, []string{g.stream, rediskey.DeadLetter(g.stream)}, args...)
	if err != nil {
		return 0, "", err
	}
	out, err := texts(reply)
	if err != nil {
		return 0, "", err
	}
	if len(out) == 2 {
		id = out[1]
	}
	if len(out) > 0 {
		if r, ok := deadLetterResults[out[0]]; ok {
			return r, id, nil
		}
	}
	return 0, "", errors.New("unexpected reply of the server to moving a dead letter")
}

// DeadLetters is how many dead letters there are.
func (g *Group) DeadLetters(ctx context.Context) (int64, error) {
	return g.client.XLen(ctx, rediskey.DeadLetter(g.stream)).Result()
}
