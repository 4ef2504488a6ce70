// Package service_test runs examples/service as it is started in production, two instances on
// Redis 8.6 and PostgreSQL, and checks that each order is billed once.
package service_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
