package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

type action uint8

const (
	claimIt action = iota
	commitIt
	rollBackIt
)

type call struct {
	key    int
	action action
	token  string
}

type answer struct {
	state dedupe.State // of a claim
	lost  bool         // of a commit
}

// oneRecord is what the record of one key is.
type oneRecord struct {
	holder string
	done   string // the token that committed
}

// claims is the contract of a leased store in a few lines; nothing in the run takes as
// long as a lease.
var claims = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[int][]porcupine.Operation)
		for _, op := range history {
			k := op.Input.(call).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return oneRecord{} },
	Step: func(state, input, output any) (bool, any) {
		r, in, out := state.(oneRecord), input.(call), output.(answer)
		switch in.action {
		case claimIt:
			switch {
			case r.done != "":
				return out.state == dedupe.StateDone, r
			case r.holder != "" && r.holder != in.token:
				return out.state == dedupe.StateInProgress, r
			}
			r.holder = in.token
			return out.state == dedupe.StateClaimed, r
		case commitIt:
			if r.holder == in.token {
				return !out.lost, oneRecord{done: in.token}
			}
			return out.lost == (r.done != in.token), r
		default:
			if r.holder == in.token {
				r.holder = ""
			}
			return true, r
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// Concurrent owners behind links that lose replies see one record that changes by the
// contract, at one moment each.
func TestRedisIsLinearizable(t *testing.T) {
	server := testserver.Shared(t, testserver.Redis86)
	const owners, steps, keys = 8, 120, 60
	run := testserver.Topic(t)
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	record := func(owner int, in call, do func() answer) answer {
		sent := time.Since(begin).Nanoseconds()
		out := do()
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: owner, Input: in, Call: sent, Output: out, Return: time.Since(begin).Nanoseconds()})
		return out
	}
	var lost int
	var links []*faultlink.Link
	var wg sync.WaitGroup
	for owner := range owners {
		link := faultlink.New(t, server.Addr())
		link.LoseRate(0.2, uint64(owner), "SET", "EVALSHA", "EVAL")
		links = append(links, link)
		s := newRedis(t, link.Client())
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(owner), 3))
			for range steps {
				n, o := random.IntN(keys), options()
				k := dedupe.Key{Namespace: run, Event: fmt.Sprint(n)}
				var c dedupe.Claim
				got := record(owner, call{n, claimIt, o.Token}, func() answer {
					var err error
					if c, err = s.Claim(context.Background(), k, o); err != nil {
						t.Errorf("claim: %v", err)
						return answer{}
					}
					return answer{state: c.State()}
				})
				if got.state != dedupe.StateClaimed {
					continue
				}
				// Another process of the same owner, as it were: the token comes twice.
				if random.IntN(4) == 0 {
					record(owner, call{n, claimIt, o.Token}, func() answer {
						again, err := s.Claim(context.Background(), k, o)
						if err != nil {
							t.Errorf("claim again: %v", err)
							return answer{}
						}
						defer func() { c = again }() // either object speaks for the token
						return answer{state: again.State()}
					})
				}
				for range 1 + random.IntN(2) {
					if random.IntN(3) == 0 {
						record(owner, call{n, commitIt, o.Token}, func() answer {
							err := c.Commit(context.Background(), nil)
							if err != nil && !errors.Is(err, dedupe.ErrLeaseLost) {
								t.Errorf("commit: %v", err)
							}
							return answer{lost: err != nil}
						})
					} else {
						record(owner, call{n, rollBackIt, o.Token}, func() answer {
							if err := c.Rollback(context.Background()); err != nil {
								t.Errorf("rollback: %v", err)
							}
							return answer{}
						})
					}
				}
			}
		})
	}
	wg.Wait()
	for _, link := range links {
		lost += link.Stats().Lost
	}
	if t.Failed() {
		return
	}
	if lost < 50 {
		t.Errorf("the links lost %d replies only", lost)
	}
	switch result := porcupine.CheckOperationsTimeout(claims, history, time.Minute); result {
	case porcupine.Ok:
		t.Logf("%d operations, %d replies lost: linearizable", len(history), lost)
	default:
		t.Errorf("%d operations: %v", len(history), result)
	}
}

// The model itself must be able to say no.
func TestLinearizabilityModelRefuses(t *testing.T) {
	op := func(client int, from, to int64, in call, out answer) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: in, Call: from, Output: out, Return: to}
	}
	for name, history := range map[string][]porcupine.Operation{
		"two owners": {
			op(1, 0, 1, call{0, claimIt, "a"}, answer{state: dedupe.StateClaimed}),
			op(2, 2, 3, call{0, claimIt, "b"}, answer{state: dedupe.StateClaimed}),
		},
		"a commit by one that is not the owner": {
			op(1, 0, 1, call{0, claimIt, "a"}, answer{state: dedupe.StateClaimed}),
			op(1, 2, 3, call{0, rollBackIt, "a"}, answer{}),
			op(1, 4, 5, call{0, commitIt, "a"}, answer{}),
		},
		"a commit that says lost, and is not": {
			op(1, 0, 1, call{0, claimIt, "a"}, answer{state: dedupe.StateClaimed}),
			op(1, 2, 3, call{0, commitIt, "a"}, answer{lost: true}),
		},
	} {
		if porcupine.CheckOperations(claims, history) {
			t.Errorf("%s: taken for right", name)
		}
	}
}
