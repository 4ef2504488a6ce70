package wire

import "testing"

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
