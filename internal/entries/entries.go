// Package entries reads ranges of streams for tools: entry by entry, in batches that are
// bounded by size, since payloads may be large.
package entries

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// What a batch is about.
const (
	batchBytes = 1 << 20
	batchMost  = 500
)

// Entry is an entry of a stream.
type Entry struct {
	ID     string
	Values map[string]any
	Size   int // of all names and values, in bytes
}

// Span is a part of a stream, both ends included, as for XRANGE.
type Span struct {
	From, To string
	Newest   bool // begin at To
}

// Range gives the entries of a span. It reads while it is asked for more, so it sees what
// comes and goes meanwhile. The sequence ends after an error.
func Range(ctx context.Context, client redis.UniversalClient, stream string, span Span) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		from, to := span.From, span.To
		for count := int64(1); ; {
			batch, err := read(ctx, client, stream, from, to, count, span.Newest)
			if err != nil {
				yield(Entry{}, fmt.Errorf("read stream %q: %w", stream, err))
				return
			}
			size := 1
			for _, m := range batch {
				e := Of(m)
				size += e.Size
				if !yield(e, nil) {
					return
				}
			}
			if int64(len(batch)) < count {
				return
			}
			// The entries are no larger than those before, or one batch is too large.
			last := batch[len(batch)-1].ID
			if span.Newest {
				to = "(" + last
			} else {
				from = "(" + last
			}
			count = max(1, min(2*count, batchMost, batchBytes*int64(len(batch))/int64(size)))
		}
	}
}

// Of is an entry that was read by other means.
func Of(m redis.XMessage) Entry { return Entry{ID: m.ID, Values: m.Values, Size: sizeOf(m.Values)} }

func read(ctx context.Context, client redis.UniversalClient, stream, from, to string, count int64, newest bool) ([]redis.XMessage, error) {
	if newest {
		return client.XRevRangeN(ctx, stream, to, from, count).Result()
	}
	return client.XRangeN(ctx, stream, from, to, count).Result()
}

func sizeOf(values map[string]any) (size int) {
	for name, value := range values {
		size += len(name)
		if text, ok := value.(string); ok {
			size += len(text)
		}
	}
	return size
}

// Between is the span of the entries that were added from a time on and before another,
// no later than last; a zero time is no bound.
func Between(from, to time.Time, last streamid.ID) Span {
	span := Span{From: "-", To: last.String()}
	if !from.IsZero() {
		span.From = First(from.Add(time.Millisecond - 1).UnixMilli())
	}
	if !to.IsZero() {
		end := Last(to.Add(time.Millisecond-1).UnixMilli() - 1)
		if id, err := streamid.Parse(end); err == nil && last.After(id) {
			span.To = end
		}
	}
	return span
}

// First is the first ID of a time in milliseconds.
func First(ms int64) string { return strconv.FormatInt(max(ms, 0), 10) + "-0" }

// Last is the last ID of a time in milliseconds.
func Last(ms int64) string {
	return strconv.FormatInt(max(ms, 0), 10) + "-" + strconv.FormatUint(1<<64-1, 10)
}

// Decoder makes messages of entries.
type Decoder func(stream, id string, values map[string]any) (*message.Message, error)

var errNoMessage = errors.New("the Unmarshaller returned no message")

// NewDecoder makes a decoder of an Unmarshaller; nil is the default one, which reads
// watermill-redisstream's format and entries of others. One that panics is an error.
func NewDecoder(u redisstream.Unmarshaller) Decoder {
	if _, ok := u.(redisstream.DefaultMarshallerUnmarshaller); ok || u == nil {
		return wire.Decode
	}
	return func(stream, id string, values map[string]any) (msg *message.Message, err error) {
		defer func() {
			if p := recover(); p != nil {
				msg, err = nil, &wire.Error{Stream: stream, ID: id, Err: fmt.Errorf("the Unmarshaller panicked: %v", p)}
			}
		}()
		msg, err = u.Unmarshal(values)
		if err == nil && msg == nil {
			err = errNoMessage
		}
		if err != nil {
			return nil, &wire.Error{Stream: stream, ID: id, Err: err}
		}
		if msg.Metadata == nil {
			msg.Metadata = make(message.Metadata)
		}
		return msg, nil
	}
}
