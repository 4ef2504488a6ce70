package publisher

import (
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

func TestProducerIDOfOneInstance(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		host:                                   true,
		"payment-service-6f9c7bd54d-x2v8k":     true, // a pod of a Deployment
		"2d1b3a52-9f0e-4b62-8a3c-0d6b1c0a9f11": true,
		"payments:2D1B3A52-9F0E-4B62-8A3C-0D6B1C0A9F11": true,
		"payments-4f1c2d3e4b5a69788796a5b4c3d2e1f0":     true,
		"01j9zq3v8k5x7m2n4p6r8t0wyz":                    true, // a ULID
		"payment-service":                               false,
		"payment-service-2":                             false,
		"payment-service-eu-west-1":                     false,
		"orders-export-nightly":                         false,
		"internationalization-backend":                  false,
		"a":                                             false,
		"warehouse":                                     false,
		"checkout-v2-canary":                            false,
		"00000000":                                      false,
		"команда-платежей":                              false,
		"counterrevolutionaries-desk":                   false,
	} {
		if got := ofOneInstance(id); (got != "") != want {
			t.Errorf("%q: %q, want a warning: %v", id, got, want)
		}
	}
	logger := watermill.NewCaptureLogger()
	c := good(t)
	for _, id := range []string{c.ProducerID, "payment-service-6f9c7bd54d-x2v8k"} {
		c.ProducerID = id
		p, err := New(c, logger)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Close()
	}
	if n := len(logger.Captured()[watermill.ErrorLogLevel]); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
}

// What a handler returns is told from a retry by its child key.
func TestReturnedMessagesOfOneKey(t *testing.T) {
	returned := func(child, payload string) *message.Message {
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		if child != "" {
			msg.Metadata.Set(eventkey.MetadataChildKey, child)
		}
		return msg
	}
	receipt, mail := returned("child:0", `{"id":"1"}`), returned("child:1", `{"id":"1","mail":true}`)
	for name, tt := range map[string]struct {
		source eventkey.Source
		msgs   []*message.Message
		told   bool
	}{
		"two of one key":       {eventkey.Template("{$.id}"), []*message.Message{returned("child:2", `{"id":"2"}`), receipt, mail}, true},
		"two keys":             {eventkey.Template("{$.id}"), []*message.Message{receipt, returned("child:1", `{"id":"2"}`)}, false},
		"without a source":     {nil, []*message.Message{receipt, mail}, false},
		"one message again":    {eventkey.Template("{$.id}"), []*message.Message{receipt, receipt}, false},
		"of no handler":        {eventkey.Template("{$.id}"), []*message.Message{returned("", `{"id":"1"}`), returned("", `{"id":"1"}`)}, false},
		"one of the handler's": {eventkey.Template("{$.id}"), []*message.Message{returned("", `{"id":"1"}`), mail}, false},
	} {
		t.Run(name, func(t *testing.T) {
			logger := watermill.NewCaptureLogger()
			enc := newEncoder(&Config{ProducerID: "billing", MaxPayload: 1 << 20}, "receipts", TopicConfig{Key: tt.source}, false)
			c, faults := enc.encodeAll(t.Context(), tt.msgs, nil, time.Now())
			if faults != nil {
				t.Fatal(faults)
			}
			e := &events{topic: "receipts", logger: logger}
			e.checkReturned(tt.msgs, c.Items)
			e.checkReturned(tt.msgs, c.Items)
			told := logger.Captured()[watermill.ErrorLogLevel]
			if want := map[bool]int{true: 1}[tt.told]; len(told) != want {
				t.Errorf("told %d times, want %d: %+v", len(told), want, told)
			}
		})
	}
}
