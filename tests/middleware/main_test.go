// Package middleware_test checks the handling middleware on real servers, and with
// Watermill's own middlewares around it.
package middleware_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // of servers that are away on purpose
	testdb.Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
