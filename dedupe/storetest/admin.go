package storetest

import (
	"errors"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// admin checks the optional interface of a store that has it.
func admin(s *suite) {
	store := s.open()
	a, ok := store.(dedupe.Admin)
	if !ok {
		s.Skip("the store does not implement dedupe.Admin")
	}
	r := records{suite: s, store: store, admin: a, missing: s.key()}
	for i := range 25 {
		k := s.key()
		k.Handler = []string{"charge", "ship"}[i%2]
		r.keys = append(r.keys, k)
		s.must("commit", s.mustClaim(store, k, s.options()).Commit(s.ctx(), [][]byte{[]byte("four"), []byte("more")}))
	}
	r.lookup()
	r.list()
	r.forget()
	r.purge()
}

// records are what an Admin is asked about.
type records struct {
	*suite
	store   dedupe.Store
	admin   dedupe.Admin
	keys    []dedupe.Key // all that is in the namespace
	missing dedupe.Key
}

// count lists, and checks that the filter was heeded.
func (r records) count(f dedupe.Filter) int {
	r.Helper()
	seen := make(map[dedupe.Key]bool)
	for rec, err := range r.admin.List(r.ctx(), f) {
		r.must("list", err)
		if !f.Match(rec) {
			r.Errorf("%+v lists %+v", f, rec)
		}
		seen[rec.Key] = true
	}
	return len(seen)
}

func (r records) lookup() {
	if _, err := r.admin.Lookup(r.ctx(), r.missing); !errors.Is(err, dedupe.ErrNotFound) {
		r.Errorf("lookup of nothing: %v, want ErrNotFound", err)
	}
	rec, err := r.admin.Lookup(r.ctx(), r.keys[0])
	r.must("lookup", err)
	if rec.Key != r.keys[0] || rec.State != dedupe.StateDone || rec.Outputs != 2 || rec.OutputBytes != 8 ||
		string(rec.Fingerprint) != string(storeutil.Digest([]byte("one"))) {
		r.Errorf("record %+v", rec)
	}
	if left := time.Until(rec.ExpiresAt); left < 50*time.Minute || left > 70*time.Minute {
		r.Errorf("expires in %v, want about an hour", left)
	}
}

func (r records) list() {
	n := len(r.keys)
	for f, want := range map[dedupe.Filter]int{
		{Namespace: r.namespace}:                                n,
		{Namespace: r.namespace, Handler: "ship"}:               n / 2,
		{Namespace: r.namespace, Topic: "nothing"}:              0,
		{Namespace: r.namespace, State: dedupe.StateDone}:       n,
		{Namespace: r.namespace, State: dedupe.StateInProgress}: 0,
		{Namespace: r.namespace + " and no more"}:               0,
		{Namespace: r.namespace, Topic: "orders", State: 0}:     n,
	} {
		if got := r.count(f); got != want {
			r.Errorf("%+v lists %d, want %d", f, got, want)
		}
	}
	for _, err := range r.admin.List(r.ctx(), dedupe.Filter{Namespace: r.namespace}) {
		r.must("list", err)
		break // an early end must be no trouble
	}
}

func (r records) forget() {
	k := r.keys[0]
	r.must("forget", r.admin.Forget(r.ctx(), k))
	r.must("forget again", r.admin.Forget(r.ctx(), k))
	r.must("forget what was never there", r.admin.Forget(r.ctx(), r.missing))
	c := r.mustClaim(r.store, k, r.options())
	r.must("forget of a claim", r.admin.Forget(r.ctx(), k))
	if !r.cfg.Features.SingleWriter {
		r.wantState(r.claim(r.store, k, r.options()), dedupe.StateInProgress)
	}
	r.must("commit", c.Commit(r.ctx(), nil))
}

func (r records) purge() {
	// Other namespaces may be in the storage, so nothing is said about more than ours.
	ours, n := dedupe.Filter{Namespace: r.namespace}, len(r.keys)
	if purged, err := r.admin.Purge(r.ctx(), time.Now().Add(-24*time.Hour), 0); err != nil {
		r.Errorf("purge of nothing: %d, %v", purged, err)
	}
	if got := r.count(ours); got != n {
		r.Errorf("%d records after a purge of older ones, want %d", got, n)
	}
	if purged, err := r.admin.Purge(r.ctx(), time.Now().Add(time.Minute), -1); !errors.Is(err, dedupe.ErrInvalid) || r.count(ours) != n {
		r.Errorf("purge with a negative limit: %d, %v, want ErrInvalid", purged, err)
	}
	purged, err := r.admin.Purge(r.ctx(), time.Now().Add(time.Minute), 3)
	r.must("purge", err)
	if purged > 3 {
		r.Errorf("purged %d, limit 3", purged)
	}
	_, err = r.admin.Purge(r.ctx(), time.Now().Add(time.Minute), 0)
	r.must("purge", err)
	if got := r.count(ours); got != 0 {
		r.Errorf("%d records after a purge of all", got)
	}
	r.mustClaim(r.store, r.keys[1], r.options())
}
