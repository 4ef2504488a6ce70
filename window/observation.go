package window

import (
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
)

// Observation is what was seen of a topic. Only the rate is needed; each of the other fields
// makes the advice better.
type Observation struct {
	// Topic is for texts.
	Topic string
	// Window is the one in force, of one logical producer; zero where it is not known. In
	// mode Latch Entries is 0, as there is no limit.
	Window publisher.Window
	// Mode is that of the topic, ModeAuto where it is not known. Shards is the number of
	// producer IDs of one logical producer.
	Mode   publisher.Mode
	Shards int
	// ProducerIDs and Tracked are how many producer IDs, and IDs of all of them, the server
	// remembers now.
	ProducerIDs int
	Tracked     int64
	// Lasted is how long was watched.
	Lasted time.Duration
	// Added and Duplicates are how many new keys and duplicates came meanwhile; -1 for
	// Duplicates where the server does not count them (mode Latch).
	Added, Duplicates int64
	// Rate is the mean of new keys a second, Peak the highest of the parts of the
	// time that was watched. Zero for Rate means Added by Lasted, zero for Peak twice the Rate.
	Rate, Peak float64
	// Length is the number of entries in the stream, Span the time between the oldest and
	// the newest: a mean over longer than was watched.
	Length int64
	Span   time.Duration
	// Lag is the largest number of entries that a group has not read yet, -1 where it is not
	// known.
	Lag int64
	// Caught are the ages of retries that the window has caught, from [Ages].
	Caught Distribution
	// Missed are the ages of retries that are in the stream as a second entry, from
	// inspect.Inspector.Duplicates. Looked reports whether anybody has looked, at more of the
	// stream than the window remembers.
	Missed Distribution
	Looked bool
	// Outage is how long an outage the window should cover; 0 means half an hour. Headroom
	// is by which factor the peak may grow; 0 means 1.5.
	Outage   time.Duration
	Headroom float64
}
