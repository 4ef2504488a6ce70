package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Info is what was found out about the server that holds a key.
type Info struct {
	// Name is "redis" or "valkey", Version its own version. Both are empty where
	// the user may not call INFO.
	Name, Version string
	// IDMP: XADD takes IDMP and IDMPAUTO, and the server is not one of the two
	// first releases that had faults in them.
	IDMP bool
}

// String is for logs and error texts: "redis 8.6.3", "valkey 9.1.2".
func (i Info) String() string {
	if i.Version == "" {
		return "a server that does not report its version"
	}
	return i.Name + " " + i.Version
}

// firstSound is the first release without the IDMP faults of 8.6.0 and 8.6.1
// (append-only file rewrite, loading of a snapshot, SWAPDB; Redis 8.6.2 release
// notes).
var firstSound = [3]int{8, 6, 2}

// Probe asks the master of key. The command itself decides, not the version: an
// XADD that must not make a stream, on a side key that never holds one, writes
// nothing on any server. A server without IDMP reads the word as an entry ID and
// refuses it before it looks at the key.
func Probe(ctx context.Context, client redis.UniversalClient, key string) (Info, error) {
	probe := NewCommand(ctx, 1, "xadd", key, "nomkstream", "idmp", "probe", "probe", "*", "probe", "probe")
	err := client.Process(ctx, probe)
	var info Info
	switch {
	case err == nil && probe.Val() == nil:
		return Info{}, fmt.Errorf("ask the server what it can do: %w", ErrNoReply)
	case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"):
		info.IDMP = true
	case IsUnknownSyntax(err):
	default: // out of memory, for example, says nothing about what it knows
		return Info{}, fmt.Errorf("ask the server what it can do: %w", err)
	}
	if info.Name, info.Version, err = Version(ctx, client, key); err != nil {
		return Info{}, fmt.Errorf("ask the server for its version: %w", err)
	}
	if v, ok := parseVersion(info.Version); ok && info.Name == "redis" && less(v, firstSound) {
		info.IDMP = false
	}
	return info, nil
}

// Version asks INFO for product and version; a user without the right gets empty strings. Any other failure is an
// error: a release that has faults must not go unnoticed because of a lost reply.
func Version(ctx context.Context, client redis.UniversalClient, key string) (name, version string, err error) {
	fields, err := InfoSection(ctx, client, key, "server")
	if err != nil {
		if Classify(err) == Final {
			return "", "", nil
		}
		return "", "", err
	}
	// Valkey calls itself redis 7.2.4 for old clients and gives its own beside it.
	if v := fields["valkey_version"]; v != "" {
		return "valkey", v, nil
	}
	return "redis", fields["redis_version"], nil
}

// InfoSection returns the fields of one section of INFO from the master of key.
func InfoSection(ctx context.Context, client redis.UniversalClient, key, section string) (map[string]string, error) {
	node, err := Node(ctx, client, key)
	if err != nil {
		return nil, err
	}
	text, err := node.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// WhyNoInfo says why InfoSection does not have something.
func WhyNoInfo(err error) string {
	switch {
	case err == nil:
		return "INFO does not report it"
	case IsRefusedByACL(err):
		return "the user may not run INFO"
	default:
		return err.Error()
	}
}

// Clock is the time of a server, as measured once. It goes on by this process'
// monotonic clock, so that setting the local clock does not move it. What depends on
// the age of entries must go by it: by the clock of a producer that is a day ahead
// everything would be trimmed.
type Clock struct{ server, measured time.Time }

// ReadClock asks the master of key.
func ReadClock(ctx context.Context, client redis.UniversalClient, key string) (Clock, error) {
	node, err := Node(ctx, client, key)
	if err != nil {
		return LocalClock(), err
	}
	now, err := node.Time(ctx).Result()
	if err != nil {
		return LocalClock(), err
	}
	// The server read its clock some time before, so this is its time or less. An entry
	// must not look older than it is: its id would be taken for expired.
	return ClockAt(now), nil
}

// LocalClock is this process' clock, for a server that does not report its own.
func LocalClock() Clock { return ClockAt(time.Now()) }

// ClockAt is the clock of a server that says it is now.
func ClockAt(now time.Time) Clock { return Clock{server: now, measured: time.Now()} }

// Now is the server's time.
func (c Clock) Now() time.Time { return c.server.Add(time.Since(c.measured)) }

func parseVersion(s string) (v [3]int, ok bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) != 3 {
		return v, false
	}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func less(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
