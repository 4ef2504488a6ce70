package redisstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
	"github.com/onceward/watermill-idempotent/internal/server"
)

const (
	// A pipeline is large enough to be fast, small enough not to hold up others.
	batchCommands = 256
	// What has more bytes than this goes out alone: a server that refuses it for its size
	// closes the connection, and with that takes the replies of all the others.
	batchedBytes = 32 << 10

	// lateAfter is when a pipeline does not keep what came later waiting any more: its
	// connection may be stalled.
	lateAfter  = 100 * time.Millisecond
	maxSenders = 8
)

// batcher sends the commands of callers that come at the same time as pipelines: handlers of
// their own goroutines would need a connection and a write each. Whoever finds nothing on its
// way is sent at once, and what comes meanwhile goes together in the next pipeline; nobody
// waits for company. An idle batcher has no goroutine.
type batcher struct {
	client  redis.UniversalClient
	running *sync.WaitGroup // of the store, above zero while a command is added
	// longest is how long the client waits for the server, 0 where that has no bound.
	longest time.Duration
	// known: a cluster's layout is known to the client, so that asking it for the master of
	// a key does not dial.
	known atomic.Bool

	mu     sync.Mutex
	queues map[redis.UniversalClient]*queue // of masters; a stalled one does not keep others waiting
}

func newBatcher(client redis.UniversalClient, running *sync.WaitGroup) *batcher {
	b := &batcher{client: client, running: running, queues: make(map[redis.UniversalClient]*queue)}
	if o, ok := server.OptionsOf(client); ok && o.ReadTimeout > 0 && o.WriteTimeout > 0 {
		// One of them: a small command fits into the buffers of a connection that is idle, or
		// is not written at all.
		b.longest = max(o.ReadTimeout, o.WriteTimeout)
	}
	return b
}

// queue has the commands for a master that wait to be sent. The batcher's lock guards it.
type queue struct {
	node    redis.UniversalClient
	calls   []*call
	senders []*sender
	late    *time.Timer // looks whether somebody has to relieve a sender that is late
	watched bool        // late is set
}

// call is a command on its way; done is closed when its reply is there.
type call struct {
	ctx  context.Context //nolint:containedctx // of the caller, for hooks of the client
	cmd  redis.Cmder
	done chan struct{}
}

// sender sends pipelines of a queue, one after the other, until that is empty; or it is a
// caller that sends its own command.
type sender struct {
	since time.Time // when it took what it sends; the batcher's lock guards it
}

// master is the client by which commands of a key are brought together and sent, nil where
// that is not known without asking. A cluster's client is not sent pipelines: it would follow
// the redirection of one command to a node that hangs, with all the others waiting. What is
// redirected goes out again by itself, by the cluster's client.
func (b *batcher) master(ctx context.Context, key string) redis.UniversalClient {
	switch b.client.(type) {
	case *redis.Client:
	case *redis.ClusterClient:
		if !b.known.Load() {
			return nil
		}
	default:
		return nil
	}
	node, err := server.Node(ctx, b.client, key)
	if err != nil {
		return nil
	}
	return node
}

// queueOf must be called with the lock.
func (b *batcher) queueOf(node redis.UniversalClient) *queue {
	q := b.queues[node]
	if q == nil {
		q = &queue{node: node}
		b.queues[node] = q
	}
	return q
}

func (b *batcher) add(node redis.UniversalClient, c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queueOf(node)
	q.calls = append(q.calls, c)
	b.relieve(q)
}

// alone makes a caller the sender of its own command, if nothing is on its way to the master:
// another goroutine would cost more than the command. The client ends the waiting then, so that
// it must do so before the caller would. leave must follow.
func (b *batcher) alone(ctx context.Context, node redis.UniversalClient, s *sender) bool {
	by := storeutil.EndsBy(ctx)
	if b.longest == 0 || by.IsZero() || time.Until(by) < b.longest {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queueOf(node)
	if len(q.calls) > 0 || len(q.senders) > 0 {
		return false
	}
	s.since = time.Now()
	q.senders = append(q.senders, s)
	return true
}

// leave is for a caller that has sent its command: what came meanwhile goes out now.
func (b *batcher) leave(node redis.UniversalClient, s *sender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[node]
	b.remove(q, s)
	b.relieve(q)
}

// remove takes a sender that has ended off its queue, with the lock. Masters of a cluster come
// and go: an idle one is forgotten.
func (b *batcher) remove(q *queue, s *sender) {
	q.senders = slices.DeleteFunc(q.senders, func(other *sender) bool { return other == s })
	if len(q.senders) == 0 && len(q.calls) == 0 && q.node != b.client {
		delete(b.queues, q.node)
	}
}

// relieve starts a sender if nobody is about to take what waits. The caller holds the lock.
func (b *batcher) relieve(q *queue) {
	if len(q.calls) == 0 || len(q.senders) >= maxSenders {
		return
	}
	var inTime time.Duration // until the last of the senders is late
	for _, s := range q.senders {
		inTime = max(inTime, lateAfter-time.Since(s.since))
	}
	if inTime > 0 {
		q.watch(inTime, b)
		return
	}
	s := &sender{since: time.Now()}
	q.senders = append(q.senders, s)
	b.running.Add(1)
	go b.run(q, s)
}

// watch sees to it that somebody looks again, with the lock.
func (q *queue) watch(after time.Duration, b *batcher) {
	switch {
	case q.watched:
	case q.late == nil:
		q.late = time.AfterFunc(after, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			q.watched = false
			b.relieve(q)
		})
	default:
		q.late.Reset(after)
	}
	q.watched = true
}

func (b *batcher) run(q *queue, s *sender) {
	defer b.running.Done()
	for {
		calls := b.take(q, s)
		switch len(calls) {
		case 0:
			return
		case 1:
			// The caller's context ends its waiting, not the command.
			_ = server.Process(context.WithoutCancel(calls[0].ctx), q.node, calls[0].cmd)
		default:
			cmds := make([]redis.Cmder, len(calls))
			for i, c := range calls {
				cmds[i] = c.cmd
			}
			server.ProcessAll(context.Background(), q.node, cmds)
		}
		for _, c := range calls {
			close(c.done)
		}
		runtime.Gosched() // those that were just served may have their next command
	}
}

// take returns the next pipeline of a queue, nil when it is empty; then the sender has ended.
func (b *batcher) take(q *queue, s *sender) []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(q.calls), batchCommands)
	if n == 0 {
		b.remove(q, s)
		return nil
	}
	calls := slices.Clone(q.calls[:n])
	q.calls = slices.Delete(q.calls, 0, n)
	s.since = time.Now()
	if len(q.calls) > 0 {
		q.watch(lateAfter, b)
	}
	return calls
}

// withdraw takes a command back that is not on its way yet, and tells so.
func (b *batcher) withdraw(node redis.UniversalClient, c *call) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[node]
	if q == nil {
		return false
	}
	i := slices.Index(q.calls, c)
	if i < 0 {
		return false
	}
	q.calls = slices.Delete(q.calls, i, i+1)
	return true
}

// passenger sends the commands of one step with those of others. It is a server.Processor.
type passenger struct {
	batcher *batcher
	node    redis.UniversalClient
	ending  <-chan struct{}
	sender  sender          // while it sends by itself
	call    call            // the last one
	pending <-chan struct{} // of a command that was on its way when nobody waited any more
}

// Process implements server.Processor. The context ends the waiting, but for a command that is
// sent by its caller: then the client's time-outs do.
func (p *passenger) Process(ctx context.Context, cmd redis.Cmder) error {
	if p.batcher.alone(ctx, p.node, &p.sender) {
		defer p.batcher.leave(p.node, &p.sender)
		return server.Process(context.WithoutCancel(ctx), p.node, cmd)
	}
	p.call = call{ctx: ctx, cmd: cmd, done: make(chan struct{})} // the one before it has ended
	c := &p.call
	p.batcher.add(p.node, c)
	var err error
	select {
	case <-c.done:
		return cmd.Err()
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-p.ending:
		err = dedupe.ErrClosed
	}
	if !p.batcher.withdraw(p.node, c) {
		p.pending = c.done
	}
	return err
}
