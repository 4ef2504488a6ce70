package publisher

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// A hook sees each message with the context that it is published under, and gets its receipt once,
// behind OnPublish, also where nothing is sent. What takes part in comparisons can't be carried.
func TestOnSend(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	type mark struct{}
	var calls []string
	note := func(words ...string) { calls = append(calls, strings.Join(words, " ")) }
	logger := watermill.NewCaptureLogger()
	p, err := New(Config{Client: client, ProducerID: "billing", Key: eventkey.Template("{$.id}"), Hooks: []Hooks{
		{
			OnSend: func(s *Sending) {
				under, _ := s.Context().Value(mark{}).(string)
				note("begins", s.Topic, s.Message.UUID, under)
				s.Carry("traceparent", "x")
				s.Done(func(r Receipt) { note("ends", r.MessageUUID) })
				s.Carry("tenant", "x") // panics, which is logged
			},
			OnPublish: func(r Receipt) { note("receipt", r.MessageUUID) },
		},
		{}, // one without
	}}, logger)
	if err != nil {
		t.Fatal(err)
	}
	own := message.NewMessage("own", []byte(`{"id":"1"}`))
	own.SetContext(context.WithValue(context.Background(), mark{}, "its own"))
	noKey := message.NewMessage("no-key", []byte(`{}`))
	_ = p.Publish("orders", own, noKey) // one that can't be sent
	_, _ = p.Send(context.WithValue(context.Background(), mark{}, "the call's"), "orders", own, nil)
	_ = p.Close()
	_ = p.Publish("orders", own) // closed
	want := []string{
		"begins orders own its own", "begins orders no-key ", "receipt own", "ends own", "receipt no-key", "ends no-key",
		"begins orders own the call's", "receipt own", "ends own", "receipt ",
		"begins orders own its own", "receipt own", "ends own",
	}
	if !slices.Equal(calls, want) {
		t.Errorf("calls\n%s\nwant\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
	logged := logger.Captured()[watermill.ErrorLogLevel]
	if len(logged) == 0 || !strings.Contains(logged[0].Err.Error(), `metadata "tenant" takes part in comparisons`) {
		t.Errorf("logged %+v", logged)
	}
	if own.Metadata["traceparent"] != "" {
		t.Errorf("the caller's message was changed: %v", own.Metadata)
	}
}

// What is carried replaces what the message has, and an empty value sends none.
func TestCarry(t *testing.T) {
	md := message.Metadata{"tenant": "t", "tracestate": "old", "baggage": "old", "empty": ""}
	s := new(Sending)
	if got := s.carryOn(md); len(got) != 4 {
		t.Errorf("%v", got)
	}
	s.Carry("traceparent", "new")
	s.Carry("tracestate", "")
	got := s.carryOn(md)
	_, stale := got["tracestate"]
	_, empty := got["empty"]
	if got["traceparent"] != "new" || stale || !empty || got["baggage"] != "old" || got["tenant"] != "t" || len(md) != 4 || md["tracestate"] != "old" {
		t.Errorf("%v of %v", got, md)
	}
}
