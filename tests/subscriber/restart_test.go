package subscriber_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// restartCommand is a command that restarts the server. The server is a child of this
// process and must stay one, so the command only asks: it opens a connection and waits
// for the answer.
func restartCommand(t *testing.T, s *testserver.Server) []string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed with the test
			}
			s.Restart()
			_, _ = fmt.Fprintln(conn, "ok")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	port := listener.Addr().(*net.TCPAddr).Port
	return []string{"bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/127.0.0.1/%d; read -r line <&3; [ "$line" = ok ]`, port)}
}

// inTurn holds a message back until its Publish has returned, and the last one a moment
// longer. The suite's TestReconnect compares what it received with what it has noted as
// published, and notes that on another goroutine without waiting for it.
func inTurn(pub message.Publisher, sub message.Subscriber) (message.Publisher, message.Subscriber) {
	notes := &notes{published: make(map[string]chan struct{})}
	return notingPublisher{pub, notes}, notingSubscriber{sub, notes}
}

type notes struct {
	mu        sync.Mutex
	published map[string]chan struct{} // closed when Publish has returned
}

func (n *notes) of(id string) chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.published[id] == nil {
		n.published[id] = make(chan struct{})
	}
	return n.published[id]
}

type notingPublisher struct {
	message.Publisher
	notes *notes
}

func (p notingPublisher) Publish(topic string, msgs ...*message.Message) error {
	err := p.Publisher.Publish(topic, msgs...)
	if err == nil {
		for _, msg := range msgs {
			close(p.notes.of(msg.UUID))
		}
	}
	return err
}

type notingSubscriber struct {
	message.Subscriber
	notes *notes
}

func (s notingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		seen := make(map[string]bool)
		for msg := range in {
			<-s.notes.of(msg.UUID)
			if seen[msg.UUID] = true; len(seen) == 10_000 {
				<-time.After(200 * time.Millisecond)
			}
			out <- msg
		}
	}()
	return out, nil
}
