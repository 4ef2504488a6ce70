package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
)

// comesAgain says how an event whose record is gone comes to its handler again.
type comesAgain struct {
	sentences []string
	commands  []string // which are copied
}

// afterForget looks at the topics of records that were forgotten, where Redis can be asked: what it does
// not say is left out.
func afterForget(ctx context.Context, a *app, records []dedupe.Record, hasRedis bool) comesAgain {
	next := comesAgain{sentences: []string{"The event does not come by itself. Replay its dead letter, if it has one, or publish it again: as a new attempt " +
		"(eventkey.NextAttempt), or as it was once the window of its topic has forgotten it."}}
	if !hasRedis {
		return next
	}
	soon := *a
	soon.Timeout = min(a.Timeout, suggestWithin)
	ctx, cancel := context.WithTimeout(ctx, suggestWithin)
	defer cancel()
	l, err := soon.letters(ctx)
	if err != nil {
		return next
	}
	defer l.Close()
	asked := make(map[string]bool)
	for _, r := range records {
		if r.Key.Topic != "" && !asked[r.Key.Topic] {
			asked[r.Key.Topic] = true
			next.ask(ctx, l, r, time.Now())
		}
	}
	return next
}

func (c *comesAgain) ask(ctx context.Context, l *letters, r dedupe.Record, now time.Time) {
	t, err := l.Topic(ctx, r.Key.Topic)
	if err != nil || isUnknown(t) {
		return
	}
	if text := remembersText(ctx, l.look, t, r, now); text != "" {
		c.sentences = append(c.sentences, text)
	}
	for letter, err := range l.dead.List(ctx, r.Key.Topic, deadletter.Filter{Key: r.Key.Event}) {
		if err != nil {
			return
		}
		c.commands = append(c.commands, fmt.Sprintf("idemctl dead replay %s %s", quote(r.Key.Topic), letter.ID))
	}
}

// remembersText says whether a publish of the event as it was would be refused as a duplicate.
func remembersText(ctx context.Context, l *look, t inspect.Topic, r dedupe.Record, now time.Time) string {
	topic := "topic " + screen.Printable(t.Topic)
	switch latched := t.Layout.Mode == publisher.ModeLatch; {
	case !t.HasLayout:
		return fmt.Sprintf("No publisher of this library has set %s up, so nothing refuses it there.", topic)
	case latched:
		latch, err := l.Latch(ctx, t.Topic, "", r.Key.Event)
		switch {
		case errors.Is(err, inspect.ErrNotFound) || err == nil && latch.Void:
			return fmt.Sprintf("The window of %s does not hold it: published as it was, it is added.", topic)
		case err == nil:
			return fmt.Sprintf("The window of %s holds it for %s more: published as it was, it is refused as a duplicate until then.", topic, screen.Duration(latch.TTL))
		}
		return ""
	case t.Window.Duration == 0 || r.CommittedAt.IsZero():
		return ""
	}
	// It was published before it was handled. Redis does not tell which IDs it remembers.
	lasts := screen.Duration(t.Window.Duration)
	handled := screen.Duration(now.Sub(r.CommittedAt))
	until := r.CommittedAt.Add(t.Window.Duration)
	if until.Before(now) {
		return fmt.Sprintf("The window of %s lasts %s, and the event was handled %s ago: published as it was, it is added.", topic, lasts, handled)
	}
	return fmt.Sprintf("The window of %s lasts %s, and the event was handled %s ago: published as it was, it may be refused as a duplicate until %s.",
		topic, lasts, handled, screen.Ago(until, now))
}

func (c comesAgain) show(p *screen.Page) {
	p.Gap()
	p.Sentences("- ", c.sentences...)
	for _, command := range c.commands {
		p.Line("Its dead letter:  %s", screen.Printable(command))
	}
}

// namespaceMeant says which namespaces there are, where records of one that has none were asked for.
func namespaceMeant(ctx context.Context, s dedupe.Admin, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, suggestWithin)
	defer cancel()
	var there []string
	for r, err := range s.List(ctx, dedupe.Filter{}) {
		if err != nil || len(there) == mostNamespaces {
			break
		}
		if r.Key.Namespace == namespace {
			return ""
		}
		if !slices.Contains(there, r.Key.Namespace) {
			there = append(there, r.Key.Namespace)
		}
	}
	if len(there) == 0 {
		return ""
	}
	slices.Sort(there)
	return fmt.Sprintf("%sNamespaces with records: %s.", didYouMean(printables(similar(namespace, there))), strings.Join(printables(there), ", "))
}

const mostNamespaces = 20
