package oncetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware/oncetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func payment() *message.Message {
	msg := message.NewMessage("", message.Payload(`{"payment_id":"p1"}`))
	msg.Metadata.Set(eventkey.MetadataKey, "pay:p1")
	return msg
}

func TestSoundHandler(t *testing.T) {
	oncetest.Check(t, oncetest.Config{
		Message: payment,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", msg.Payload), message.NewMessage("", nil)}, nil
		},
	})
}

func TestConsumerWithAKeySource(t *testing.T) {
	oncetest.Check(t, oncetest.Config{
		Key: eventkey.Template("pay:{$.payment_id}"),
		Message: func() *message.Message {
			return message.NewMessage("", message.Payload(`{"payment_id":"p1"}`))
		},
		Handler: oncetest.Consumer(func(*message.Message) error { return nil }),
	})
}

func TestReports(t *testing.T) {
	for fault, want := range map[oncetest.Fault]oncetest.Report{
		oncetest.Duplicates:     {Runs: 1, Acked: 5, Skipped: 4, Publishes: 1},
		oncetest.CrashBeforeAck: {Runs: 1, Acked: 1, Nacked: 1, Skipped: 1, Publishes: 2},
		oncetest.PublishFails:   {Runs: 1, Acked: 1, Nacked: 2, Skipped: 2, Publishes: 1},
		oncetest.LeaseLost:      {Runs: 2, Acked: 1, Nacked: 1, Refused: 1, Publishes: 1},
	} {
		r, err := oncetest.Run(t.Context(), oncetest.Config{Message: payment, Handler: func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		}}, fault)
		if err != nil {
			t.Fatal(err)
		}
		if r.Runs != want.Runs || r.Acked != want.Acked || r.Nacked != want.Nacked || r.Skipped != want.Skipped || r.Refused != want.Refused || len(r.Published) != 1 {
			t.Errorf("%v", r)
		}
		// A duplicate that comes before the settling publishes again, under the same key.
		if r.Publishes < want.Publishes {
			t.Errorf("%v", r)
		}
	}
}

func TestFaultyHandlers(t *testing.T) {
	var n atomic.Int64
	var isSecond atomic.Bool
	for want, tt := range map[string]struct {
		fault   oncetest.Fault
		handler message.HandlerFunc
	}{
		"something else": {oncetest.LeaseLost, func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", fmt.Append(nil, n.Add(1)))}, nil
		}},
		"goes on after its context": {oncetest.LeaseLost, func(msg *message.Message) ([]*message.Message, error) {
			if !isSecond.Swap(true) {
				<-msg.Context().Done()
				<-time.After(3 * time.Second)
			}
			return nil, nil
		}},
		"never succeeded": {oncetest.Duplicates, func(*message.Message) ([]*message.Message, error) {
			return nil, errors.New("no funds")
		}},
	} {
		r, err := oncetest.Run(t.Context(), oncetest.Config{Message: payment, Handler: tt.handler}, tt.fault)
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(r.Complaints(), "\n"); !strings.Contains(all, want) {
			t.Errorf("%q is not among the complaints: %s (%v)", want, all, r)
		}
	}
}

func TestBadConfig(t *testing.T) {
	if _, err := oncetest.Run(context.Background(), oncetest.Config{}, oncetest.Duplicates); err == nil {
		t.Error("no error")
	}
	if _, err := oncetest.Run(context.Background(), oncetest.Config{Message: payment, Handler: oncetest.Consumer(func(*message.Message) error { return nil })}, "earthquake"); err == nil {
		t.Error("an unknown fault is no error")
	}
}
