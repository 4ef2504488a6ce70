package publisher

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill"
)

var errPanicked = errors.New("publishing panicked")

// rescue ends the calls of a batch whose sending panicked, in a hook of the client or a
// logger for example: nobody else would recover in a goroutine of ours, and the process
// would end. The flight goes on with the next batch.
func (t *topic) rescue(batch []*call) {
	p := recover()
	if p == nil {
		return
	}
	stack := debug.Stack()
	err := fmt.Errorf("%w: %v", errPanicked, p)
	for _, c := range batch {
		t.failCall(c, err)
	}
	defer func() { _ = recover() }() // of a logger, which may be what panicked
	t.engine.logger.Error("Publishing panicked; the messages that were being sent have the panic as their error", err, watermill.LogFields{
		"topic": t.name, "stack": string(stack),
	})
}

// failCall ends what is open of a call. What was handed to the client may be in the
// stream, wherever it panicked.
func (t *topic) failCall(c *call, err error) {
	for i := range c.items {
		t.failItem(c, i, err)
	}
}

func (t *topic) failItem(c *call, i int, err error) {
	defer func() { _ = recover() }() // of a logger, again
	c.finishAll(t.engine, c.items[i:i+1], func(it *item, r *Receipt) {
		describe(r, it)
		if it.attempts > 0 {
			r.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		} else {
			r.Err = notSent(err)
		}
	})
}
