// Package connect makes clients of what an operator has typed: Redis, alone, behind
// Sentinel or as a cluster, and SQL databases. What it says of an address never has a
// password in it.
package connect

import (
	"context"
	"time"
)

// Settings are where things are. Their fields are flags and environment variables.
type Settings struct {
	// Redis is the server's URL, see [Settings.OpenRedis].
	Redis string
	// Cluster takes the server for a node of a cluster without asking it.
	Cluster bool
	// SQL is the data source name of a database, see [Settings.OpenSQL]; empty: none.
	SQL string
	// Table is the name of the SQL store's table, Prefix what the names of the Redis store's
	// records begin with.
	Table, Prefix string
	// Timeout bounds a connection, and a reply.
	Timeout time.Duration
}

// Bounded is a context for what is answered at once.
func (s Settings) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.Timeout)
}
