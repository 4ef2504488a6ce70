package window

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
)

// Ages collects the ages of retries while a service runs: how old the original of each
// duplicate was. The zero value is ready, takes about 1 KiB, and is safe for concurrent use.
//
//	var ages window.Ages
//	cfg.Hooks = append(cfg.Hooks, ages.Hooks())
//	mux.Handle("/retry-ages", &ages)
type Ages struct {
	counts [buckets]atomic.Int64
	max    atomic.Int64
	min    atomic.Int64 // and 1, since 0 is none
}

// Hooks collect from a publisher.
func (a *Ages) Hooks() publisher.Hooks { return publisher.Hooks{OnPublish: a.OnPublish} }

// OnPublish takes the age of the original of a duplicate. What the publisher itself had sent
// again after a lost reply does not count, nor does a conflict, which is another event.
func (a *Ages) OnPublish(r publisher.Receipt) {
	if r.Verdict >= publisher.VerdictDuplicate && !r.Resent && !errors.Is(r.Err, publisher.ErrConflict) {
		a.Add(r.Age)
	}
}

// Add counts a retry of this age.
func (a *Ages) Add(age time.Duration) {
	age = min(max(age, 0), math.MaxInt64-1)
	a.counts[bucketOf(age)].Add(1)
	for {
		known := a.min.Load()
		if known > 0 && known <= int64(age)+1 || a.min.CompareAndSwap(known, int64(age)+1) {
			break
		}
	}
	for {
		known := a.max.Load()
		if int64(age) <= known || a.max.CompareAndSwap(known, int64(age)) {
			return
		}
	}
}

// Distribution is what was collected so far.
func (a *Ages) Distribution() Distribution {
	d := Distribution{Min: time.Duration(max(a.min.Load()-1, 0)), Max: time.Duration(a.max.Load())}
	for i := range a.counts {
		if n := a.counts[i].Load(); n > 0 {
			d.Count += n
			d.Buckets = append(d.Buckets, Bucket{From: bound(i - 1), To: bound(i), Count: n})
		}
	}
	return d
}

// ServeHTTP answers with the Distribution as JSON, for a tool that asks a running service.
func (a *Ages) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(a.Distribution()) // the client has gone
}
