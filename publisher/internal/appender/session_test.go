package appender

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Under a layout that nobody has made retries would not be recognised, so nothing is sent.
func TestLayoutOfNobodyIsRefused(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "nowhere:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("it was sent")
		return nil, errors.New("nowhere")
	}})
	t.Cleanup(func() { _ = client.Close() })
	for _, l := range []Layout{{}, {Mode: Auto, Shards: 1}, {Mode: IDMP}, {Mode: Latch}, {Mode: IDMPAuto, Shards: -1}, {Mode: 9, Shards: 1}} {
		topic := New(&Config{Client: client, ProducerID: "p"}, "orders", Settings{}, nil)
		st := &Session{stream: topic, layout: l}
		if _, err := st.Append(t.Context(), []*batch.Item{{ProducerID: "p", Entry: batch.Entry{UUID: "u"}}}); !errors.Is(err, ErrLayout) {
			t.Errorf("%+v: sent, with %v", l, err)
		}
		if _, err := topic.complete(st); !errors.Is(err, ErrLayout) {
			t.Errorf("%+v: set up, with %v", l, err)
		}
	}
}
