package storetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is what is wrong with a toy store.
type fault string

const (
	sound           fault = "sound"
	noToken         fault = "claim without token"
	noCheck         fault = "commit without check"
	anyRelease      fault = "release of another's claim"
	neverExpires    fault = "expiry ignored"
	alwaysExpired   fault = "lease ignored"
	claimOnce       fault = "claim not repeatable"
	claimLasts      fault = "claim asked for again is not lengthened"
	commitOnce      fault = "commit not repeatable"
	rollbackOnce    fault = "rollback not repeatable"
	commitAgain     fault = "a commit sent again writes again"
	noRenewal       fault = "no renewal"
	blindRenewal    fault = "renewal without check"
	noConflict      fault = "fingerprint ignored"
	sharedOutputs   fault = "outputs are the caller's slice"
	noSettle        fault = "settle does nothing"
	settleForgets   fault = "settle removes the record"
	settlesAny      fault = "settle of another's record"
	retentionIgnore fault = "retention ignored"
	escapeless      fault = "parts joined without escapes"
	folded          fault = "keys compared without case"
	waitsForever    fault = "wait without bound"
	deafToContext   fault = "context ignored"
	noValidation    fault = "options not checked"
	noGroup         fault = "group not kept"
	settledGroup    fault = "settle removes the group"
)

// toy is a store of one map, with one fault.
type toy struct {
	fault fault
	*toyData
	mu     sync.Mutex
	closed bool
	claims []*toyClaim
}

type toyData struct {
	mu      sync.Mutex
	records map[string]*toyRecord
}

type toyRecord struct {
	token   string
	done    bool
	ends    time.Time
	at      time.Time
	print   []byte
	group   string
	outputs [][]byte
}

type toyClaim struct {
	store *toy
	k     string
	o     dedupe.ClaimOptions
	state dedupe.State
	info  dedupe.ClaimInfo
	outs  [][]byte
	ctx   context.Context //nolint:containedctx // as in the interface
	lease *storeutil.Lease
	ended bool
	token string // of the record
}

func (t *toy) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if t.fault != noValidation {
		if err := k.Validate(); err != nil {
			return nil, err
		}
		if err := o.Validate(); err != nil {
			return nil, err
		}
	}
	if t.fault == deafToContext {
		ctx = context.WithoutCancel(ctx)
		o.Wait = min(o.Wait, 6*time.Second) // deaf for longer than the suite lets pass, not for a minute
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(o.Wait); ; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c, err := t.try(ctx, k, o)
		late := !time.Now().Before(end)
		if t.fault == waitsForever && o.Wait > 0 {
			late = time.Since(end) > 5*time.Second // "for ever"
		}
		if err != nil || c.state != dedupe.StateInProgress || late {
			return c, err
		}
		<-tick.C
	}
}

func (t *toy) try(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (*toyClaim, error) {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, dedupe.ErrClosed
	}
	name := k.String()
	switch t.fault {
	case escapeless:
		name = strings.Join([]string{k.Namespace, k.Topic, k.Handler, k.Event}, ":")
	case folded:
		name = strings.ToLower(name)
	case noToken:
		o.Token = "the same for all"
	}
	t.toyData.mu.Lock()
	defer t.toyData.mu.Unlock()
	c := &toyClaim{store: t, k: name, o: o, ctx: ctx, token: o.Token}
	r := t.records[name]
	if r != nil && !time.Now().Before(r.ends) {
		if !r.done && t.fault != neverExpires || r.done && t.fault != retentionIgnore {
			c.info.TookOver = !r.done
			r = nil
		}
	}
	if r != nil && !r.done && t.fault == alwaysExpired {
		r = nil
	}
	switch {
	case r != nil && r.done:
		c.state, c.outs, c.info.CommittedAt, c.info.Group, c.token = dedupe.StateDone, r.outputs, r.at, r.group, r.token
		if t.fault != noConflict && !storeutil.SameDigest(r.print, storeutil.Digest(o.Fingerprint)) {
			c.state, c.outs = dedupe.StateConflict, nil
		}
		return c, nil
	case r != nil && (r.token != o.Token || t.fault == claimOnce):
		c.state, c.info.RetryAfter = dedupe.StateInProgress, max(time.Until(r.ends), 0)
		return c, nil
	case r == nil:
		t.records[name] = &toyRecord{token: o.Token, ends: time.Now().Add(o.Lease)}
	case t.fault != claimLasts:
		r.ends = time.Now().Add(o.Lease)
	}
	c.state = dedupe.StateClaimed
	c.lease, c.ctx = storeutil.NewLease(ctx, storeutil.LeaseConfig{Duration: o.Lease, SentAt: time.Now(), Renew: c.renew})
	t.mu.Lock()
	t.claims = append(t.claims, c)
	t.mu.Unlock()
	return c, nil
}

func (t *toy) Close() error {
	t.mu.Lock()
	t.closed = true
	claims := slices.Clone(t.claims)
	t.mu.Unlock()
	for _, c := range claims {
		c.lease.Release(dedupe.ErrLeaseLost)
	}
	return nil
}

func (c *toyClaim) State() dedupe.State      { return c.state }
func (c *toyClaim) Info() dedupe.ClaimInfo   { return c.info }
func (c *toyClaim) Context() context.Context { return c.ctx }
func (c *toyClaim) Outputs() [][]byte        { return c.outs }

func (c *toyClaim) own() *toyRecord {
	if r := c.store.records[c.k]; r != nil && r.token == c.o.Token {
		return r
	}
	return nil
}

func (c *toyClaim) renew(context.Context) error {
	c.store.toyData.mu.Lock()
	defer c.store.toyData.mu.Unlock()
	if c.store.fault == noRenewal {
		return nil
	}
	r := c.own()
	if c.store.fault == blindRenewal {
		if r = c.store.records[c.k]; r == nil {
			return nil
		}
	}
	if r == nil || r.done {
		return dedupe.ErrLeaseLost
	}
	r.ends = time.Now().Add(c.o.Lease)
	return nil
}

func (c *toyClaim) Commit(_ context.Context, outs [][]byte) error {
	if c.state != dedupe.StateClaimed {
		return dedupe.ErrInvalid
	}
	defer c.lease.Release(nil)
	c.store.mu.Lock()
	closed := c.store.closed
	c.store.mu.Unlock()
	if closed && c.store.fault != noCheck {
		return dedupe.ErrClosed
	}
	c.store.toyData.mu.Lock()
	defer c.store.toyData.mu.Unlock()
	r := c.own()
	if c.store.fault == noCheck && r == nil {
		r = &toyRecord{token: c.o.Token}
		c.store.records[c.k] = r
	}
	switch {
	case r == nil:
		return dedupe.ErrLeaseLost
	case r.done && c.store.fault == commitOnce:
		return dedupe.ErrLeaseLost
	case r.done && c.store.fault != commitAgain:
		return nil
	}
	if c.store.fault != sharedOutputs {
		copies := make([][]byte, len(outs))
		for i := range outs {
			copies[i] = slices.Clone(outs[i])
		}
		outs = copies
	}
	if c.store.fault != noGroup {
		r.group = c.o.Group
	}
	r.done, r.at, r.ends, r.outputs, r.print = true, time.Now(), time.Now().Add(c.o.Retention), outs, storeutil.Digest(c.o.Fingerprint)
	return nil
}

func (c *toyClaim) Rollback(context.Context) error {
	if c.state == dedupe.StateClaimed {
		c.lease.Release(nil)
	}
	c.store.toyData.mu.Lock()
	defer c.store.toyData.mu.Unlock()
	r := c.own()
	if c.store.fault == anyRelease {
		r = c.store.records[c.k]
	}
	if c.store.fault == rollbackOnce && c.ended && r == nil {
		return dedupe.ErrLeaseLost
	}
	c.ended = true
	if r != nil && !r.done {
		delete(c.store.records, c.k)
	}
	return nil
}

func (c *toyClaim) Settle(context.Context) error {
	c.store.toyData.mu.Lock()
	defer c.store.toyData.mu.Unlock()
	if c.state != dedupe.StateClaimed && c.state != dedupe.StateDone {
		return nil
	}
	if r := c.store.records[c.k]; r != nil && r.done && c.store.fault != noSettle && (r.token == c.token || c.store.fault == settlesAny) {
		r.outputs = nil
		if c.store.fault == settledGroup {
			r.group = ""
		}
		if c.store.fault == settleForgets {
			delete(c.store.records, c.k)
		}
	}
	return nil
}

// recorder takes the place of a test whose failing is wanted.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Skip(...any)                       { runtime.Goexit() }
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

// judge runs the whole suite on a store with a fault, and returns which checks failed.
func judge(t *testing.T, f fault, lease time.Duration) (failed []string) {
	data := &toyData{records: make(map[string]*toyRecord)}
	cfg := Config{
		Open: func(tb testing.TB) dedupe.Store {
			s := &toy{fault: f, toyData: data}
			tb.Cleanup(func() { _ = s.Close() })
			return s
		},
		Lease: lease,
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range checks(cfg) {
		wg.Go(func() {
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() { // Fatal ends this goroutine
				defer close(done)
				c.on(r, cfg)
			}()
			<-done
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
			if len(r.failures) > 0 {
				mu.Lock()
				failed = append(failed, c.name+": "+r.failures[0])
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

func TestBrokenStoresFail(t *testing.T) {
	faults := []fault{
		noToken, noCheck, anyRelease, neverExpires, alwaysExpired, claimOnce, commitOnce, rollbackOnce, commitAgain,
		noRenewal, noConflict, sharedOutputs, noSettle, settleForgets, settlesAny, retentionIgnore, escapeless, folded,
		waitsForever, deafToContext, noValidation, noGroup, settledGroup,
	}
	// All at once: most of the time is waiting.
	failed := make([][]string, len(faults))
	var wg sync.WaitGroup
	for i, f := range faults {
		wg.Go(func() { failed[i] = judge(t, f, 500*time.Millisecond) })
	}
	wg.Wait()
	for i, f := range faults {
		t.Run(string(f), func(t *testing.T) {
			if len(failed[i]) == 0 {
				t.Error("the suite lets it pass")
			}
			for _, name := range failed[i] {
				t.Log(name)
			}
		})
	}
}

// What a machine that stands still for a lease would hide: the first shows for a tenth of
// the lease only, the second until the claim ends by its own clock. So not beside the
// others, which keep a machine busy, and with a longer lease.
func TestFaultsOfLeasesShow(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{claimLasts, blindRenewal} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			if len(judge(t, f, 3*time.Second)) == 0 {
				t.Error("the suite lets it pass")
			}
		})
	}
}

func TestSoundStorePasses(t *testing.T) {
	t.Parallel()
	for _, name := range judge(t, sound, 3*time.Second) {
		t.Error(name)
	}
}
