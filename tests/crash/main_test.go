// Package crash_test kills a consumer between every two steps of handling an event, and
// checks what is there after another one has gone on.
package crash_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testdb"
)

const childEnv = "CRASH_TEST_CHILD"

func TestMain(m *testing.M) {
	for env, work := range map[string]func() error{childEnv: child, loadEnv: runLoad} {
		if os.Getenv(env) == "" {
			continue
		}
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testdb.Main(m)
}
