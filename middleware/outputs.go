package middleware

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// prepare makes of what a handler has returned, see apart, the messages that are returned
// to the Router, and their records.
func (a *attempt) prepare(ctx context.Context, produced []*message.Message) (out []*message.Message, recorded [][]byte, err error) {
	topic := message.PublishTopicFromCtx(a.own)
	for i, m := range produced {
		if m == nil {
			return nil, nil, fmt.Errorf("handler %s returned a nil message at position %d", a.key.Handler, i)
		}
		child := identity.Child(a.handled, topic, m.Metadata.Get(wmeta.CQRSName), i)
		m.Metadata.Set(eventkey.MetadataChildKey, child)
		if !identity.StripInherited(a.handled, topic, m.Metadata) {
			m.UUID = identity.StableUUID(child)
		}
		m.SetContext(detached{Context: a.returned(), produced: m.Context(), run: ctx})
		out = append(out, m)
		recorded = append(recorded, wire.EncodeOutput(m))
	}
	return out, recorded, nil
}

// detached is the context of a message that a handler has returned. It has the values
// that the handler gave it, except those that belong to the run: what is being handled,
// a transaction that is over.
type detached struct {
	context.Context                 //nolint:containedctx // it is a context
	produced, run   context.Context //nolint:containedctx // where values are looked up
}

func (d detached) Value(key any) any {
	own := d.Context.Value(key)
	if own == nil && d.run.Value(key) != nil {
		return nil
	}
	if v := d.produced.Value(key); v != nil {
		return v
	}
	return own
}
