package outbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// examples/outbox, with its own table for both databases, on PostgreSQL and Redis 8.6: it ends
// well, and leaves nothing behind.
func TestExampleOnServers(t *testing.T) {
	server, database := testserver.Start(t, testserver.Redis86), testdb.Postgres(t)
	program := filepath.Join(t.TempDir(), "outbox")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./outbox")
	build.Dir = filepath.Join("..", "..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, "-kills", "20")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database.DSN, "REDIS_ADDR="+server.Addr())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var committed, rolledBack, entries int
	if _, err := fmt.Sscanf(lines[len(lines)-1], "committed=%d rolled_back=%d kills=20 entries=%d duplicates=0 missing=0", &committed, &rolledBack, &entries); err != nil ||
		committed == 0 || rolledBack == 0 || entries != committed {
		t.Errorf("%v\n%s", err, out)
	}
	var tables int
	if err := database.Open(t).QueryRowContext(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables); err != nil || tables > 0 {
		t.Errorf("%d tables are left behind, %v", tables, err)
	}
	if keys, err := server.Client().Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("%q are left behind, %v", keys, err)
	}
}
