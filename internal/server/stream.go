package server

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// StreamInfo is the part of XINFO STREAM that this library uses. It is read by
// name from the raw reply, so that fields of later servers do no harm.
type StreamInfo struct {
	Last   streamid.ID // last-generated-id
	Length int64
	// Added is how many entries there ever were (entries-added).
	Added int64
	// First and Newest are the IDs of the entries at both ends, empty where there is none.
	First, Newest string
	// The rest is there from Redis 8.6 on; MaxSize is 0 before.
	IDMPDuration int64 // seconds
	IDMPMaxSize  int64 // ids a producer
	PIDsTracked  int64
	IIDsTracked  int64
	IIDsAdded    int64
	Duplicates   int64 // iids-duplicates
}

// StreamInfoCommand asks for a StreamInfo, once. It keeps the reply as it came:
// XINFO STREAM has two entries in it that nobody looks at, and goes along with every
// transaction of a publisher.
type StreamInfoCommand struct{ *redis.RawCmd }

// NoRetry makes go-redis hand the first error back.
func (StreamInfoCommand) NoRetry() bool { return true }

// NewStreamInfoCommand makes XINFO STREAM.
func NewStreamInfoCommand(ctx context.Context, stream string) StreamInfoCommand {
	return NewStreamInfoScript(ctx, 2, "xinfo", "stream", stream)
}

// NewStreamInfoScript makes a command whose key is args[keyPos] and whose reply is
// like that of XINFO STREAM.
func NewStreamInfoScript(ctx context.Context, keyPos int8, args ...any) StreamInfoCommand {
	cmd := redis.NewRawCmd(ctx, args...)
	cmd.SetFirstKeyPos(keyPos)
	return StreamInfoCommand{cmd}
}

// Info is the reply, or its error.
func (c StreamInfoCommand) Info() (StreamInfo, error) {
	if err := c.Err(); err != nil {
		return StreamInfo{}, err
	}
	return parseStreamInfo(c.Val())
}

// ReadStreamInfo asks by itself; exists is false where there is no stream.
func ReadStreamInfo(ctx context.Context, p Processor, stream string) (info StreamInfo, exists bool, err error) {
	cmd := NewStreamInfoCommand(ctx, stream)
	_ = p.Process(ctx, cmd) // Info has the error
	info, err = cmd.Info()
	if IsMissingKey(err) {
		return info, false, nil
	}
	return info, err == nil, err
}

// Processor sends a single command: a client, a connection, a transaction.
type Processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// parseStreamInfo reads a map or a flat list, by the protocol's version.
func parseStreamInfo(reply []byte) (StreamInfo, error) {
	var info StreamInfo
	r := respReader{rest: reply}
	kind, head := r.line()
	n, err := strconv.Atoi(string(head))
	switch {
	case kind == '-':
		return info, ReplyError(head)
	case err == nil && kind == '*':
		n /= 2
	case err != nil || kind != '%':
		return info, fmt.Errorf("XINFO STREAM: unexpected reply %.40q", reply)
	}
	last := "missing"
	for range n {
		switch name := r.value(); string(name) {
		case "last-generated-id":
			last = string(r.value())
		case "length":
			info.Length = r.number()
		case "entries-added":
			info.Added = r.number()
		case "first-entry":
			info.First = r.entryID()
		case "last-entry":
			info.Newest = r.entryID()
		case "idmp-duration":
			info.IDMPDuration = r.number()
		case "idmp-maxsize":
			info.IDMPMaxSize = r.number()
		case "pids-tracked":
			info.PIDsTracked = r.number()
		case "iids-tracked":
			info.IIDsTracked = r.number()
		case "iids-added":
			info.IIDsAdded = r.number()
		case "iids-duplicates":
			info.Duplicates = r.number()
		default:
			r.value()
		}
	}
	if last == "" { // a server for tests says so of a stream that never had an entry
		return info, nil
	}
	if info.Last, err = streamid.Parse(last); err != nil {
		return info, fmt.Errorf("XINFO STREAM: %w", err)
	}
	return info, nil
}

// ReplyError is an error reply.
type ReplyError string

// Error implements error.
func (r ReplyError) Error() string { return string(r) }

// RedisError marks it as a server's word, for go-redis' functions on errors.
func (ReplyError) RedisError() {}

// respReader walks over a complete reply. What is cut off reads as empty.
type respReader struct{ rest []byte }

// line reads a type and what stands behind it.
func (r *respReader) line() (kind byte, text []byte) {
	line, rest, _ := bytes.Cut(r.rest, []byte("\r\n"))
	r.rest = rest
	if len(line) == 0 {
		return 0, nil
	}
	return line[0], line[1:]
}

// value reads a value: the text of a number or string, nothing of what has parts.
func (r *respReader) value() []byte {
	kind, text := r.line()
	switch kind {
	case '$', '=':
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			return nil
		}
		n = min(n, len(r.rest))
		text, r.rest = r.rest[:n], r.rest[n:]
		r.rest = r.rest[min(2, len(r.rest)):]
		return text
	case '*', '~', '>', '%':
		n, _ := strconv.Atoi(string(text))
		if kind == '%' {
			n *= 2
		}
		for ; n > 0 && len(r.rest) > 0; n-- {
			r.value()
		}
		return nil
	}
	return text
}

// number reads a value that is a number; 0 if it is none.
func (r *respReader) number() int64 {
	n, _ := strconv.ParseInt(string(r.value()), 10, 64)
	return n
}

// entryID reads an entry, and gives its ID; nothing where there is none.
func (r *respReader) entryID() (id string) {
	kind, text := r.line()
	if kind != '*' {
		return ""
	}
	n, _ := strconv.Atoi(string(text))
	for i := 0; i < n && len(r.rest) > 0; i++ {
		if value := r.value(); i == 0 {
			id = string(value)
		}
	}
	return id
}
