package health

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/onceward/watermill-idempotent/internal/invalid"
)

// Defaults of [Config].
const (
	DefaultTimeout  = 2 * time.Second
	DefaultCacheFor = 5 * time.Second
)

// MaxCacheFor is the longest Config.CacheFor: an answer that is older says nothing.
const MaxCacheFor = time.Minute

// Config configures a [Handler]. Ready is required.
type Config struct {
	// Ready are the checks of readiness: what must work for the process to do its work.
	// All of them run at once.
	Ready []Check
	// Live are the checks of liveness, for what a restart repairs, such as a loop that
	// stands still; most have none, and then liveness says that the process answers. None
	// may ask Redis, a database or anything else outside of the process.
	Live []Check
	// Timeout bounds a run of the checks; default: 2 s. One that has not answered by then
	// has failed. Probes must wait longer than that: Kubernetes' timeoutSeconds is 1 unless
	// it is set.
	Timeout time.Duration
	// CacheFor is how long an answer is given to further probes; default: 5 s, at most a
	// minute. Probes that come while checks run share that run. So the checks run once in
	// CacheFor at most, however often somebody asks.
	CacheFor time.Duration
	// HideErrors leaves the texts of errors and warnings out of the answer, where others
	// than operators can reach it. It then says only which check has failed; OnChange has the
	// rest.
	HideErrors bool
	// OnChange, if set, is called when a check has failed that had not failed before, and
	// with nil when it works again: for the log. It must not block.
	OnChange func(name string, err error)
}

// Check is one thing that must work.
type Check struct {
	// Name is what the answer calls it: letters, digits, '.', '_' and '-', 64 at most.
	Name string
	// Run looks at it, and should end when ctx does. The error says why it does not work;
	// the warnings are shown, and fail nothing. The Check methods of sqlstore, pgxstore and
	// redisstore fit. While a run goes on, no other begins: one that hangs, for ever even,
	// holds one goroutine.
	Run func(ctx context.Context) (warnings []string, err error)
}

// Topics makes a check of the Check method of a publisher or a subscriber. It asks the
// server; what the method warns of is for the log of the start, and not shown.
func Topics[Report any](name string, check func(ctx context.Context, topics ...string) (Report, error), topics ...string) Check {
	if check == nil {
		return Check{Name: name}
	}
	return Check{Name: name, Run: func(ctx context.Context) ([]string, error) {
		_, err := check(ctx, topics...)
		return nil, err
	}}
}

// State makes a check of a Health method, as subscriber, middleware and the service of the
// root package have one. It asks nobody, and says what has been found by the work itself.
func State(name string, health func() error) Check {
	if health == nil {
		return Check{Name: name}
	}
	return Check{Name: name, Run: func(context.Context) ([]string, error) { return nil, health() }}
}

var checkName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (c Config) resolve() (Config, error) {
	var faults invalid.Faults
	faults.AddIf(len(c.Ready) == 0, "Ready is empty: readiness would say yes whatever happens")
	for _, list := range []struct {
		name   string
		checks []Check
	}{{"Ready", c.Ready}, {"Live", c.Live}} {
		seen := make(map[string]bool)
		for i, check := range list.checks {
			where := fmt.Sprintf("%s[%d]", list.name, i)
			faults.AddIf(!checkName.MatchString(check.Name), "%s.Name %q is not a name of letters, digits, '.', '_' and '-', 64 at most", where, check.Name)
			faults.AddIf(seen[check.Name], "%s: two checks are called %q", where, check.Name)
			faults.AddIf(check.Run == nil, "%s: %q has nothing to run", where, check.Name)
			seen[check.Name] = true
		}
	}
	invalid.Negative(&faults, "Timeout", c.Timeout)
	invalid.Negative(&faults, "CacheFor", c.CacheFor)
	faults.AddIf(c.CacheFor > MaxCacheFor, "CacheFor %v is longer than %v", c.CacheFor, MaxCacheFor)
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.CacheFor == 0 {
		c.CacheFor = DefaultCacheFor
	}
	return c, faults.Err("health: invalid config")
}
