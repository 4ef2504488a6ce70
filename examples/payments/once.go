package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
)

// publishOnce publishes with this library.
func publishOnce(ctx context.Context, s *server, events []event) (result, error) {
	pub, err := publisher.New(publisher.Config{
		Client:      s.lossy,
		ProducerID:  producerID,
		Key:         payKey,
		Fingerprint: eventkey.JSONWithout("received_at"), // differs in every retry
	}, nil)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = pub.Close() }()

	var res result
	originals := make(map[string]event)
	for _, e := range events {
		// A retry by an application is a new message: its UUID says nothing.
		msg := message.NewMessage(watermill.NewUUID(), e.payload)
		receipts, err := pub.Send(ctx, s.topic, msg)
		r := receipts[0]
		s.addEvent(r)
		if ctx.Err() != nil {
			return res, context.Cause(ctx)
		}

		row := row{event: e, entry: r.EntryID, attempts: int64(r.Attempts), verdict: sayLost(r.Verdict.String(), r)}
		var conflict *publisher.ConflictError
		switch {
		case errors.As(err, &conflict):
			res.conflicts++
			row.verdict = sayConflict(conflict, e, originals[r.Key])
		case err != nil:
			row.verdict, row.err = "FAILED", err
		case r.Verdict == publisher.VerdictAdded:
			originals[r.Key] = e
		default:
			res.duplicates++
		}
		res.add(row)
		res.mode = r.Mode.String()
	}
	return res, nil
}

func sayLost(verdict string, r publisher.Receipt) string {
	switch lost := r.Attempts - 1; {
	case !r.Resent:
		return verdict
	case lost == 1:
		return verdict + " (reply lost, sent again)"
	default:
		return fmt.Sprintf("%s (%d replies lost)", verdict, lost)
	}
}

func sayConflict(c *publisher.ConflictError, refused, original event) string {
	name := strings.TrimPrefix(c.Field, "$.")
	stored, ok := original.fields[name]
	if !ok {
		return "CONFLICT " + name
	}
	return fmt.Sprintf("CONFLICT %s %s, stored %s", name, refused.fields[name], stored)
}
