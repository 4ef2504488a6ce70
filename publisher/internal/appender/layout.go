package appender

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Mode says how keys are remembered. Its numbers are those of publisher.Mode, its names
// stand in layout records.
type Mode uint8

// The modes; package publisher says what each is for.
const (
	Auto Mode = iota
	IDMP
	IDMPAuto
	Latch
)

var modeNames = [...]string{"auto", "idmp", "idmpauto", "latch"}

// IsValid reports whether there is such a mode.
func (m Mode) IsValid() bool { return int(m) < len(modeNames) }

// String is the name that stands in the layout record and in logs.
func (m Mode) String() string {
	if m.IsValid() {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

func parseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if name == s && Mode(i) != Auto {
			return Mode(i), nil
		}
	}
	return Auto, fmt.Errorf("unknown mode %q", s)
}

// Layout says how the keys of a topic are remembered; see publisher.Layout.
type Layout struct {
	Mode     Mode
	Shards   int
	Duration time.Duration // 0 in mode Latch
}

func (l Layout) fields() []any {
	return []any{
		"mode", l.Mode.String(), "shards", strconv.Itoa(l.Shards), "hash", strconv.Itoa(hashVersion),
		"duration", strconv.FormatInt(seconds(l.Duration), 10),
	}
}

// check refuses a layout that none of ours can be: nothing is sent under it.
func (l Layout) check() error {
	if l.Mode == Auto || !l.Mode.IsValid() || l.Shards < 1 {
		return fmt.Errorf("%w: mode %v with %d producer IDs", ErrLayout, l.Mode, l.Shards)
	}
	return nil
}

// parseLayout reads the record; it is zero where there is none.
func parseLayout(fields map[string]string) (Layout, error) {
	if fields["mode"] == "" {
		return Layout{}, nil
	}
	mode, err := parseMode(fields["mode"])
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	shards, err := strconv.Atoi(fields["shards"])
	if err != nil || shards < 1 {
		return Layout{}, fmt.Errorf("%w: %q shards", ErrLayout, fields["shards"])
	}
	if fields["hash"] != strconv.Itoa(hashVersion) {
		return Layout{}, fmt.Errorf("%w: hash version %q; this library knows %d", ErrLayout, fields["hash"], hashVersion)
	}
	duration, err := strconv.ParseInt(fields["duration"], 10, 64)
	if err != nil || duration < 0 || duration > seconds(MaxDuration) || (duration == 0) != (mode == Latch) {
		return Layout{}, fmt.Errorf("%w: a duration of %q seconds", ErrLayout, fields["duration"])
	}
	return Layout{Mode: mode, Shards: shards, Duration: time.Duration(duration) * time.Second}, nil
}

// ReadLayout reads the layout record of a topic; it is zero where there is none.
func ReadLayout(ctx context.Context, p server.Processor, topic string) (Layout, error) {
	record := redis.NewMapStringStringCmd(ctx, "hgetall", rediskey.LayoutKey(topic))
	err := p.Process(ctx, record)
	if err == nil {
		err = unanswered(record)
	}
	if err != nil {
		return Layout{}, err
	}
	return parseLayout(record.Val())
}
