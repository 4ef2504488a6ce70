package middleware_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// broken is a message whose key or fingerprint can't be made.
type broken struct {
	payload string
	key     string // set on the message
	source  eventkey.Source
	print   eventkey.Fingerprint
}

var (
	payment   = eventkey.Template("pay:{$.id}")
	brokenOne = map[string]broken{
		"not JSON":                       {payload: `{"id":`, source: payment},
		"an array as a key":              {payload: `{"id":[1]}`, source: payment},
		"an object as a key":             {payload: `{"id":{}}`, source: payment},
		"a name twice":                   {payload: `{"id":1,"id":2}`, source: payment},
		"key too long":                   {payload: `{"id":"` + strings.Repeat("k", 2000) + `"}`, source: payment},
		"key is not UTF-8":               {payload: "{\"id\":\"\xff\"}", source: payment},
		"half of a surrogate pair":       {payload: `{"id":"\ud800"}`, source: payment},
		"no key":                         {payload: `{}`, source: payment},
		"no payload":                     {source: payment},
		"own key too long":               {payload: `{}`, key: strings.Repeat("k", 2000)},
		"own key is not UTF-8":           {payload: `{}`, key: "\xff"},
		"not canonical":                  {payload: `{"id":1,"id":2}`, source: eventkey.CanonicalJSON()},
		"fault found by a source":        {payload: `{}`, source: eventkey.Func(func(string, *message.Message) (string, error) { return "", errors.New("unknown version") })},
		"source panics":                  {payload: `{}`, source: eventkey.Func(func(string, *message.Message) (string, error) { panic("boom") })},
		"source gives an unusable key":   {payload: `{}`, source: eventkey.Func(func(string, *message.Message) (string, error) { return "\xff", nil })},
		"fingerprint of what is no JSON": {payload: `no`, key: "k", print: eventkey.JSONOnly("amount")},
		"fingerprint of missing fields":  {payload: `{}`, key: "k", print: eventkey.JSONOnly("amount")},
		"fingerprint of a double name":   {payload: `{"a":{"b":1,"b":2}}`, key: "k", print: eventkey.JSONOnly("a")},
		"fingerprint fails":              {payload: `{}`, key: "k", print: eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { return nil, errors.New("no") })},
		"fingerprint panics":             {payload: `{}`, key: "k", print: eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { panic("boom") })},
	}
)

// Both sides call a broken message permanent, whichever of them has found it, and so does
// Watermill's Retry that asks: it tries once.
func TestBrokenMessageIsTriedSixTimes(t *testing.T) {
	client := testserver.Shared(t, testserver.Redis86).Client()
	for name, b := range brokenOne {
		t.Run(name, func(t *testing.T) {
			pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service", Key: b.source, Fingerprint: b.print}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pub.Close() })
			once := rig.NewOnce(t, rig.NewStore(t), func(c *middleware.Config) { c.Key, c.Fingerprint = b.source, b.print })
			handle := once.Handler(func(*message.Message) ([]*message.Message, error) {
				t.Error("the handler runs")
				return nil, nil
			})
			tries := 0
			retry := wmiddleware.Retry{
				MaxRetries: 5, Logger: watermill.NopLogger{},
				ShouldRetry: func(p wmiddleware.RetryParams) bool { return !middleware.IsPermanent(p.Err) },
			}
			router := rig.New(t, func(msg *message.Message) ([]*message.Message, error) { tries++; return handle(msg) }, retry.Middleware)
			if router.Deliver(rig.NewMessage(b.key, b.payload)) {
				t.Error("a broken message is acknowledged")
			}
			if tries != 1 {
				t.Errorf("Retry tried %d times", tries)
			}
			for by, err := range map[string]error{"publisher": pub.Publish(testserver.Topic(t), rig.NewMessage(b.key, b.payload)), "middleware": router.Err} {
				if !publisher.IsPermanent(err) || !middleware.IsPermanent(err) {
					t.Errorf("%s says %v: permanent for the publisher %v, for the middleware %v", by, err, publisher.IsPermanent(err), middleware.IsPermanent(err))
				}
				if errors.Is(err, eventkey.ErrNoKey) == errors.Is(err, eventkey.ErrInvalidMessage) {
					t.Errorf("%s says %v, want it to match one of ErrNoKey and ErrInvalidMessage", by, err)
				}
			}
		})
	}
}

// What a handler's own publish refuses for good is permanent for the middleware, too, and
// what an operator can mend is not.
func TestRefusalOfAPublishInsideAHandlerIsPermanent(t *testing.T) {
	client := testserver.Shared(t, testserver.Redis86).Client()
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service", MaxPayload: 100}, nil)
	if err != nil {
		t.Fatal(err)
	}
	topic := testserver.Topic(t)
	if err := pub.Publish(topic, rig.NewMessage("k", `1`)); err != nil {
		t.Fatal(err)
	}
	conflict := pub.Publish(topic, rig.NewMessage("k", `2`))
	large := pub.Publish(topic, rig.NewMessage("l", strings.Repeat("x", 200)))
	_ = pub.Close()
	closed := pub.Publish(topic, rig.NewMessage("m", `1`))
	for _, c := range []struct {
		err, want error
		permanent bool
	}{{conflict, publisher.ErrConflict, true}, {large, publisher.ErrTooLarge, true}, {closed, publisher.ErrClosed, false}} {
		if !errors.Is(c.err, c.want) {
			t.Fatalf("got %v, want %v", c.err, c.want)
		}
		if m, p := middleware.IsPermanent(c.err), publisher.IsPermanent(c.err); m != c.permanent || p != c.permanent {
			t.Errorf("%v: permanent for the middleware %v, for the publisher %v", c.err, m, p)
		}
	}
}
