package inspect

import (
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
)

// Topic is all that there is to know about a topic without reading its entries.
type Topic struct {
	Topic string
	// Server is product and version, "redis 8.6.3"; empty if the user may not ask.
	Server string
	// Exists reports whether the stream does.
	Exists bool
	// HasLayout reports whether the layout record does; without it Layout is zero: no publisher
	// of this library has set up the topic. LayoutErr says what is wrong with the record.
	HasLayout bool
	Layout    publisher.Layout
	LayoutErr error
	Stream    Stream
	Window    Window
	Groups    []Group
	// DeadLetters is the number of entries in DeadLetterTopic; -1 if the user may not ask.
	DeadLetters     int64
	DeadLetterTopic string
	// Notes are sentences: what could not be found out and why, and what an operator should
	// look at.
	Notes []string
}

// Stream is the stream itself.
type Stream struct {
	Length int64
	// EntriesAdded is how many entries it ever had, Deleted how many of them were trimmed or
	// deleted.
	EntriesAdded, Deleted int64
	// FirstID and LastID are the oldest and the newest entry that are there, empty where there
	// is none. GeneratedID is the highest that it ever had.
	FirstID, LastID, GeneratedID string
	// FirstAt and LastAt are when these were added, by the server's clock.
	FirstAt, LastAt time.Time
	// Memory is what the stream takes on the server, in bytes, as the server estimates it; -1
	// if the user may not ask.
	Memory int64
}

// Window is what the server remembers of IDs. In mode Latch, and on a server without IDMP,
// only Duration is known.
type Window struct {
	// InServer reports whether the server remembers IDs for this stream (IDMP, Redis 8.6).
	InServer bool
	// Duration is how long an ID is remembered. In mode Latch it is what some latches show,
	// 0 if none was found.
	Duration time.Duration
	// MaxIDs is how many IDs the server remembers for one producer ID. Entries is how many all
	// producer IDs of one logical producer hold for sure.
	MaxIDs  int64
	Entries int
	// ProducerIDs and IDs are how many the server remembers now. Redis does not tell how the
	// IDs are spread over the producer IDs.
	ProducerIDs, IDs int64
	// Fill is the part of the room that IDs take, 0 to 1, as a mean of all producer IDs.
	Fill float64
	// IDsAdded and Duplicates are the server's counters since the stream was made.
	IDsAdded, Duplicates int64
}

// Group is a consumer group.
type Group struct {
	Name string
	// Lag is how many entries it has not read yet, -1 where the server does not know.
	Lag int64
	// Pending is how many were read and are not acknowledged. HandedBack of these were given
	// back by subscriptions that have ended, and wait for any consumer to take them.
	Pending, HandedBack int64
	// OldestPending is the lowest pending entry, empty if there is none; OldestAge is how long
	// ago it was added.
	OldestPending string
	OldestAge     time.Duration
	// LastDelivered is the last entry that was read, EntriesRead how many the group has got past, -1
	// where the server does not know.
	LastDelivered string
	EntriesRead   int64
	Consumers     []Consumer
}

// Consumer is a consumer of a group. A subscription of package subscriber is one.
type Consumer struct {
	Name    string
	Pending int64
	// Idle is how long ago it last asked for entries, Inactive how long ago it last got some;
	// -1 for never, and where the server does not tell (before Redis 7.2).
	Idle, Inactive time.Duration
}
