package publisher

import "fmt"

// Mode says what makes a second publish of one key harmless.
type Mode uint8

const (
	// Auto is [IDMP] where the topic's server is Redis 8.6.2 or newer, else
	// [Latch]. It decides once for a topic: the layout record keeps the decision,
	// so a server upgrade does not split one key over two mechanisms.
	Auto Mode = iota
	// IDMP sends XADD IDMP with a producer ID and an idempotent ID (Redis 8.6.2
	// or newer).
	IDMP
	// IDMPAuto sends XADD IDMPAUTO: the server hashes the entry. What is sent is
	// made a function of the content: the payload and [Config.ContentMetadata].
	IDMPAuto
	// Latch appends by a script that keeps a key beside the stream for
	// [Window.Duration] (Redis 7.0 or newer, Valkey). The key holds the entry ID
	// and is written after the entry, so it never claims what is not there.
	Latch
)

var modeNames = [...]string{"auto", "idmp", "idmpauto", "latch"}

// String is the name that stands in the layout record and in logs.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
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
