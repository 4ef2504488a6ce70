package rediskey

import "strings"

// The names are known to operators, to other versions of this library, and stored
// on servers: they are golden-tested and change only with a migration.

const (
	layoutSuffix     = ":idem:layout"
	latchInfix       = ":idem:latch:"
	sideInfix        = ":idem:"
	deadLetterSuffix = ".dead"
)

// LayoutKey is the key of the topic's layout record: {orders}:idem:layout.
func LayoutKey(topic string) string { return prefix(topic) + layoutSuffix }

// LatchKey is the key of the latch of one idempotent ID:
// {orders}:idem:latch:<producer>:<idempotent ID>. A colon or percent sign in the
// producer ID is percent-encoded.
func LatchKey(topic, producer, idempotentID string) string {
	return prefix(topic) + latchInfix + escape(producer) + ":" + idempotentID
}

// TopicOfLayout is the topic whose layout record has this key; false where it is none.
func TopicOfLayout(key string) (topic string, ok bool) {
	head, ok := strings.CutSuffix(key, layoutSuffix)
	if !ok || !strings.HasPrefix(head, "{") {
		return "", false
	}
	end := strings.IndexByte(head, '}')
	if end < 0 {
		return "", false
	}
	topic = head[1:end]
	if rest := head[end+1:]; rest != "" {
		if rest[0] != '/' {
			return "", false
		}
		topic = unescaper.Replace(rest[1:])
	}
	return topic, LayoutKey(topic) == key
}

// LayoutPattern is a pattern, as for SCAN, that the layout records of all topics match.
const LayoutPattern = "{*" + layoutSuffix

// LatchPrefix begins the keys of all latches of a topic.
func LatchPrefix(topic string) string { return prefix(topic) + latchInfix }

// LatchProducer begins the part of a latch's key, behind LatchPrefix, that has the
// idempotent ID.
func LatchProducer(producer string) string { return escape(producer) + ":" }

// ParseLatch takes the key of a latch of the topic apart.
func ParseLatch(topic, key string) (producer, idempotentID string, ok bool) {
	rest, ok := strings.CutPrefix(key, LatchPrefix(topic))
	if !ok {
		return "", "", false
	}
	producer, idempotentID, ok = strings.Cut(rest, ":")
	return unescaper.Replace(producer), idempotentID, ok
}

// DeadLetter is the stream for the topic's dead letters: {orders}.dead.
func DeadLetter(topic string) string { return prefix(topic) + deadLetterSuffix }

// IsReserved tells whether a key is, by its form, the layout record or a latch of
// some topic. A stream of that name would be in the way of that topic.
func IsReserved(key string) bool {
	end := strings.IndexByte(key, '}')
	if end < 0 || key[0] != '{' {
		return false
	}
	rest := key[end+1:]
	if strings.HasPrefix(rest, "/") {
		if colon := strings.IndexByte(rest, ':'); colon >= 0 {
			rest = rest[colon:]
		}
	}
	return strings.HasPrefix(rest, sideInfix)
}

// prefix begins all side keys of a topic, and of no other topic. A topic without }
// is its own hash tag, {orders}, and is followed by a colon or a dot. Any other
// topic shares its tag with topics of other names, or has none: it follows its tag
// after a slash, as in {eu}/x%3A{eu}%3Ay, where it has no colon.
func prefix(topic string) string {
	tag := Tag(topic)
	if tag == topic {
		return "{" + topic + "}"
	}
	return "{" + tag + "}/" + escape(topic)
}

var (
	escaper   = strings.NewReplacer("%", "%25", ":", "%3A")
	unescaper = strings.NewReplacer("%25", "%", "%3A", ":")
)

// escape makes a part that has no colon and is different for every part.
func escape(part string) string {
	if !strings.ContainsAny(part, "%:") {
		return part
	}
	return escaper.Replace(part)
}
