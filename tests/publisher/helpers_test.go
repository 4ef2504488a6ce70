package publisher_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

func newUUID() string { return uuid.NewString() }

// entries is the number of entries in a stream.
func entries(t testing.TB, client redis.UniversalClient, topic string) int {
	t.Helper()
	n, err := client.XLen(context.Background(), topic).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// testLogger writes what a user would see at the usual level.
type testLogger struct{ t testing.TB }

func (l testLogger) Error(msg string, err error, f watermill.LogFields) {
	l.t.Logf("ERROR %s: %v %v", msg, err, f)
}
func (l testLogger) Info(msg string, f watermill.LogFields)            { l.t.Logf("INFO %s %v", msg, f) }
func (testLogger) Debug(string, watermill.LogFields)                   {}
func (testLogger) Trace(string, watermill.LogFields)                   {}
func (l testLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// eventLog collects what hooks are told.
type eventLog[T any] struct {
	mu   sync.Mutex
	list []T
}

func (l *eventLog[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, v)
}

func (l *eventLog[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]T(nil), l.list...)
}
