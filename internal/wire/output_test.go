package wire

import (
	"encoding/hex"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
)

func TestOutputIsReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msg := anyMessage().Draw(t, "message")
		msg.Metadata.Set(eventkey.MetadataChildKey, "child:1")
		encoded := EncodeOutput(msg)
		got, err := DecodeOutput(encoded)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, msg)
		if string(EncodeOutput(got)) != string(encoded) {
			t.Fatal("encoded again, it differs")
		}
	})
}

// Recorded outputs are stored on servers: a later release reads those of this one.
func TestGoldenOutput(t *testing.T) {
	msg := message.NewMessage("u1", message.Payload("{}"))
	msg.Metadata = message.Metadata{"b": "2", "a": ""}
	const want = "01" + "027531" + "02" + "016100" + "01620132" + "7b7d"
	if got := hex.EncodeToString(EncodeOutput(msg)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzDecodeOutput(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(EncodeOutput(message.NewMessage("u1", message.Payload("{}"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := DecodeOutput(b)
		if (msg == nil) == (err == nil) {
			t.Errorf("message %v, error %v", msg, err)
		}
	})
}
