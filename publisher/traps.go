package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// errOfOneInstance means that the ProducerID looks like the name of one instance of the service.
var errOfOneInstance = errors.New("the ProducerID must be the same in all instances and after a restart, or each of them adds an event once")

// Forms of IDs that are made for one instance, or for one start of it.
var (
	uuidForm   = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	randomForm = regexp.MustCompile(`(?i)(^|[^0-9a-z])([0-9a-f]{16,}|[0-9a-hjkmnp-tv-z]{26})$`)
	// A pod of a Kubernetes Deployment: its name, the hash of the template and a suffix, both
	// of the letters that Kubernetes takes for random names.
	podForm = regexp.MustCompile(`.-[bcdf-hj-np-tv-xz2456789]{6,10}-[bcdf-hj-np-tv-xz2456789]{5}$`)
)

// ofOneInstance says what a ProducerID looks like, if that is a name that only one instance
// has; "" if it does not.
func ofOneInstance(id string) string {
	host, _ := os.Hostname()
	switch {
	case host != "" && id == host:
		return "is this machine's host name"
	case uuidForm.MatchString(id):
		return "has a UUID in it"
	case podForm.MatchString(id):
		return "looks like the name of a pod"
	case randomForm.MatchString(id):
		return "looks random"
	}
	return ""
}

// errOneKey means that a key names two messages.
var errOneKey = errors.New("only the first of them is added")

// checkReturned tells, once, that messages which a handler returned for one event have one key.
// The second is no retry of the first, but can't be told from one.
func (e *events) checkReturned(msgs []*message.Message, items []batch.Item) {
	if len(msgs) < 2 || e.toldOneKey.Load() {
		return
	}
	var children map[string]string // of idempotent IDs
	for i, msg := range msgs {
		child := msg.Metadata.Get(eventkey.MetadataChildKey)
		if child == "" {
			continue
		}
		id := items[i].IdempotentID
		if other, ok := children[id]; ok && other != child && !e.toldOneKey.Swap(true) {
			e.logger.Error("A handler has returned two messages that have one key: the second is taken for a duplicate of the first, or is refused as a conflict. "+
				"Give each a key of its own (metadata idempotency_key), or name the key source in Config.Topics of the topics that it is for: without a source, what a handler returns has keys of its own",
				errOneKey, watermill.LogFields{"topic": e.topic, "key": items[i].Key, "message_uuid": msg.UUID})
			return
		}
		if children == nil {
			children = make(map[string]string)
		}
		children[id] = child
	}
}

// checkTraps warns of what works, and does not recognise retries.
func (t *topicChecker) checkTraps(ctx context.Context, stream server.StreamInfo, layout Layout) {
	r := t.report
	if t.keySource() == eventkey.MessageUUID() {
		r.warn("Topic %q has the message UUID for its key: that is right only for an outbox or a forwarder, which store the message "+
			"before they publish it. Elsewhere each retry makes a new UUID, and is added again; take the key from the event's fields.", t.name)
	}
	if layout.Mode != ModeLatch && t.cfg.Producer == nil && stream.PIDsTracked > int64(layout.Shards) {
		r.warn("Topic %q has keys of %d producer IDs, and this publisher has %d: others publish to it, or instances of one service "+
			"have ProducerIDs of their own, of which each adds an event once.", t.name, stream.PIDsTracked, layout.Shards)
	}
	t.checkSample(ctx)
}

// What checkSample reads: the newest entries, up to a number and about so many bytes.
const (
	sampleEntries = 100
	sampleBytes   = 1 << 20
)

// checkSample looks at the newest entries for two that have the same key, by the configured
// source, and other contents. What a publisher of ours has added has none; but a stream
// that another one has written shows that a key is too coarse before an event is lost.
func (t *topicChecker) checkSample(ctx context.Context) {
	type event struct {
		id    string
		msg   *message.Message
		print []byte
	}
	seen := make(map[string]event)
	for _, entry := range t.newestEntries(ctx) {
		msg, err := t.streams.Decode(t.name, entry.ID, entry.Values)
		if err != nil {
			continue
		}
		key, ok := t.keyOfSource(msg)
		if !ok {
			continue
		}
		print, err := identity.Sum(t.settings.Fingerprint, msg)
		if err != nil {
			continue
		}
		other, ok := seen[key]
		if !ok {
			seen[key] = event{entry.ID, msg, print}
			continue
		}
		if bytes.Equal(other.print, print) {
			continue
		}
		where := "content"
		if field := identity.FirstDifference(t.settings.Fingerprint, msg.Payload, other.msg.Payload); field != "" {
			where = "field " + field
		}
		t.report.warn("Topic %q: entries %s and %s both have the key %q, and another %s. If they are two events, the key is too coarse, and the "+
			"second would be refused as a conflict; if they are one, leave the field out by Fingerprint.", t.name, entry.ID, other.id, key, where)
		return
	}
}

// newestEntries reads some, the newest first; none where the user may not.
func (t *topicChecker) newestEntries(ctx context.Context) (entries []redis.XMessage) {
	end, size := "+", 0
	for count := int64(1); len(entries) < sampleEntries && size < sampleBytes; count = min(2*count, int64(sampleEntries-len(entries))) {
		some, err := t.client.XRevRangeN(ctx, t.name, end, "-", count).Result()
		if err != nil || len(some) == 0 {
			return entries
		}
		for _, entry := range some {
			for _, value := range entry.Values {
				size += len(fmt.Sprint(value))
			}
		}
		entries = append(entries, some...)
		last, err := streamid.Parse(some[len(some)-1].ID)
		if err != nil || last.IsZero() {
			return entries
		}
		end = "(" + strconv.FormatUint(last.MS, 10) + "-" + strconv.FormatUint(last.Seq, 10)
	}
	return entries
}

// keySource is the one that names the events of the topic; nil if there is none.
func (t *topicChecker) keySource() eventkey.Source {
	if t.settings.Key != nil {
		return t.settings.Key
	}
	return t.cfg.Key
}

// keyOfSource is the key that the topic's source finds in a stored message. A message that was
// given another one is none of its.
func (t *topicChecker) keyOfSource(msg *message.Message) (key string, ok bool) {
	source := t.keySource()
	if source == nil || t.cfg.Mode == ModeIDMPAuto {
		return "", false
	}
	defer func() {
		if recover() != nil {
			key, ok = "", false
		}
	}()
	key, err := source.Key(t.name, msg)
	own := msg.Metadata.Get(eventkey.MetadataKey)
	return key, err == nil && key != "" && (own == "" || own == key)
}
