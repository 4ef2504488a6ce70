package storetest

import (
	"errors"
	"fmt"
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
	const n = 25
	done := make(map[dedupe.Key]bool)
	var keys []dedupe.Key
	for i := range n {
		k := s.key()
		k.Handler = []string{"charge", "ship"}[i%2]
		keys = append(keys, k)
		done[k] = true
		s.must("commit", s.mustClaim(store, k, s.options()).Commit(s.ctx(), [][]byte{[]byte("four"), []byte("more")}))
	}
	missing := s.key()
	if _, err := a.Lookup(s.ctx(), missing); !errors.Is(err, dedupe.ErrNotFound) {
		s.Errorf("lookup of nothing: %v, want ErrNotFound", err)
	}
	r, err := a.Lookup(s.ctx(), keys[0])
	s.must("lookup", err)
	if r.Key != keys[0] || r.State != dedupe.Done || r.Outputs != 2 || r.OutputBytes != 8 ||
		string(r.Fingerprint) != string(storeutil.Digest([]byte("one"))) {
		s.Errorf("record %+v", r)
	}
	if left := time.Until(r.ExpiresAt); left < 50*time.Minute || left > 70*time.Minute {
		s.Errorf("expires in %v, want about an hour", left)
	}

	count := func(f dedupe.Filter) (found int) {
		seen := make(map[dedupe.Key]bool)
		for r, err := range a.List(s.ctx(), f) {
			s.must("list", err)
			if !f.Match(r) {
				s.Errorf("%+v lists %+v", f, r)
			}
			seen[r.Key] = true
		}
		return len(seen)
	}
	for f, want := range map[dedupe.Filter]int{
		{Namespace: s.namespace}:                            n,
		{Namespace: s.namespace, Handler: "ship"}:           n / 2,
		{Namespace: s.namespace, Topic: "nothing"}:          0,
		{Namespace: s.namespace, State: dedupe.Done}:        n,
		{Namespace: s.namespace, State: dedupe.InProgress}:  0,
		{Namespace: s.namespace + " and no more"}:           0,
		{Namespace: s.namespace, Topic: "orders", State: 0}: n,
	} {
		if got := count(f); got != want {
			s.Errorf("%+v lists %d, want %d", f, got, want)
		}
	}
	for r, err := range a.List(s.ctx(), dedupe.Filter{Namespace: s.namespace}) {
		s.must("list", err)
		_ = r
		break // an early end must be no trouble
	}

	s.must("forget", a.Forget(s.ctx(), keys[0]))
	s.must("forget again", a.Forget(s.ctx(), keys[0]))
	s.must("forget what was never there", a.Forget(s.ctx(), missing))
	c := s.mustClaim(store, keys[0], s.options())
	s.must("forget of a claim", a.Forget(s.ctx(), keys[0]))
	if !s.cfg.Features.SingleWriter {
		s.wantState(s.claim(store, keys[0], s.options()), dedupe.InProgress)
	}
	s.must("commit", c.Commit(s.ctx(), nil))

	// Other namespaces may be in the storage, so nothing is said about more than ours.
	if purged, err := a.Purge(s.ctx(), time.Now().Add(-24*time.Hour), 0); err != nil {
		s.Errorf("purge of nothing: %d, %v", purged, err)
	}
	if got := count(dedupe.Filter{Namespace: s.namespace}); got != n {
		s.Errorf("%d records after a purge of older ones, want %d", got, n)
	}
	purged, err := a.Purge(s.ctx(), time.Now().Add(time.Minute), 3)
	s.must("purge", err)
	if purged > 3 {
		s.Errorf("purged %d, limit 3", purged)
	}
	_, err = a.Purge(s.ctx(), time.Now().Add(time.Minute), 0)
	s.must("purge", err)
	if got := count(dedupe.Filter{Namespace: s.namespace}); got != 0 {
		s.Errorf("%d records after a purge of all", got)
	}
	if st := s.mustClaim(store, keys[1], s.options()).State(); st != dedupe.Claimed {
		s.Error(fmt.Sprint(st))
	}
}
