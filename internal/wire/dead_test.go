package wire

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A dead letter is read as a message with its reason in metadata, even one whose own
// metadata is why it is dead.
func TestDeadLetterAsMessage(t *testing.T) {
	for name, metadata := range map[string]string{"sound": "", "broken": "\xc1"} {
		msg, err := DecodePairs("{orders}.dead", "1-0", []string{
			FieldUUID, "u", FieldMetadata, metadata, FieldPayload, "p",
			FieldDeadReason, "undecodable", FieldDeadOrigin, "orders 1-0",
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if msg.UUID != "u" || string(msg.Payload) != "p" || msg.Metadata[FieldDeadReason] != "undecodable" || msg.Metadata[FieldDeadOrigin] != "orders 1-0" {
			t.Errorf("%s: %s %q %v", name, msg.UUID, msg.Payload, msg.Metadata)
		}
		if got := msg.Metadata[FieldMetadata]; got != metadata {
			t.Errorf("%s: the broken metadata is %q", name, got)
		}
	}
	if _, err := DecodePairs("orders", "1-0", []string{FieldUUID, "u", FieldMetadata, "\xc1", FieldPayload, "p"}); err == nil {
		t.Error("broken metadata of a live entry is accepted")
	}
}

// The names are known to operators and stored on servers.
func TestGoldenDeadLetterFields(t *testing.T) {
	got := [...]string{FieldDeadReason, FieldDeadError, FieldDeadCount, FieldDeadGroup, FieldDeadOrigin, FieldDeadAt}
	want := [...]string{"_dead_reason", "_dead_error", "_dead_count", "_dead_group", "_dead_origin", "_dead_at"}
	if got != want {
		t.Errorf("names changed: %q", got)
	}
}

// A dead letter that was copied back with its marks in its metadata, and failed again,
// says why it failed last: its marks distinguish it from the first one.
func TestSecondDeadLetterHasTheMarksOfTheFirst(t *testing.T) {
	first := message.NewMessage("u", []byte("p"))
	first.Metadata = message.Metadata{"tenant": "t", FieldDeadReason: "max deliveries", FieldDeadOrigin: "orders 1-0", FieldDeadAt: "10:00"}
	encoded, err := encodeMetadata(first.Metadata, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := DecodePairs("{orders}.dead", "2-0", []string{
		FieldUUID, "u", FieldMetadata, encoded, FieldPayload, "p", "tenant", "somebody else's",
		FieldDeadReason, "rejected", FieldDeadOrigin, "orders 2-0", FieldDeadAt, "10:05",
	})
	if err != nil {
		t.Fatal(err)
	}
	md := second.Metadata
	if md[FieldDeadReason] != "rejected" || md[FieldDeadOrigin] != "orders 2-0" || md[FieldDeadAt] != "10:05" || md["tenant"] != "t" {
		t.Errorf("second dead letter: %v", md)
	}
}
