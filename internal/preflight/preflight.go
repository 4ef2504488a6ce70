// Package preflight is what the Checks of publisher, subscriber and redisstore have in
// common: what they ask a server before there is traffic, and what they say about it.
package preflight

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// Warn adds a warning to a report: a complete sentence about what an operator should look at.
type Warn func(format string, args ...any)

// Bounded returns a client of the same server that ends each command with its context, which
// a client does only if its options say so, and repeats none; done closes it. It is for what
// a health check asks: a frozen server must not keep that longer than its context says. A
// client of another kind than *redis.Client and *redis.ClusterClient is returned itself.
// The hooks of the client are not taken over.
func Bounded(client redis.UniversalClient) (bounded redis.UniversalClient, done func()) {
	switch c := client.(type) {
	case *redis.Client:
		copied := alone(c)
		return copied, func() { _ = copied.Close() }
	case *redis.ClusterClient:
		opts := *c.Options()
		opts.ContextTimeoutEnabled, opts.MaxRetries, opts.MinIdleConns = true, -1, 0
		copied := redis.NewClusterClient(&opts)
		return copied, func() { _ = copied.Close() }
	}
	return client, func() {}
}

// alone is a client of the same server with one connection of its own.
func alone(client *redis.Client) *redis.Client {
	opts := *client.Options()
	opts.PoolSize, opts.MinIdleConns, opts.MaxRetries, opts.ContextTimeoutEnabled = 1, 0, -1, true
	opts.PushNotificationProcessor = nil // it belongs to one client
	return redis.NewClient(&opts)
}

// Eviction returns the server's maxmemory-policy, empty if it is not known. It warns of one
// that may evict, and says what would go: "streams that are not read yet".
func Eviction(ctx context.Context, client redis.UniversalClient, key, what string, warn Warn) (policy string) {
	memory, err := server.InfoSection(ctx, client, key, "memory")
	switch policy = memory["maxmemory_policy"]; policy {
	case "":
		warn("The server's maxmemory-policy is unknown: %s.", server.WhyNoInfo(err))
	case "noeviction":
	default:
		warn("The server's maxmemory-policy is %s: it may evict %s. Set noeviction.", policy, what)
	}
	return policy
}

// Pool warns of a client whose pool has fewer connections than who needs:
// "3 topics need up to".
func Pool(client redis.UniversalClient, need int, who string, warn Warn) {
	if size := PoolSize(client); size > 0 && size < need {
		warn("The client's pool has %d connections; %s %d.", size, who, need)
	}
}

// PoolSize is how many connections to one server the client's pool has; 0 if that is not
// known.
func PoolSize(client redis.UniversalClient) int {
	o, _ := server.OptionsOf(client)
	return o.PoolSize
}

// Server is product and version, "redis 8.6.3"; empty if that is not known.
func Server(ctx context.Context, client redis.UniversalClient, key string) string {
	name, version, err := server.Version(ctx, client, key)
	if err != nil || version == "" {
		return ""
	}
	return name + " " + version
}
