package wire

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// anyBytes draws strings that need not be UTF-8, and empty ones.
func anyBytes() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
}

func anyMessage() *rapid.Generator[*message.Message] {
	return rapid.Custom(func(t *rapid.T) *message.Message {
		var payload message.Payload
		if rapid.Bool().Draw(t, "has payload") {
			payload = message.Payload(anyBytes().Draw(t, "payload"))
		}
		msg := message.NewMessage(anyBytes().Draw(t, "uuid"), payload)
		msg.Metadata = rapid.MapOf(anyBytes(), anyBytes()).Draw(t, "metadata")
		if msg.Metadata.Get(FieldUUID) != "" {
			delete(msg.Metadata, FieldUUID)
		}
		for name := range msg.Metadata {
			if isNeverSent(name) {
				delete(msg.Metadata, name)
			}
		}
		return msg
	})
}

// stored is what a client reads back of an entry's fields.
func stored(t interface{ Fatalf(string, ...any) }, fields []any) map[string]any {
	values := make(map[string]any, len(fields)/2)
	for i := 0; i < len(fields); i += 2 {
		switch v := fields[i+1].(type) {
		case string:
			values[fields[i].(string)] = v
		case []byte:
			values[fields[i].(string)] = string(v)
		default:
			t.Fatalf("value of %v is a %T", fields[i], v)
		}
	}
	return values
}

func wantEqual(t *rapid.T, got, want *message.Message) {
	t.Helper()
	if !got.Equals(want) {
		t.Fatalf("got %q %q %q, want %q %q %q", got.UUID, got.Metadata, got.Payload, want.UUID, want.Metadata, want.Payload)
	}
	if got.Metadata == nil {
		t.Fatalf("the metadata is nil: setting a field would panic")
	}
}

func TestDecodeReadsWhatEncodeWrote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msg := anyMessage().Draw(t, "message")
		fields, err := Encode(msg, msg.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		values := stored(t, fields)
		got, err := Decode("s", "1-1", values)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, msg)

		var pairs []string
		for name, value := range values {
			pairs = append(pairs, name, value.(string))
		}
		if got, err = DecodePairs("s", "1-1", pairs); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, msg)
	})
}

func TestRedisstreamReadsOurs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msg := anyMessage().Draw(t, "message")
		fields, err := Encode(msg, msg.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		got, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(stored(t, fields))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, msg)
	})
}

func TestRedisstreamIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msg := anyMessage().Draw(t, "message")
		theirs, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("s", msg)
		if err != nil {
			t.Fatal(err)
		}
		var fields []any
		for name, value := range theirs {
			fields = append(fields, name, value)
		}
		got, err := Decode("s", "1-1", stored(t, fields))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, msg)

		// With nothing to sort, the bytes are the same as well.
		if len(msg.Metadata) <= 1 {
			ours, err := Encode(msg, msg.Metadata)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := stored(t, ours), stored(t, fields); !maps.Equal(a, b) {
				t.Fatalf("ours %q, theirs %q", a, b)
			}
		}
	})
}

func TestSameMessageSameBytes(t *testing.T) {
	md := make(message.Metadata)
	for i := range 20 {
		md.Set(fmt.Sprintf("name%d", i), fmt.Sprint(i))
	}
	msg := message.NewMessage("u", []byte("p"))
	first, err := Encode(msg, md)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		// A map made anew is another map to the runtime.
		again, err := Encode(message.NewMessage("u", []byte("p")), maps.Clone(md))
		if err != nil {
			t.Fatal(err)
		}
		for i := range first {
			if fmt.Sprint(first[i]) != fmt.Sprint(again[i]) {
				t.Fatalf("field %d differs:\n%q\n%q", i, first[i], again[i])
			}
		}
	}
}

// Stored entries are compared with messages across versions.
func TestGoldenEntry(t *testing.T) {
	msg := message.NewMessage("u-1", []byte(`{"a":1}`))
	fields, err := Encode(msg, message.Metadata{"name": "Paid", "idempotency_key": "pay:1"})
	if err != nil {
		t.Fatal(err)
	}
	want := Fields{
		"_watermill_message_uuid", "u-1",
		"metadata", []byte("\x82\xafidempotency_key\xa5pay:1\xa4name\xa4Paid"),
		"payload", []byte(`{"a":1}`),
	}
	if fmt.Sprintf("%q", fields) != fmt.Sprintf("%q", want) {
		t.Fatalf("got  %q\nwant %q", fields, want)
	}
}

func TestNamesAreThoseOfTheirOwner(t *testing.T) {
	if FieldUUID != redisstream.UUIDHeaderKey {
		t.Errorf("FieldUUID is %q, redisstream has %q", FieldUUID, redisstream.UUIDHeaderKey)
	}
}

func TestChildKeyStaysInTheProcess(t *testing.T) {
	md := message.Metadata{eventkey.MetadataChildKey: "c", eventkey.MetadataChildKey + "_x": "c", "a": "1"}
	fields, err := Encode(message.NewMessage("u", nil), md)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(fields[3].([]byte), []byte(eventkey.MetadataChildKey)) {
		t.Fatalf("sent: %q", fields)
	}
	if len(md) != 3 {
		t.Fatalf("the caller's metadata was changed: %q", md)
	}

	// Nor is it believed when somebody else sends it.
	msg, err := Decode("s", "1-1", map[string]any{eventkey.MetadataChildKey: "c", "a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (message.Metadata{"a": "1"}); !maps.Equal(msg.Metadata, want) {
		t.Fatalf("metadata %q, want %q", msg.Metadata, want)
	}

	fields, err = Encode(message.NewMessage("u", nil), message.Metadata{eventkey.MetadataChildKey: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if len(fields[3].([]byte)) != 0 {
		t.Fatalf("metadata that is all kept back must be empty as if there were none: %q", fields)
	}
}

func TestReservedMetadataIsRefused(t *testing.T) {
	_, err := Encode(message.NewMessage("u-7", nil), message.Metadata{FieldUUID: "x"})
	if err == nil || !strings.Contains(err.Error(), "u-7") || !strings.Contains(err.Error(), FieldUUID) {
		t.Fatalf("err = %v", err)
	}
}

func TestForeignEntries(t *testing.T) {
	for _, tt := range []struct {
		name     string
		values   map[string]any
		uuid     string // "" for a derived one
		metadata message.Metadata
		payload  string
	}{
		{"fields only", map[string]any{"order_id": "1001", "amount": "5"}, "", message.Metadata{"order_id": "1001", "amount": "5"}, ""},
		{"with a payload", map[string]any{"payload": "p", "type": "t"}, "", message.Metadata{"type": "t"}, "p"},
		{"with a field that is called metadata", map[string]any{"metadata": "m"}, "", message.Metadata{"metadata": "m"}, ""},
		{"bytes instead of strings", map[string]any{"a": []byte("1")}, "", message.Metadata{"a": "1"}, ""},
		{"nothing", nil, "", message.Metadata{}, ""},
		{"UUID without payload", map[string]any{FieldUUID: "u", "a": "1"}, "u", message.Metadata{"a": "1"}, ""},
		{"further fields", map[string]any{FieldUUID: "u", "payload": "p", "metadata": "\x81\xa1a\xa11", "a": "2", "b": "3"},
			"u", message.Metadata{"a": "1", "b": "3"}, "p"},
		{"MessagePack nil", map[string]any{FieldUUID: "u", "payload": "p", "metadata": "\xc0"}, "u", message.Metadata{}, "p"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg, err := Decode("s", "1-1", tt.values)
			if err != nil {
				t.Fatal(err)
			}
			if msg.Metadata == nil || !maps.Equal(msg.Metadata, tt.metadata) || string(msg.Payload) != tt.payload {
				t.Errorf("metadata %q payload %q, want %q %q", msg.Metadata, msg.Payload, tt.metadata, tt.payload)
			}
			want := tt.uuid
			if want == "" {
				want = "e3671b5a-c817-5f34-af8f-de875ff58ccd" // of entry 1-1 in stream s, always
			}
			if msg.UUID != want {
				t.Errorf("UUID %q, want %q", msg.UUID, want)
			}
		})
	}
	if a, b := entryUUID("s", "1-1"), entryUUID("s", "1-2"); a == b {
		t.Error("two entries have one UUID")
	}
	if a, b := entryUUID("s", "1-1"), entryUUID("t", "1-1"); a == b {
		t.Error("entries of two streams have one UUID")
	}
}

func TestUndecodableEntries(t *testing.T) {
	for name, decode := range map[string]func() (*message.Message, error){
		"no MessagePack": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: "u", "metadata": `{"a":1}`, "payload": ""})
		},
		"a truncated map": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: "u", "metadata": "\x82\xa1a\xa11", "payload": ""})
		},
		"a huge map": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: "u", "metadata": "\xdf\xff\xff\xff\xff", "payload": ""})
		},
		"a huge string": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: "u", "metadata": "\x81\xdb\xff\xff\xff\xffab", "payload": ""})
		},
		"a value that is a number": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: "u", "metadata": "\x81\xa1a\x01", "payload": ""})
		},
		"not a string": func() (*message.Message, error) {
			return Decode("orders", "5-0", map[string]any{FieldUUID: 5})
		},
		"a name without a value": func() (*message.Message, error) {
			return DecodePairs("orders", "5-0", []string{"a"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			msg, err := decode()
			var e *Error
			if msg != nil || !errors.As(err, &e) || e.Stream != "orders" || e.ID != "5-0" || e.Unwrap() == nil {
				t.Fatalf("got %v, %v", msg, err)
			}
			if text := err.Error(); !strings.Contains(text, "orders") || !strings.Contains(text, "5-0") {
				t.Fatalf("the error doesn't tell the entry: %v", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("u", "\x82\xa1a\xa11\xa1b\xa12", "p", "x", "y")
	f.Add("u", "\xdf\xff\xff\xff\xff", "", FieldUUID, "")
	f.Add("", "\xc7\x01\x01\x81", "", "payload", "z")
	f.Fuzz(func(t *testing.T, uuid, metadata, payload, name, value string) {
		msg, err := DecodePairs("s", "1-1", []string{FieldUUID, uuid, "metadata", metadata, "payload", payload, name, value})
		if (msg == nil) == (err == nil) {
			t.Fatalf("got %v, %v", msg, err)
		}
		if msg != nil && msg.Metadata == nil {
			t.Fatal("nil metadata")
		}
		if msg, err = DecodePairs("s", "1-1", []string{name, value}); name != FieldUUID && (msg == nil || err != nil) {
			t.Fatalf("a foreign entry was refused: %v", err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	msg := message.NewMessage("6ba7b810-9dad-11d1-80b4-00c04fd430c8", bytes.Repeat([]byte("x"), 200))
	md := message.Metadata{"name": "PaymentReceived", "idempotency_key": "pay:1001:p9001", "idempotency_producer": "payment-service", "correlation_id": "c-1"}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Encode(msg, md); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("redisstream", func(b *testing.B) {
		msg.Metadata = md
		b.ReportAllocs()
		for b.Loop() {
			if _, err := (redisstream.DefaultMarshallerUnmarshaller{}).Marshal("s", msg); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	msg := message.NewMessage("6ba7b810-9dad-11d1-80b4-00c04fd430c8", bytes.Repeat([]byte("x"), 200))
	fields, err := Encode(msg, message.Metadata{"name": "PaymentReceived", "idempotency_key": "pay:1001:p9001", "correlation_id": "c-1"})
	if err != nil {
		b.Fatal(err)
	}
	values := make(map[string]any)
	for i := 0; i < len(fields); i += 2 {
		values[fields[i].(string)] = fmt.Sprintf("%s", fields[i+1])
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode("s", "1-1", values); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("redisstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := (redisstream.DefaultMarshallerUnmarshaller{}).Unmarshal(values); err != nil {
				b.Fatal(err)
			}
		}
	})
}
