package crash_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// The example of the transactional store on PostgreSQL; on SQLite its own test runs it.
func TestLedgerExample(t *testing.T) {
	db := testdb.Postgres(t)
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Dir = "../../examples/ledger"
	cmd.Env = append(os.Environ(), "DATABASE_URL="+db.DSN)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "payments=20 kills=20 sum=2190 ledger=2190\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
