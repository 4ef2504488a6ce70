package subscriber

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

var errNoMessage = errors.New("the Unmarshaller returned no message")

// decoder makes messages of entries, and finds the entities that they belong to.
type decoder struct {
	cfg        *Config
	topic      string
	report     *reporter
	warnedOnce sync.Once // about entries without a key
}

// arrival decodes an entry that was read for the first time.
func (d *decoder) arrival(e group.Entry) ledger.Arrival {
	a := ledger.Arrival{ID: e.ID, Name: e.Name, Count: 1}
	msg, err := d.decode(e.Name, e.Pairs)
	if err != nil {
		a.Reason, a.Failure = ReasonUndecodable, err
		return a
	}
	a.Msg, a.Size, a.Delay = msg, group.Size(e.Pairs), delayOf(msg)
	a.Key, a.HasKey = d.orderKey(msg, e.Name)
	return a
}

func delayOf(msg *message.Message) ledger.Delay {
	return ledger.Delay{Until: msg.Metadata[wmeta.DelayedUntil], For: msg.Metadata[wmeta.DelayedFor]}
}

// decode makes a message. A user's Unmarshaller that panics is an error.
func (d *decoder) decode(id string, pairs []string) (msg *message.Message, err error) {
	if d.cfg.Unmarshaller == nil {
		return wire.DecodePairs(d.topic, id, pairs)
	}
	defer func() {
		if p := recover(); p != nil {
			msg, err = nil, &wire.Error{Stream: d.topic, ID: id, Err: fmt.Errorf("the Unmarshaller panicked: %v", p)}
		}
	}()
	values := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	msg, err = d.cfg.Unmarshaller.Unmarshal(values)
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		return nil, &wire.Error{Stream: d.topic, ID: id, Err: err}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	return msg, nil
}

// orderKey finds the entity that a message belongs to; false if the order does not
// depend on it, or it has none.
func (d *decoder) orderKey(msg *message.Message, id string) (string, bool) {
	switch d.cfg.Order {
	case OrderStream:
		return "", true
	case OrderKey:
		key, err := d.callOrderBy(msg)
		if err == nil {
			return key, true
		}
		if !errors.Is(err, eventkey.ErrNoKey) {
			d.report.debug("No key for the order", watermill.LogFields{fieldEntry: id, "error": err.Error()})
		}
		d.warnedOnce.Do(func() {
			d.report.error("OrderBy found no key in an entry, which is handed out without order; of later ones at most a line at debug level says why", err,
				watermill.LogFields{fieldEntry: id})
		})
	}
	return "", false
}

// callOrderBy asks the user's source; one that panics is an error.
func (d *decoder) callOrderBy(msg *message.Message) (key string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("OrderBy panicked: %v", p)
		}
	}()
	return d.cfg.OrderBy.Key(d.topic, msg)
}
