package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func wantVersion(t testing.TB, s *sqlstore.Store, want int) {
	t.Helper()
	if got, err := s.SchemaVersion(context.Background()); err != nil || got != want {
		t.Errorf("schema version %d, %v, want %d", got, err, want)
	}
}

func TestMigrateTo(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		db := d.open(t)
		s := unmigrated(t, db, d.dialect)
		wantVersion(t, s, 0)
		for _, version := range []int{-1, 0, sqlstore.SchemaVersion + 1} {
			if err := s.MigrateTo(t.Context(), version); !errors.Is(err, dedupe.ErrInvalid) {
				t.Errorf("version %d: %v", version, err)
			}
		}
		wantVersion(t, s, 0)
		for _, version := range []int{1, 1, 2, 1, sqlstore.SchemaVersion} {
			if err := s.MigrateTo(t.Context(), version); err != nil {
				t.Fatal(err)
			}
			if version == 1 {
				continue // it does not go back
			}
			wantVersion(t, s, version)
		}
		if n := count(t, db, "SELECT count(*) FROM idempotent_done_version"); n != sqlstore.SchemaVersion {
			t.Errorf("%d versions are recorded", n)
		}
		// What a newer version of the package has made is left alone.
		exec(t, db, "INSERT INTO idempotent_done_version (version) VALUES (99)")
		if err := s.Migrate(t.Context()); err != nil {
			t.Error(err)
		}
		wantVersion(t, s, 99)
	})
}

// A table of before versions has version 1. Instances of the new version migrate it at
// once, while handlers run; nobody waits for them, and no record is lost.
func TestTableOfBeforeVersions(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		db := d.open(t)
		first, err := sqlstore.Schema(d.dialect, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		apply(t, db, first)
		s := unmigrated(t, db, d.dialect)
		wantVersion(t, s, 1)
		if err := mustClaim(t, s, key("before")).Commit(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		var held dedupe.Claim
		if d.dialect != sqlstore.SQLite { // where a handler has all of the database
			held = mustClaim(t, s, key("held"))
		}
		var all sync.WaitGroup
		for range 10 {
			other := unmigrated(t, d.open(t), d.dialect)
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
				defer cancel()
				if err := other.Migrate(ctx); err != nil {
					t.Errorf("migrate: %v", err)
				}
			})
		}
		all.Wait()
		wantVersion(t, s, sqlstore.SchemaVersion)
		if held != nil {
			if err := held.Commit(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
		if _, err := s.Lookup(t.Context(), key("before")); err != nil {
			t.Error(err)
		}
		if warnings, err := s.Check(t.Context()); err != nil || len(warnings) > 0 {
			t.Errorf("check: %q, %v", warnings, err)
		}
	})
}

// apply runs a script as a tool does: statement by statement, each up to a line's end.
func apply(t testing.TB, db *sql.DB, script string) {
	t.Helper()
	for text := range strings.SplitSeq(script, ";\n") {
		if strings.TrimSpace(text) != "" {
			exec(t, db, text)
		}
	}
}

// A tool applies the files, and Migrate finds nothing to do; or Migrate does, and a tool that
// knows nothing of it applies them again. A table under another name is another.
func TestMigrationsByATool(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		for table, toolFirst := range map[string]bool{"by_tool": true, "by_us": false} {
			db := d.open(t)
			s := unmigrated(t, db, d.dialect, func(c *sqlstore.Config) { c.Table = table })
			tool := func() {
				fsys, err := sqlstore.Migrations(d.dialect, table)
				if err != nil {
					t.Fatal(err)
				}
				names, err := fs.Glob(fsys, "*.sql")
				if err != nil || len(names) != sqlstore.SchemaVersion {
					t.Fatal(names, err)
				}
				for i, name := range names {
					text, err := fs.ReadFile(fsys, name)
					if err != nil {
						t.Fatal(err)
					}
					apply(t, db, string(text))
					if toolFirst {
						wantVersion(t, s, i+1)
					}
				}
			}
			if toolFirst {
				tool()
			}
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
			if !toolFirst {
				tool()
			}
			wantVersion(t, s, sqlstore.SchemaVersion)
			if err := mustClaim(t, s, key("1")).Commit(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if n := count(t, db, "SELECT count(*) FROM "+table+"_readable WHERE event = '1' AND namespace = 'ledger'"); n != 1 {
				t.Errorf("%d readable records", n)
			}
		}
	})
}

// A user who may not change the schema: where it is the newest, nothing is wrong; where it
// is not, the error says what to do.
func TestMigrateWithoutTheRight(t *testing.T) {
	d := testdb.Postgres(t)
	db := d.Open(t)
	owner := unmigrated(t, db, sqlstore.Postgres)
	if err := owner.MigrateTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	role := fmt.Sprintf("app_%d", time.Now().UnixNano())
	exec(t, db, "CREATE ROLE "+role+" LOGIN")
	exec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotent_done TO "+role)
	as, err := sql.Open("pgx", strings.Replace(d.DSN, "postgres@", role+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer as.Close()
	s := unmigrated(t, as, sqlstore.Postgres)
	wantRefused(t, "migrate", s.Migrate(t.Context()), "the user may not change the schema")
	if err := mustClaim(t, s, key("1")).Commit(t.Context(), nil); err != nil {
		t.Errorf("a handler: %v", err)
	}
	if err := owner.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "GRANT SELECT ON idempotent_done_version TO "+role)
	if err := s.Migrate(t.Context()); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	exec(t, db, "DROP OWNED BY "+role+"; DROP ROLE "+role)
}

// The view shows keys as text, of whatever bytes they are, and no row that is no record.
func TestReadableKeys(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		db := d.open(t)
		s := newStore(t, db, d.dialect, purgeEvery(time.Second))
		long := strings.Repeat("ü", 500)
		valid := []string{"pay:9001", "Zahlung ü €", "\U0001F600\U0010FFFF", "\u0800\uD7FF\uE000\uFFFD", "it's \"quoted\" \\ %41", long, "\x7f tab\t"}
		for _, event := range valid {
			o := options()
			o.Group, o.Fingerprint = "group ü", []byte("f")
			c, err := s.Claim(t.Context(), key(event), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Commit(t.Context(), [][]byte{[]byte("out")}); err != nil {
				t.Fatal(err)
			}
		}
		type readable struct {
			event, group string
			outputs      int
		}
		shown := func(from string) (all []readable) {
			rows, err := db.QueryContext(t.Context(), "SELECT event, coalesce(consumer_group, 'NULL'), output_bytes FROM idempotent_done_readable WHERE namespace = '"+from+"' AND topic = ''")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var r readable
				if err := rows.Scan(&r.event, &r.group, &r.outputs); err != nil {
					t.Fatal(err)
				}
				all = append(all, r)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return all
		}
		got := make(map[string]readable)
		for _, r := range shown("ledger") {
			got[r.event] = r
		}
		for _, event := range valid {
			if r, ok := got[event]; !ok || r.group != "group ü" || r.outputs == 0 {
				t.Errorf("%q is not shown, or as %+v", event, r)
			}
		}
		// Its times are the database's.
		old := map[sqlstore.Dialect]string{
			sqlstore.Postgres: "committed_at > now() - interval '1 minute' AND expires_at < now() + interval '2 hours'",
			sqlstore.MySQL:    "committed_at > now() - interval 1 minute AND expires_at < now() + interval 2 hour",
			sqlstore.SQLite:   "committed_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 minute') AND expires_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+2 hours')",
		}
		if n := count(t, db, "SELECT count(*) FROM idempotent_done_readable WHERE "+old[d.dialect]); n != len(valid) {
			t.Errorf("%d records of the last minute", n)
		}
		// What no store of ours writes: other bytes.
		odd := map[string]map[sqlstore.Dialect]string{
			"a\x00b":           {sqlstore.Postgres: `a\000b`, sqlstore.SQLite: "0x610062", sqlstore.MySQL: "a\x00b"},
			"\xff\xfe":         {sqlstore.Postgres: `\377\376`, sqlstore.MySQL: "0xFFFE"},
			"\xc0\xaf":         {sqlstore.Postgres: `\300\257`, sqlstore.MySQL: "0xC0AF"},             // overlong
			"\xed\xa0\x80":     {sqlstore.Postgres: `\355\240\200`},                                   // a surrogate, which MariaDB takes
			"\xf4\x90\x80\x80": {sqlstore.Postgres: `\364\220\200\200`, sqlstore.MySQL: "0xF4908080"}, // above the last one
			"\xe2\x82":         {sqlstore.Postgres: `\342\202`, sqlstore.MySQL: "0xE282"},             // cut off
		}
		i := 0
		for bytes := range odd {
			i++
			exec(t, db, fmt.Sprintf("INSERT INTO idempotent_done (id, namespace, topic, handler, event, token, committed_at, expires_at, consumer_group) VALUES (%s, %s, %s, %s, %s, %s, 1, %s + 60000, %s)",
				literal(d.dialect, fmt.Appendf(nil, "%032d", i)), literal(d.dialect, []byte("odd")), literal(d.dialect, nil), literal(d.dialect, nil), literal(d.dialect, []byte(bytes)),
				literal(d.dialect, []byte("t")), now[d.dialect], literal(d.dialect, nil)))
		}
		all := shown("odd")
		if len(all) != len(odd) {
			t.Errorf("%d of %d odd keys are shown", len(all), len(odd))
		}
		seen := make(map[string]bool)
		for _, r := range all {
			seen[r.event] = true
			if r.group != "odd" {
				t.Errorf("group %q, want that of the namespace", r.group)
			}
		}
		for bytes, by := range odd {
			if want := by[d.dialect]; want != "" && !seen[want] {
				t.Errorf("% x is not shown as %q: %+v", bytes, want, all)
			}
		}
		s.StartPurge() // whose row is not shown
		eventually(t, func() bool {
			return count(t, db, "SELECT count(*) FROM idempotent_done WHERE length(namespace) = 0") == 1
		})
		if n := count(t, db, "SELECT count(*) FROM idempotent_done_readable"); n != len(valid)+len(odd) {
			t.Errorf("%d rows are shown", n)
		}
	})
}
