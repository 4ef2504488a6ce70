package deadletter

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Errors on which callers branch.
var (
	// ErrNotFound means that there is no dead letter of this ID: it was never there, was
	// replayed or dropped, or was trimmed away.
	ErrNotFound = errors.New("no such dead letter")
	// ErrUndecodable means that the letter can't be made a message again, so it can't be
	// replayed.
	ErrUndecodable = errors.New("the dead letter can't be decoded")
	// ErrPublisher means that Replay.Publisher can't recognise a letter that it has published
	// before.
	ErrPublisher = errors.New("not a publisher of package publisher")
)

// Config configures [Letters]. Client is required.
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a *redis.ClusterClient. It
	// stays the caller's.
	Client redis.UniversalClient
	// Unmarshaller reads the entries, as that of the topic's subscriber. Default: the format
	// of watermill-redisstream, and entries of others with their fields as metadata.
	Unmarshaller redisstream.Unmarshaller
}

// Letters works on the dead letters of topics. It is safe for concurrent use.
type Letters struct {
	client redis.UniversalClient
	decode entries.Decoder
}

// New makes a Letters. It connects to nothing. The error has all faults of the configuration.
func New(config Config) (*Letters, error) {
	var f invalid.Faults
	if err := server.CheckClient(config.Client, "have these dead letters"); err != nil {
		f = append(f, err)
	}
	if err := f.Err("deadletter: invalid config"); err != nil {
		return nil, err
	}
	return &Letters{client: config.Client, decode: entries.NewDecoder(config.Unmarshaller)}, nil
}

// Letter is a dead letter.
type Letter struct {
	// ID is its entry ID in the stream of dead letters. Topic and EntryID say where it was
	// before; EntryID is empty where that is not known.
	ID, Topic, EntryID string
	// Reason is why it is here: one of subscriber.ReasonMaxDeliveries, ReasonUndecodable,
	// ReasonRejected, or a handler's own. Error is what the handler's, or the decoder's, error
	// said, if that is known.
	Reason, Error string
	// Group is the consumer group that gave up on it, after so many Deliveries.
	Group      string
	Deliveries int
	// At is when it was given up, by the subscriber's clock to the second; by ID where the letter
	// does not say.
	At time.Time
	// Key is its idempotency key, empty if the message brings none of its own.
	Key string
	// MessageUUID, Payload and Metadata are the message, as a replay would publish it.
	MessageUUID string
	Payload     []byte
	Metadata    message.Metadata
	// Replays is how often the event had been replayed before it died this time; ReplayedAt
	// and ReplayedBy tell of the last time.
	Replays    int
	ReplayedAt time.Time
	ReplayedBy string
	// Size is what all fields of the entry take, in bytes.
	Size int
	// Err says why it can't be decoded; it matches ErrUndecodable. Then Payload and
	// MessageUUID are empty, and Metadata has the marks alone.
	Err error
}

// Message is the letter as a message.
func (l Letter) Message() *message.Message {
	msg := message.NewMessage(l.MessageUUID, bytes.Clone(l.Payload))
	maps.Copy(msg.Metadata, l.Metadata)
	return msg
}

// letter makes a letter of an entry.
func (l *Letters) letter(topic string, e entries.Entry) Letter {
	letter := Letter{ID: e.ID, Topic: topic, Size: e.Size}
	msg, err := l.decode(rediskey.DeadLetter(topic), e.ID, e.Values)
	marks := make(message.Metadata)
	for name, value := range e.Values {
		if text, ok := value.(string); ok && strings.HasPrefix(name, wmeta.DeadPrefix) {
			marks[name] = text
		}
	}
	if err == nil {
		letter.Metadata = msg.Metadata
		maps.Copy(letter.Metadata, marks) // which a user's Unmarshaller does not know
		// Metadata that can't be decoded stays what it was, under the name of its field.
		if raw, ok := e.Values[wire.FieldMetadata].(string); ok && letter.Metadata[wire.FieldMetadata] == raw && e.Values[wire.FieldUUID] != nil {
			err = fmt.Errorf("its metadata is not what it should be")
		}
	}
	if err != nil {
		letter.Err = fmt.Errorf("%w: %w", ErrUndecodable, err)
		letter.Metadata = marks
	} else {
		letter.MessageUUID, letter.Payload = msg.UUID, msg.Payload
		letter.Key = letter.Metadata[eventkey.MetadataKey]
	}
	letter.readMarks()
	return letter
}

func (l *Letter) readMarks() {
	md := l.Metadata
	l.Reason, l.Error, l.Group = md[wmeta.DeadReason], md[wmeta.DeadError], md[wmeta.DeadGroup]
	l.Deliveries = int(min(wmeta.Counter(md, wmeta.DeadCount), math.MaxInt32))
	l.Replays = int(min(wmeta.Counter(md, wmeta.DeadReplays), math.MaxInt32))
	l.ReplayedBy = md[wmeta.DeadReplayedBy]
	l.ReplayedAt, _ = time.Parse(time.RFC3339, md[wmeta.DeadReplayedAt])
	origin := md[wmeta.DeadOrigin]
	l.EntryID = origin[strings.LastIndexByte(origin, ' ')+1:]
	var err error
	if l.At, err = time.Parse(time.RFC3339, md[wmeta.DeadAt]); err != nil {
		id, _ := streamid.Parse(l.ID)
		l.At = time.UnixMilli(int64(id.MS)).UTC() //nolint:gosec // milliseconds of a time
	}
}
