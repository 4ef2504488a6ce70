package middleware

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// replay returns what is recorded.
func (r *run) replay(claim dedupe.Claim) ([]*message.Message, error) {
	recorded := claim.Outputs()
	if r.noOutputs && len(recorded) > 0 {
		return r.end.refused(fmt.Errorf("middleware: %s: %w: %d of them; wrap it by Handler until they are published", r.key, ErrUnexpectedOutputs, len(recorded)))
	}
	out := make([]*message.Message, len(recorded))
	for i, b := range recorded {
		msg, err := wire.DecodeOutput(b)
		if err != nil {
			return r.end.refused(fmt.Errorf("middleware: %s: %w: message %d: %w", r.key, dedupe.ErrCorrupt, i, err))
		}
		msg.SetContext(r.returned())
		out[i] = msg
	}
	ev := r.event()
	ev.CommittedAt, ev.Outputs = claim.Info().CommittedAt, len(out)
	ev.HandledBy = claim.Info().Group
	if r.isForeign(ev.HandledBy) {
		r.once.report(onForeignSkip, ev)
		r.logForeignSkip(ev)
	} else {
		r.once.report(onSkipped, ev)
		r.once.logger.Debug("Skipped: handled before", r.fields().Add(watermill.LogFields{"committed_at": ev.CommittedAt, "outputs": len(out)}))
	}
	r.once.suspectPoisonTopic(r)
	r.once.settleLater(&r.received, claim, len(out))
	return out, nil
}

// logForeignSkip says once, for each pair of groups and handler, that one of them skips
// what the other has handled: mostly two services with one Namespace, each of which
// handles only a part of the events.
func (r *run) logForeignSkip(ev Event) {
	if !r.once.log.first("foreign", ev.Group, ev.HandledBy, ev.Handler) {
		return
	}
	r.once.logger.Error("Event skipped and acknowledged without being handled by this consumer group", fmt.Errorf(
		"group %q has handled it under the same Namespace %q and handler name %q; if these groups are two services, each loses what the other handles: "+
			"give each a Namespace of its own, or leave Config.Namespace empty, which takes the group's name; "+
			"if this is one service that has changed its group, all is well. Logged once; Hooks.OnForeignSkip has every event",
		ev.HandledBy, ev.Namespace, ev.Handler), r.fields().Add(watermill.LogFields{"group": ev.Group, "handled_by": ev.HandledBy, "committed_at": ev.CommittedAt}))
}

// settleLater settles the claim once the Router has published the outputs, which its
// acknowledgement shows.
func (o *Once) settleLater(in *received, claim dedupe.Claim, outputs int) {
	if outputs > 0 && !in.instantAck {
		o.settle.afterAck(in.msg, in.key, claim)
	}
}
