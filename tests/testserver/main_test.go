package testserver_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }
