package measure

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Other is the label value of topics, groups, handlers and stores that came after
// Config.MaxTopics others: they share their series.
const Other = "other"

// pair names what has series of its own: a topic, and the group or handler that it is for.
type pair struct{ topic, by string }

// values are the pair's label values. A label value must be UTF-8, a topic need not.
func (p pair) values() (topic, by string) {
	return strings.ToValidUTF8(p.topic, "\uFFFD"), strings.ToValidUTF8(p.by, "\uFFFD")
}

// sets hold the series of up to limit pairs, found without a lock and without an allocation,
// and those that all further pairs share.
type sets[S any] struct {
	limit  int
	create func(pair) *S

	known  atomic.Pointer[map[pair]*S] // replaced as a whole, with mu
	shared atomic.Pointer[S]           // nil until it is needed, so that nobody sees Other before
	mu     sync.Mutex
}

func newSets[S any](limit int, create func(pair) *S) *sets[S] {
	s := &sets[S]{limit: limit, create: create}
	s.known.Store(&map[pair]*S{})
	return s
}

// of returns the series of p.
func (s *sets[S]) of(p pair) *S {
	known := *s.known.Load()
	if set, ok := known[p]; ok {
		return set
	}
	if shared := s.shared.Load(); shared != nil { // then known is full, and stays so
		return shared
	}
	return s.add(p)
}

func (s *sets[S]) add(p pair) *S {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.known.Load()
	if set, ok := known[p]; ok {
		return set
	}
	if len(known) >= s.limit {
		if s.shared.Load() == nil {
			s.shared.Store(s.create(pair{Other, Other}))
		}
		return s.shared.Load()
	}
	// Readers go on with the old map, which does not change any more.
	grown := make(map[pair]*S, len(known)+1)
	for k, set := range known {
		grown[k] = set
	}
	set := s.create(p)
	grown[p] = set
	s.known.Store(&grown)
	return set
}

// isOwn reports that p is not among those that share their series: a gauge of several topics
// would mean nothing.
func (s *sets[S]) isOwn(set *S) bool { return set != s.shared.Load() }
