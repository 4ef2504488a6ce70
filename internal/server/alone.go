package server

import "github.com/redis/go-redis/v9"

// Bounded returns a client of the same server that ends each command with its context, which
// a client does only if it is told so, and repeats none; done closes it. It is for what
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
