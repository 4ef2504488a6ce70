// Package publisher_test checks the publisher on real servers.
package publisher_test

import (
	"os"
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	testserver.Main(m)
}
