package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultRetryFor is the default of [Config].
const DefaultRetryFor = 5 * time.Second

// Config configures a [Store].
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a
	// *redis.ClusterClient, required. Ring clients are refused: they move keys between
	// servers without their records. The client stays the caller's: Close does not
	// close it.
	//
	// The server must not evict: with a maxmemory-policy other than noeviction, and
	// other than volatile-ttl at best, records go before their retention is over, and
	// with them the knowledge that an event was handled.
	Client redis.UniversalClient
	// RetryFor bounds how long a step is sent again when the server is out of reach or
	// refuses for now; 0 means 5 s. The caller's context may end it earlier, and the
	// end of the lease ends a Commit.
	RetryFor time.Duration
}

func (c Config) resolve() (Config, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch client := c.Client.(type) {
	case nil:
		fault("Client is nil")
	case *redis.Ring:
		fault("Client is a *redis.Ring, which moves keys to servers that don't have their records; use a ClusterClient")
	default:
		if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() {
			fault("Client is a nil %T", client)
		}
	}
	if c.RetryFor < 0 {
		fault("RetryFor %v is negative", c.RetryFor)
	}
	if c.RetryFor == 0 {
		c.RetryFor = DefaultRetryFor
	}
	if len(faults) > 0 {
		return c, fmt.Errorf("redisstore: invalid config:\n%w", errors.Join(faults...))
	}
	return c, nil
}
