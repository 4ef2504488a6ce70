package measure

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Store is what the modules describe: s, measured under a name.
func (m *Metrics) Store(name string, s dedupe.Store) dedupe.Store {
	if v := reflect.ValueOf(s); s == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return s
	}
	measured := &measuredStore{inner: s, series: m.store.stores.of(pair{topic: name})}
	admin, isAdmin := s.(dedupe.Admin)
	check, hasCheck := s.(checker)
	switch {
	case isAdmin && hasCheck:
		return struct {
			*measuredStore
			dedupe.Admin
			checker
		}{measured, admin, check}
	case isAdmin:
		return struct {
			*measuredStore
			dedupe.Admin
		}{measured, admin}
	case hasCheck:
		return struct {
			*measuredStore
			checker
		}{measured, check}
	}
	return measured
}

// checker is what idempotent.Open looks for.
type checker interface {
	Check(ctx context.Context) (warnings []string, err error)
}

// Steps of a store, in the order of stepNames.
const (
	stepClaim = iota
	stepCommit
	stepRollback
	stepSettle
)

var stepNames = [...]string{stepClaim: "claim", stepCommit: "commit", stepRollback: "rollback", stepSettle: "settle"}

// Outcomes of steps: what a claim found, that another step succeeded, or why one failed.
const (
	stepFailed      = iota // for no reason that stands here: the store is unavailable
	stepInterrupted        // its context ended first
	stepLeaseLost
	stepAborted
	stepTooLarge
	stepRefused
	stepFull
	stepClosed
	stepCorrupt
	stepInvalid
	stepOK
	stepClaimed
	stepDone
	stepInProgress
	stepConflict
)

var stepOutcomes = [...]string{
	stepFailed: "unavailable", stepInterrupted: "interrupted", stepLeaseLost: "lease_lost", stepAborted: "aborted",
	stepTooLarge: "too_large", stepRefused: "refused", stepFull: "full", stepClosed: "closed", stepCorrupt: "corrupt",
	stepInvalid: "invalid", stepOK: "ok", stepClaimed: "claimed", stepDone: "done", stepInProgress: "in_progress", stepConflict: "conflict",
}

// outcomesOf are the outcomes that a step can have.
var outcomesOf = [...][]int{
	stepClaim:    {stepClaimed, stepDone, stepInProgress, stepConflict, stepFailed, stepInterrupted, stepRefused, stepFull, stepClosed, stepCorrupt, stepInvalid},
	stepCommit:   {stepOK, stepFailed, stepInterrupted, stepLeaseLost, stepAborted, stepTooLarge, stepRefused, stepClosed, stepInvalid},
	stepRollback: {stepOK, stepFailed, stepInterrupted},
	stepSettle:   {stepOK, stepFailed, stepInterrupted},
}

var stepErrors = [...]struct {
	outcome int
	err     error
}{
	{stepLeaseLost, dedupe.ErrLeaseLost},
	{stepAborted, dedupe.ErrAborted},
	{stepTooLarge, dedupe.ErrTooLarge},
	{stepRefused, dedupe.ErrRefused},
	{stepFull, dedupe.ErrFull},
	{stepClosed, dedupe.ErrClosed},
	{stepCorrupt, dedupe.ErrCorrupt},
	{stepInvalid, dedupe.ErrInvalid},
}

// storeMetrics are what wrapped stores fill.
type storeMetrics struct {
	steps    Counters
	duration Histograms

	stores *sets[storeSeries]
}

// storeSeries are those of one store.
type storeSeries struct {
	outcomes [len(stepNames)][len(stepOutcomes)]Counter // nil where a step has no such outcome
	duration [len(stepNames)]Observer
}

func newStoreMetrics(cfg Config, b Backend) *storeMetrics {
	m := &storeMetrics{
		steps: b.Counters("store_steps_total", "Steps that a store was asked for, by what came of them.", "store", "step", "outcome"),
		duration: b.Histograms("store_step_duration_seconds", "How long the steps of a store took; a claim includes its wait for another's.",
			cfg.DurationBuckets, "store", "step"),
	}
	m.stores = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *storeMetrics) create(p pair) *storeSeries {
	name, _ := p.values()
	s := new(storeSeries)
	for step, stepName := range stepNames {
		s.duration[step] = m.duration.With(name, stepName)
		for _, outcome := range outcomesOf[step] {
			s.outcomes[step][outcome] = m.steps.With(name, stepName, stepOutcomes[outcome])
		}
	}
	return s
}

// took notes a step that began at a time.
func (s *storeSeries) took(step int, began time.Time, outcome int) {
	s.duration[step].Observe(time.Since(began).Seconds())
	counter := s.outcomes[step][outcome]
	if counter == nil { // not by the contract of stores
		counter = s.outcomes[step][stepFailed]
	}
	counter.Inc()
}

// outcomeOf is that of a step that gave err.
func outcomeOf(ctx context.Context, err error) int {
	if err == nil {
		return stepOK
	}
	for _, known := range stepErrors {
		if errors.Is(err, known.err) {
			return known.outcome
		}
	}
	if ctx.Err() != nil {
		return stepInterrupted
	}
	return stepFailed
}

// measuredStore implements dedupe.Store.
type measuredStore struct {
	inner  dedupe.Store
	series *storeSeries
}

// Unwrap is for dedupe.Unwrap.
func (s *measuredStore) Unwrap() dedupe.Store { return s.inner }

// Close implements dedupe.Store.
func (s *measuredStore) Close() error { return s.inner.Close() }

// Claim implements dedupe.Store.
func (s *measuredStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	began := time.Now()
	claim, err := s.inner.Claim(ctx, k, o)
	if err != nil || claim == nil {
		s.series.took(stepClaim, began, outcomeOf(ctx, err))
		return claim, err
	}
	outcome := stepFailed
	switch claim.State() {
	case dedupe.StateClaimed:
		outcome = stepClaimed
	case dedupe.StateDone:
		outcome = stepDone
	case dedupe.StateInProgress:
		outcome = stepInProgress
	case dedupe.StateConflict:
		outcome = stepConflict
	}
	s.series.took(stepClaim, began, outcome)
	return &measuredClaim{claim, s.series}, nil
}

// measuredClaim implements dedupe.Claim.
type measuredClaim struct {
	dedupe.Claim
	series *storeSeries
}

// Commit implements dedupe.Claim.
func (c *measuredClaim) Commit(ctx context.Context, outputs [][]byte) error {
	began := time.Now()
	err := c.Claim.Commit(ctx, outputs)
	c.series.took(stepCommit, began, outcomeOf(ctx, err))
	return err
}

// Rollback implements dedupe.Claim. In other states than StateClaimed it does nothing, and is
// no step.
func (c *measuredClaim) Rollback(ctx context.Context) error {
	if c.State() != dedupe.StateClaimed {
		return c.Claim.Rollback(ctx)
	}
	began := time.Now()
	err := c.Claim.Rollback(ctx)
	c.series.took(stepRollback, began, outcomeOf(ctx, err))
	return err
}

// Settle implements dedupe.Claim.
func (c *measuredClaim) Settle(ctx context.Context) error {
	began := time.Now()
	err := c.Claim.Settle(ctx)
	c.series.took(stepSettle, began, outcomeOf(ctx, err))
	return err
}
