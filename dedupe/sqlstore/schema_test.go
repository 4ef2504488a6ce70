package sqlstore

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// goose takes <number>_<name>.sql with its comment, golang-migrate and atlas
// <number>_<name>.up.sql.
var fileName = regexp.MustCompile(`^(\d{5})_[a-z]+\.up\.sql$`)

func TestMigrations(t *testing.T) {
	for _, dialect := range []Dialect{Postgres, MySQL, SQLite} {
		for _, table := range []string{"", "done", "shop.done"} {
			fsys, err := Migrations(dialect, table)
			if err != nil {
				t.Fatal(err)
			}
			names, err := fs.Glob(fsys, "*.sql")
			if err != nil || len(names) != SchemaVersion {
				t.Fatalf("%s: %q, %v", dialect, names, err)
			}
			if err := fstest.TestFS(fsys, names...); err != nil {
				t.Errorf("%s: %v", dialect, err)
			}
			var whole string
			for i, name := range names {
				if m := fileName.FindStringSubmatch(name); m == nil || m[1] != fmt.Sprintf("%05d", i+1) {
					t.Errorf("%s: file %d is called %s", dialect, i+1, name)
				}
				text, err := fs.ReadFile(fsys, name)
				if err != nil {
					t.Fatal(err)
				}
				whole += string(text)
				if !strings.HasPrefix(string(text), "-- +goose Up\n") || regexp.MustCompile(`\{[a-z]`).Match(text) || !strings.Contains(string(text), table) {
					t.Errorf("%s %s: %s", dialect, name, text)
				}
				if i+1 > 1 && !strings.Contains(string(text), fmt.Sprintf("(%d)", i+1)) {
					t.Errorf("%s %s does not record its version", dialect, name)
				}
				statements := file{name, string(text)}.statements()
				if len(statements) == 0 {
					t.Errorf("%s %s does nothing", dialect, name)
				}
				for _, s := range statements {
					if strings.Contains(s, "--") || strings.Contains(s, ";") {
						t.Errorf("%s %s: %s", dialect, name, s)
					}
				}
			}
			if text, err := Schema(dialect, table, 0); err != nil || text != whole {
				t.Errorf("%s: the schema is not that of the files: %v", dialect, err)
			}
		}
		if text, err := Schema(dialect, "", 1); err != nil || strings.Contains(text, "_readable") || !strings.Contains(text, "CREATE TABLE IF NOT EXISTS idempotent_done") {
			t.Errorf("%s: version 1 is %s, %v", dialect, text, err)
		}
		for _, version := range []int{-1, SchemaVersion + 1} {
			if _, err := Schema(dialect, "", version); !errors.Is(err, dedupe.ErrInvalid) {
				t.Errorf("version %d: %v", version, err)
			}
		}
	}
	if _, err := Migrations("oracle", ""); !errors.Is(err, dedupe.ErrInvalid) {
		t.Error(err)
	}
	if _, err := Migrations(SQLite, "done; DROP TABLE ledger"); !errors.Is(err, dedupe.ErrInvalid) {
		t.Error(err)
	}
}
