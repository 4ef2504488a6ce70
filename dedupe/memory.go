package dedupe

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// DefaultMaxRecords is the default of [MemoryConfig].
const DefaultMaxRecords = 100_000

// MemoryConfig configures a [Memory].
type MemoryConfig struct {
	// MaxRecords bounds the records, claims among them; 0 means 100,000. When it is
	// reached, the record that would run out first goes, and its event would be
	// handled again. Claims never go: when there is nothing else, Claim returns
	// ErrFull.
	MaxRecords int
}

// Memory is a leased Store in the memory of one process: for tests, and for services of
// one instance that may forget at a restart.
type Memory struct {
	*memData
	// Of this handle; with the lock of the data.
	live   map[*memClaim]struct{}
	closed bool
}

// memData is what handles share.
type memData struct {
	max int

	mu      sync.Mutex
	records map[Key]*memRecord
	done    byEnd // the done records
	evicted int64
}

var (
	_ Store = (*Memory)(nil)
	_ Admin = (*Memory)(nil)
)

// memRecord belongs to the store's lock.
type memRecord struct {
	key     Key
	state   State // InProgress or Done
	token   string
	ends    time.Time // of the claim, then of the record
	changed chan struct{}

	committedAt time.Time
	digest      []byte
	group       string
	outputs     [][]byte
	place       int // in byEnd
}

// byEnd is a heap of done records: the one that runs out first is on top.
type byEnd []*memRecord

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].ends.Before(h[j].ends) }
func (h byEnd) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *byEnd) Push(r any) {
	r.(*memRecord).place = len(*h)
	*h = append(*h, r.(*memRecord))
}

// Pop implements heap.Interface.
func (h *byEnd) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}

// NewMemory makes an empty store.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	if cfg.MaxRecords < 0 {
		return nil, fmt.Errorf("dedupe: invalid config: MaxRecords %d is negative", cfg.MaxRecords)
	}
	if cfg.MaxRecords == 0 {
		cfg.MaxRecords = DefaultMaxRecords
	}
	data := &memData{max: cfg.MaxRecords, records: make(map[Key]*memRecord)}
	return (&Memory{memData: data}).Open(), nil
}

// Open returns another handle on the same records, as another process has one on a
// shared store: closing it loses its claims and no others. It is for tests.
func (m *Memory) Open() *Memory {
	return &Memory{memData: m.memData, live: make(map[*memClaim]struct{})}
}

// Evicted is how many records went before their retention was over.
func (m *Memory) Evicted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.evicted
}

// Claim implements [Store].
func (m *Memory) Claim(ctx context.Context, k Key, o ClaimOptions) (Claim, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	giveUp := time.Now().Add(o.Wait)
	for {
		claim, changed, err := m.try(ctx, k, o)
		if err != nil || changed == nil {
			return claim, err
		}
		wait := min(time.Until(giveUp), claim.info.RetryAfter)
		if !time.Now().Before(giveUp) {
			return claim, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// try looks once. changed is not nil when another holds the claim, and closes when
// that ends.
func (m *Memory) try(ctx context.Context, k Key, o ClaimOptions) (claim *memClaim, changed <-chan struct{}, err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	now := time.Now()
	claim = &memClaim{store: m, key: k, options: o, token: o.Token, ctx: ctx}
	r := m.records[k]
	expired := r != nil && !now.Before(r.ends)
	switch {
	case r != nil && r.state == StateDone && !expired:
		claim.state, claim.info.CommittedAt, claim.info.Group = StateDone, r.committedAt, r.group
		claim.outputs, claim.token = r.outputs, r.token
		if !storeutil.SameDigest(r.digest, storeutil.Digest(o.Fingerprint)) {
			claim.state, claim.outputs = StateConflict, nil
		}
		return claim, nil, nil
	case r != nil && r.state == StateInProgress && !expired && r.token != o.Token:
		claim.state, claim.info.RetryAfter = StateInProgress, r.ends.Sub(now)
		return claim, r.changed, nil
	case r != nil && r.state == StateInProgress && !expired:
		r.ends = now.Add(o.Lease) // the same owner asks again
	default:
		if r != nil {
			claim.info.TookOver = r.state == StateInProgress
			m.remove(r)
		}
		if err := m.makeRoom(now); err != nil {
			return nil, nil, err
		}
		r = &memRecord{key: k, state: StateInProgress, token: o.Token, ends: now.Add(o.Lease), changed: make(chan struct{})}
		m.records[k] = r
	}
	claim.state = StateClaimed
	claim.lease, claim.ctx = storeutil.NewLease(ctx, storeutil.LeaseConfig{Duration: o.Lease, SentAt: now, Renew: func(context.Context) error { return m.renew(k, o) }})
	m.live[claim] = struct{}{}
	return claim, nil, nil
}

// makeRoom lets one more record in.
func (m *memData) makeRoom(now time.Time) error {
	m.dropExpired(now)
	if len(m.records) < m.max {
		return nil
	}
	if len(m.done) > 0 {
		m.remove(m.done[0])
		m.evicted++
		return nil
	}
	for _, r := range m.records {
		if !now.Before(r.ends) {
			m.remove(r)
			return nil
		}
	}
	return fmt.Errorf("%w: %d of them", ErrFull, len(m.records))
}

// dropExpired removes the records that ran out.
func (m *memData) dropExpired(now time.Time) {
	for len(m.done) > 0 && !now.Before(m.done[0].ends) {
		m.remove(m.done[0])
	}
}

func (m *memData) remove(r *memRecord) {
	delete(m.records, r.key)
	if r.state == StateInProgress {
		close(r.changed)
	} else {
		heap.Remove(&m.done, r.place)
	}
}

// held is the record of a claim that is held under the token.
func (m *memData) held(k Key, token string) *memRecord {
	if r := m.records[k]; r != nil && r.state == StateInProgress && r.token == token && time.Now().Before(r.ends) {
		return r
	}
	return nil
}

func (m *memData) renew(k Key, o ClaimOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.held(k, o.Token)
	if r == nil {
		return ErrLeaseLost
	}
	r.ends = time.Now().Add(o.Lease)
	return nil
}

// Close implements [Store].
func (m *Memory) Close() error {
	m.mu.Lock()
	m.closed = true
	var claims []*memClaim
	for c := range m.live {
		claims = append(claims, c)
	}
	m.mu.Unlock()
	for _, c := range claims {
		c.lease.Release(fmt.Errorf("%w: %w", ErrLeaseLost, ErrClosed))
	}
	return nil
}

// memClaim implements [Claim].
type memClaim struct {
	store   *Memory
	key     Key
	options ClaimOptions
	state   State
	info    ClaimInfo
	ctx     context.Context //nolint:containedctx // a claim carries the context to run under
	outputs [][]byte
	token   string // of the record, which another may have made
	lease   *storeutil.Lease
}

func (c *memClaim) State() State             { return c.state }
func (c *memClaim) Info() ClaimInfo          { return c.info }
func (c *memClaim) Context() context.Context { return c.ctx }
func (c *memClaim) Outputs() [][]byte        { return c.outputs }

func (c *memClaim) Commit(_ context.Context, outputs [][]byte) error {
	if c.state != StateClaimed {
		return fmt.Errorf("%w: state is %v", ErrInvalid, c.state)
	}
	lost := c.lease.Stop()
	defer c.release()
	m := c.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[c.key]; r != nil && r.state == StateDone && r.token == c.options.Token {
		return nil
	}
	if m.closed {
		return ErrClosed
	}
	if lost != nil {
		return lost
	}
	r := m.held(c.key, c.options.Token)
	if r == nil {
		return ErrLeaseLost
	}
	now := time.Now()
	m.dropExpired(now)
	r.state, r.committedAt, r.ends = StateDone, now, now.Add(c.options.Retention)
	r.digest, r.group = storeutil.Digest(c.options.Fingerprint), c.options.Group
	r.outputs = clone(outputs)
	heap.Push(&m.done, r)
	close(r.changed)
	return nil
}

func (c *memClaim) Rollback(context.Context) error {
	if c.state != StateClaimed {
		return nil
	}
	_ = c.lease.Stop() // lost or not, it is given up
	defer c.release()
	m := c.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[c.key]; r != nil && r.state == StateInProgress && r.token == c.options.Token {
		m.remove(r)
	}
	return nil
}

// release ends what the claim has running. It runs after the record has changed.
func (c *memClaim) release() {
	c.lease.Release(nil)
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	delete(c.store.live, c)
}

func (c *memClaim) Settle(context.Context) error {
	if c.state != StateClaimed && c.state != StateDone {
		return nil
	}
	m := c.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[c.key]; r != nil && r.state == StateDone && r.token == c.token {
		r.outputs = nil
	}
	return nil
}

func clone(outputs [][]byte) [][]byte {
	if len(outputs) == 0 {
		return nil
	}
	all := make([][]byte, len(outputs))
	for i, out := range outputs {
		all[i] = slices.Clone(out)
	}
	return all
}
