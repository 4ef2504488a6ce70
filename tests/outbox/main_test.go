// Package outbox_test kills the forwarder of a transactional outbox again and again, and checks
// that the stream has exactly the events of the transactions that were committed.
package outbox_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// childEnv is set in the forwarders, which are this test's program.
const childEnv = "OUTBOX_TEST_FORWARDER"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := forward(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testdb.Main(m)
}
