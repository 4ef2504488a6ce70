// Package dedupe_test checks the dedupe stores on real servers.
package dedupe_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }
