package storetest

import (
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// groups: the group of who made the record stays with it.
func groups(s *suite) {
	store := s.open()
	for _, group := range []string{"", s.namespace, "audit", "\x00:=\xff", strings.Repeat("g", 300)} {
		k, o := s.key(), s.options()
		o.Group = group
		s.must("commit", s.mustClaim(store, k, o).Commit(s.ctx(), [][]byte{[]byte("out")}))
		duplicate, another := s.options(), s.options()
		duplicate.Group, another.Group, another.Fingerprint = "other", "other", []byte("another")
		for _, when := range []string{"committed", "settled"} {
			d := s.claim(s.open(), k, duplicate)
			s.wantState(d, dedupe.StateDone)
			c := s.claim(store, k, another)
			s.wantState(c, dedupe.StateConflict)
			if d.Info().Group != group || c.Info().Group != group {
				s.Errorf("%s by group %.20q: a duplicate sees %.20q, a conflict %.20q", when, group, d.Info().Group, c.Info().Group)
			}
			if a, ok := store.(dedupe.Admin); ok {
				r, err := a.Lookup(s.ctx(), k)
				s.must("lookup", err)
				if r.Group != group {
					s.Errorf("%s by group %.20q: its record has %.20q", when, group, r.Group)
				}
			}
			if when == "committed" && len(d.Outputs()) != 1 {
				s.Errorf("group %.20q: %d outputs", group, len(d.Outputs()))
			}
			s.must("settle", d.Settle(s.ctx()))
			if n := len(s.claim(store, k, s.options()).Outputs()); n != 0 {
				s.Errorf("group %.20q: %d outputs after the settle", group, n)
			}
		}
	}
}
