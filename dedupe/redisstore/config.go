package redisstore

import (
	"cmp"
	"regexp"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// DefaultPrefix is the default of [Config].
const DefaultPrefix = "idem:done:"

var prefixName = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,100}:$`)

// Config configures a [Store].
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a
	// *redis.ClusterClient, required. Ring clients are refused: they move keys between
	// servers without their records. The client stays the caller's: Close does not
	// close it. Handlers that run at the same time share pipelines; with a client of another
	// type, such as a wrapper of one's own, each command goes by itself. Hooks of a
	// ClusterClient see what is sent again, and those of its nodes (OnNewNode) all of it.
	//
	// The server must not evict: with a maxmemory-policy other than noeviction, and
	// other than volatile-ttl at best, records go before their retention is over, and
	// with them the knowledge that an event was handled.
	Client redis.UniversalClient
	// Prefix begins the names of all records; default: idem:done:. It is of letters,
	// digits and _ . / - : and ends with a colon. All instances need the same one: under
	// another prefix nothing was handled yet. Where users are confined to keys, it is
	// what the store's user needs (~idem:done:*).
	Prefix string
}

// Name is what the record of k is called in Redis, under this configuration:
// <prefix><namespace>:<topic>:<handler>:<event>, with colons, percent signs and opening
// braces in the parts escaped.
func (c Config) Name(k dedupe.Key) string {
	return prefix(cmp.Or(c.Prefix, DefaultPrefix)).name(k)
}

func (c Config) resolve() (Config, error) {
	var faults invalid.Faults
	if err := server.CheckClient(c.Client, "have their records"); err != nil {
		faults = append(faults, err)
	}
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	if !prefixName.MatchString(c.Prefix) {
		faults.Add("Prefix %q is not letters, digits and _ . / - : with a colon at the end, at most 101 bytes", c.Prefix)
	}
	return c, faults.Err("redisstore: invalid config")
}
