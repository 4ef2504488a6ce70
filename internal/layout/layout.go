// Package layout says how the keys of a topic are remembered: its layout record, and how keys
// are spread over producer IDs. It asks nobody.
package layout

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrInvalid means that a layout record can't be obeyed; package publisher exports it.
var ErrInvalid = errors.New("layout of the topic can't be used")

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

// Fields are those of the record, for HSET.
func (l Layout) Fields() []any {
	return []any{
		"mode", l.Mode.String(), "shards", strconv.Itoa(l.Shards), "hash", strconv.Itoa(HashVersion),
		"duration", strconv.FormatInt(seconds(l.Duration), 10),
	}
}

// Check refuses a layout that none of ours can be: nothing is sent under it.
func (l Layout) Check() error {
	if l.Mode == Auto || !l.Mode.IsValid() || l.Shards < 1 {
		return fmt.Errorf("%w: mode %v with %d producer IDs", ErrInvalid, l.Mode, l.Shards)
	}
	return nil
}

// Parse reads the record; it is zero where there is none.
func Parse(fields map[string]string) (Layout, error) {
	if fields["mode"] == "" {
		return Layout{}, nil
	}
	mode, err := parseMode(fields["mode"])
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	shards, err := strconv.Atoi(fields["shards"])
	if err != nil || shards < 1 {
		return Layout{}, fmt.Errorf("%w: %q shards", ErrInvalid, fields["shards"])
	}
	if fields["hash"] != strconv.Itoa(HashVersion) {
		return Layout{}, fmt.Errorf("%w: hash version %q; this library knows %d", ErrInvalid, fields["hash"], HashVersion)
	}
	duration, err := strconv.ParseInt(fields["duration"], 10, 64)
	if err != nil || duration < 0 || duration > seconds(MaxDuration) || (duration == 0) != (mode == Latch) {
		return Layout{}, fmt.Errorf("%w: a duration of %q seconds", ErrInvalid, fields["duration"])
	}
	return Layout{Mode: mode, Shards: shards, Duration: time.Duration(duration) * time.Second}, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
