package publisher

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

const (
	// idleTopic is how long nothing must have been published to a topic until it is
	// forgotten, or its window, if that is longer: after that there is nothing left in the
	// history of its ids that could show an overflow.
	idleTopic = 10 * time.Minute
	// sweepPause is the least time between two looks for such topics.
	sweepPause = time.Minute
)

// engine is what a Publisher with its shared handles and a Guard have in common: the
// topics that are in use, and how long they live.
type engine struct {
	cfg      Config
	streams  appender.Config
	logger   watermill.LoggerAdapter
	keepSent bool // items keep the message that they encode, for a Guard
	runner   *batch.Runner

	mu     sync.Mutex
	topics map[string]*topic
	swept  time.Time // when topics were last looked through
}

// topic has the parts of one topic.
type topic struct {
	encoder encoder
	events  *events
	stream  *appender.Stream
	queue   *batch.Queue

	users atomic.Int64 // calls that have it; raised under the engine's lock only
	used  time.Time    // when the last call began; guarded by the engine
}

func newEngine(cfg Config, logger watermill.LoggerAdapter, keepSent bool) *engine {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	e := &engine{cfg: cfg, streams: cfg.streams(), logger: logger, keepSent: keepSent, topics: make(map[string]*topic)}
	e.runner = batch.NewRunner(batch.Config{RetryFor: cfg.RetryFor, Classify: appender.Classify, Bounded: isBounded(cfg.Client)})
	if looks := ofOneInstance(cfg.ProducerID); looks != "" {
		logger.Error("Config.ProducerID "+looks+"; name the service instead", errOfOneInstance, watermill.LogFields{"producer_id": cfg.ProducerID})
	}
	return e
}

// isBounded tells whether a client bounds how long a command takes, as far as is known.
func isBounded(client redis.UniversalClient) bool {
	o, _ := server.OptionsOf(client)
	return o.ReadTimeout > 0 && o.WriteTimeout > 0
}

func (e *engine) newTopic(name string) *topic {
	settings, maxlen := e.cfg.forTopic(name)
	events := e.events(name)
	events.wanted = settings.Window
	t := &topic{encoder: newEncoder(&e.cfg, name, settings, e.keepSent), events: events}
	t.stream = appender.New(&e.streams, name, settings.ofStream(maxlen), events)
	t.queue = batch.NewQueue(e.runner, t.stream, events)
	return t
}

func (e *engine) events(topic string) *events {
	return &events{topic: topic, retryFor: e.cfg.RetryFor, logger: e.logger, hooks: e.cfg.Hooks}
}

// acquire returns a topic for a call that begins now. Until it is released it is not
// forgotten.
func (e *engine) acquire(name string, now time.Time) *topic {
	t, idle := e.find(name, now)
	for _, t := range idle { // without the lock: hooks may publish
		t.stream.FlushOverflow()
	}
	return t
}

// release is called when the call has returned. A sender may go on without it.
func (t *topic) release() { t.users.Add(-1) }

func (e *engine) find(name string, now time.Time) (t *topic, idle []*topic) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.topics[name]
	if !ok {
		idle = e.forgetIdle(now)
		t = e.newTopic(name)
		e.topics[name] = t
	}
	t.used = now
	t.users.Add(1)
	return t, idle
}

// forgetIdle takes out the topics that nobody has used for long, so that a service with a
// topic a tenant does not grow for ever. There are more only when one comes, so that is
// when it is called. The caller holds e.mu: nobody gets a topic meanwhile.
func (e *engine) forgetIdle(now time.Time) (idle []*topic) {
	if now.Sub(e.swept) < sweepPause {
		return nil
	}
	e.swept = now
	maps.DeleteFunc(e.topics, func(_ string, t *topic) bool {
		if t.users.Load() > 0 || now.Sub(t.used) < max(idleTopic, t.stream.Window()) || !t.queue.Idle() {
			return false
		}
		idle = append(idle, t)
		return true
	})
	return idle
}

// close refuses further calls and waits for those that were begun.
func (e *engine) close() error {
	defer func() {
		e.mu.Lock()
		topics := slices.Collect(maps.Values(e.topics))
		e.mu.Unlock()
		for _, t := range topics {
			t.stream.FlushOverflow()
		}
	}()
	return e.runner.Close()
}

// refuse reports messages that are not sent: none of them is tried.
func (e *engine) refuse(of under, topic string, msgs []*message.Message, begun time.Time, err error) []Receipt {
	events := e.events(topic)
	sent := events.onSend(of, msgs)
	receipts := make([]Receipt, len(msgs))
	for i, msg := range msgs {
		receipts[i] = Receipt{Topic: topic, Err: err}
		if msg != nil {
			receipts[i].MessageUUID = msg.UUID
		}
	}
	events.notSent(receipts, sent, begun)
	return receipts
}

// send sends a call and returns one receipt an item.
func (t *topic) send(ctx context.Context, c *batch.Call) []Receipt {
	receipts := make([]Receipt, len(c.Items))
	t.queue.Send(ctx, c, func(i int, r batch.Result) { receipts[i] = t.events.receipt(&c.Items[i], &r) })
	return receipts
}
