package sqlstore_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// now is each database's own clock, in milliseconds since 1970.
var now = map[sqlstore.Dialect]string{
	sqlstore.Postgres: "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
	sqlstore.MySQL:    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
	sqlstore.SQLite:   "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

func literal(dialect sqlstore.Dialect, b []byte) string {
	if dialect == sqlstore.Postgres {
		return fmt.Sprintf(`'\x%x'::bytea`, b)
	}
	return fmt.Sprintf("x'%x'", b)
}

// addRecords adds records of the events from name 0 on, which run out in so long by the
// database's clock.
func addRecords(t testing.TB, db *sql.DB, dialect sqlstore.Dialect, name string, n int, left time.Duration) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for from := 0; from < n; from += 500 {
		var rows []string
		for i := from; i < min(from+500, n); i++ {
			k := key(fmt.Sprint(name, " ", i))
			id := sha256.Sum256([]byte(k.String()))
			rows = append(rows, fmt.Sprintf("(%s, %s, %s, %s, %s, %s, %s - 7200000, %s + %d)", literal(dialect, id[:]), literal(dialect, []byte(k.Namespace)),
				literal(dialect, nil), literal(dialect, nil), literal(dialect, []byte(k.Event)), literal(dialect, []byte("token")), now[dialect], now[dialect], left.Milliseconds()))
		}
		exec(t, tx, "INSERT INTO idempotent_done (id, namespace, topic, handler, event, token, committed_at, expires_at) VALUES "+strings.Join(rows, ", "))
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// records counts the records whose event begins with name.
func records(t testing.TB, db *sql.DB, dialect sqlstore.Dialect, name string) int {
	t.Helper()
	prefix := literal(dialect, []byte(name))
	if dialect == sqlstore.Postgres {
		return count(t, db, fmt.Sprintf("SELECT count(*) FROM idempotent_done WHERE substring(event FOR %d) = %s", len(name), prefix))
	}
	return count(t, db, fmt.Sprintf("SELECT count(*) FROM idempotent_done WHERE substr(event, 1, %d) = %s", len(name), prefix))
}

func purgeEvery(d time.Duration) func(*sqlstore.Config) {
	return func(c *sqlstore.Config) { c.PurgeEvery, c.Logger = d, watermill.NopLogger{} }
}

// What ran out goes by itself, and nothing else: no record that has time left, by the
// database's clock, no claim, and no record of a key that was handled again meanwhile.
func TestPurgeByItself(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		t.Parallel()
		db := d.open(t)
		s := newStore(t, db, d.dialect, purgeEvery(time.Second))
		addRecords(t, db, d.dialect, "over", 1200, -time.Millisecond)
		addRecords(t, db, d.dialect, "left", 700, time.Minute)
		again := mustClaim(t, s, key("over 7")) // this starts it
		if d.dialect == sqlstore.SQLite {       // where a claim holds all of the database
			if err := again.Commit(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		want := map[bool]int{true: 1, false: 0}[d.dialect == sqlstore.SQLite]
		eventually(t, func() bool { return records(t, db, d.dialect, "over") == want })
		if err := again.Commit(t.Context(), nil); err != nil {
			t.Error(err)
		}
		for range 2 { // and in the next two
			before := count(t, db, "SELECT committed_at FROM idempotent_done WHERE length(namespace) = 0")
			eventually(t, func() bool {
				return count(t, db, "SELECT committed_at FROM idempotent_done WHERE length(namespace) = 0") != before
			})
		}
		if over, left := records(t, db, d.dialect, "over"), records(t, db, d.dialect, "left"); over != 1 || left != 700 {
			t.Errorf("%d and %d records, want 1 and 700", over, left)
		}
		n := 0
		for r, err := range s.List(t.Context(), dedupe.Filter{}) {
			if n++; err != nil || r.Key.Namespace == "" {
				t.Fatal(r, err)
			}
		}
		if n != 701 {
			t.Errorf("lists %d, want 701: the purge's own row is no record", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n, err := s.Purge(t.Context(), time.Now().Add(-time.Hour), 0); err != nil || n != 0 && n != 700 {
			t.Errorf("purged %d, %v", n, err)
		}
		if n := count(t, db, "SELECT count(*) FROM idempotent_done WHERE length(namespace) = 0"); n != 1 {
			t.Error("the purge's own row is gone: the next store begins at once")
		}
		if n := db.Stats().InUse; n > 0 {
			t.Errorf("%d connections are in use after Close", n)
		}
	})
}

// A table is purged once in PurgeEvery, however many stores it has, by one at a time.
func TestStoresPurgeOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		t.Parallel()
		const every = 2 * time.Second
		db := d.open(t)
		for range 5 {
			newStore(t, d.open(t), d.dialect, purgeEvery(every)).StartPurge()
		}
		var begun []int
		for end := time.Now().Add(30 * time.Second); len(begun) < 6 && time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			at := count(t, db, "SELECT coalesce(max(committed_at), 0) FROM idempotent_done")
			if at > 0 && !slices.Contains(begun, at) {
				begun = append(begun, at)
			}
		}
		if len(begun) < 6 {
			t.Fatalf("%d purges", len(begun))
		}
		for i := range len(begun) - 1 {
			if gap := time.Duration(begun[i+1]-begun[i]) * time.Millisecond; gap < every*8/10 {
				t.Errorf("%v between two purges of one table", gap)
			}
		}
	})
}

// While one store purges the others don't. One that died with the row keeps nobody from
// it for longer than the lease; a clock that was set back does not either.
func TestPurgeWaitsForAnother(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		t.Parallel()
		db := d.open(t)
		s := newStore(t, db, d.dialect, purgeEvery(time.Second))
		id := literal(d.dialect, func() []byte { sum := sha256.Sum256([]byte(dedupe.Key{Event: "purge"}.String())); return sum[:] }())
		none := literal(d.dialect, nil)
		exec(t, db, fmt.Sprintf("INSERT INTO idempotent_done (id, namespace, topic, handler, event, token, committed_at, expires_at) "+
			"VALUES (%s, %s, %s, %s, %s, %s, %s - 50000, %s + 50000)", id, none, none, none, none, none, now[d.dialect], now[d.dialect]))
		addRecords(t, db, d.dialect, "over", 10, -time.Millisecond)
		for r, err := range s.List(t.Context(), dedupe.Filter{}) {
			t.Errorf("lists %+v, %v: the row is no record", r, err)
		}
		s.StartPurge()
		<-time.After(3 * time.Second)
		if n := records(t, db, d.dialect, "over"); n != 10 {
			t.Fatalf("purged beside another: %d of 10 are left", n)
		}
		for what, set := range map[string]string{
			"the other's lease is over":    "expires_at = " + now[d.dialect] + " - 1",
			"the clock was set back":       "expires_at = " + now[d.dialect] + " + 7200000, committed_at = " + now[d.dialect] + " + 7100000",
			"and since the last one ended": "expires_at = " + now[d.dialect] + " - 1, committed_at = " + now[d.dialect] + " + 7100000",
		} {
			addRecords(t, db, d.dialect, "over "+what, 10, -time.Millisecond)
			exec(t, db, "UPDATE idempotent_done SET "+set+" WHERE id = "+id)
			eventually(t, func() bool { return records(t, db, d.dialect, "over") == 0 })
		}
	})
}

// counts is a logger that counts.
type counts struct {
	watermill.NopLogger
	errors, infos atomic.Int64
}

func (c *counts) Error(string, error, watermill.LogFields) { c.errors.Add(1) }
func (c *counts) Info(string, watermill.LogFields)         { c.infos.Add(1) }

// The database goes away, and comes back: the log says both, handlers go on, and so does the purge.
func TestPurgeGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		t.Parallel()
		behind, direct, g := gated(t, kind)
		var logger counts
		s := newStore(t, behind, kind, func(c *sqlstore.Config) { c.PurgeEvery, c.Logger = time.Second, &logger })
		addRecords(t, direct, kind, "first", 600, -time.Millisecond)
		s.StartPurge()
		eventually(t, func() bool { return records(t, direct, kind, "first") == 0 })
		g.Cut()
		addRecords(t, direct, kind, "second", 600, -time.Millisecond)
		eventually(t, func() bool { return logger.errors.Load() >= 2 })
		if n := records(t, direct, kind, "second"); n != 600 {
			t.Errorf("%d of 600 records while the database is away", n)
		}
		g.Back()
		eventually(t, func() bool {
			return records(t, direct, kind, "second") == 0 && logger.infos.Load() == 1
		})
		if w, err := s.Check(t.Context()); err != nil || len(w) > 0 {
			t.Errorf("check: %q, %v", w, err)
		}
	})
}

// A link that goes silent keeps Close for a few seconds.
func TestCloseWhileAPurgeHangs(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		t.Parallel()
		behind, direct, g := gated(t, kind)
		s := newStore(t, behind, kind, purgeEvery(time.Second))
		addRecords(t, direct, kind, "over", 3, -time.Millisecond)
		hangs := make(chan struct{})
		g.ShutAt(func(request []byte) bool {
			if strings.Contains(string(request), "DELETE") {
				close(hangs)
				return true
			}
			return false
		})
		s.StartPurge()
		<-hangs
		begin := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A backlog goes in batches while handlers go on, also with keys of the backlog: each
// gets its claim, soon, and keeps its record.
func TestPurgeOfALargeBacklog(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		t.Parallel()
		backlog := 20_000
		if d.dialect == sqlstore.SQLite { // where a handler has all of the database, and the purge the gaps
			backlog = 3000
		}
		db := d.open(t)
		s := newStore(t, db, d.dialect, purgeEvery(time.Second))
		addRecords(t, db, d.dialect, "over", backlog, -time.Millisecond)
		other := newStore(t, d.open(t), d.dialect, purgeEvery(sqlstore.NoPurge))
		s.StartPurge()

		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // on a busy machine
		defer cancel()
		over := make(chan struct{})
		var mu sync.Mutex
		var slowest time.Duration
		handled := 0
		var handlers sync.WaitGroup
		for h := range 3 {
			handlers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-over:
						return
					case <-ctx.Done():
						t.Error("the backlog is not removed")
						return
					case <-time.After(2 * time.Millisecond):
					}
					// From its end, where the purge comes last.
					k := key(fmt.Sprintf("over %d", backlog-1-(n*3+h)))
					if n%2 == 0 {
						k = key(fmt.Sprintf("new %d %d", h, n))
					}
					o := options()
					o.Wait = 30 * time.Second
					begin := time.Now()
					c, err := other.Claim(ctx, k, o)
					if err == nil && c.State() != dedupe.StateClaimed {
						err = fmt.Errorf("state is %v", c.State())
					}
					if err == nil {
						err = c.Commit(ctx, nil)
					}
					mu.Lock()
					slowest, handled = max(slowest, time.Since(begin)), handled+1
					mu.Unlock()
					if err != nil {
						t.Errorf("%s: %v", k, err)
						return
					}
				}
			})
		}
		seen := make(map[int]bool)
		for left := backlog; left > 0 && ctx.Err() == nil; <-time.After(5 * time.Millisecond) {
			left = count(t, db, "SELECT count(*) FROM idempotent_done WHERE expires_at < "+now[d.dialect]+" AND length(namespace) > 0")
			seen[left] = true
		}
		close(over)
		handlers.Wait()
		got := records(t, db, d.dialect, "over") + records(t, db, d.dialect, "new")
		t.Logf("%d handled meanwhile, the slowest in %v; %d counts of the backlog seen", handled, slowest.Round(time.Millisecond), len(seen))
		if got != handled || handled < 10 {
			t.Errorf("%d records of %d that were handled", got, handled)
		}
		if slowest > 10*time.Second {
			t.Errorf("a handler took %v", slowest)
		}
	})
}

// A process whose clock is off, or a session's: what ran out is the server's to say.
func TestPurgeByTheServersClock(t *testing.T) {
	t.Parallel()
	d := testdb.MariaDB(t)
	direct := d.Open(t)
	newStore(t, direct, sqlstore.MySQL)
	// The server's clock is two hours behind that of this process.
	db := openMariaDB(t, d, fmt.Sprintf("?timestamp=%d", time.Now().Add(-2*time.Hour).Unix()))
	addRecords(t, direct, sqlstore.MySQL, "an hour ago", 10, -time.Hour)
	addRecords(t, direct, sqlstore.MySQL, "long ago", 10, -3*time.Hour)
	newStore(t, db, sqlstore.MySQL, purgeEvery(time.Second)).StartPurge()
	eventually(t, func() bool { return records(t, direct, sqlstore.MySQL, "long ago") == 0 })
	if n := records(t, direct, sqlstore.MySQL, "an hour ago"); n != 10 {
		t.Errorf("%d of 10 records left that have an hour left", n)
	}
}

// A purge reads what ran out, and not the whole table each time.
func TestPurgeReadsOnlyWhatRanOut(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlstore.Postgres).open(t)
	s := newStore(t, db, sqlstore.Postgres, purgeEvery(sqlstore.NoPurge))
	addRecords(t, db, sqlstore.Postgres, "left", 5000, time.Hour)
	addRecords(t, db, sqlstore.Postgres, "over", 10, -time.Millisecond)
	exec(t, db, "ANALYZE idempotent_done")
	if n, err := s.Purge(t.Context(), time.Time{}, 0); err != nil || n != 10 {
		t.Fatal(n, err)
	}
	read := func() int {
		return count(t, db, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'idempotent_done_expires'")
	}
	eventually(t, func() bool { return read() >= 10 })
	if n := read(); n > 100 {
		t.Errorf("read %d entries of the index for 10 records", n)
	}
}

// A row that somebody holds, as one who takes an expired key does, stays for the next
// purge: the others go meanwhile.
func TestPurgePassesRowsThatAreHeld(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		t.Parallel()
		db := newDatabase(t, kind).open(t)
		s := newStore(t, db, kind, purgeEvery(sqlstore.NoPurge))
		addRecords(t, db, kind, "over", 20, -time.Millisecond)
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		id := sha256.Sum256([]byte(key("over 7").String()))
		exec(t, tx, "UPDATE idempotent_done SET expires_at = expires_at - 1 WHERE id = "+literal(kind, id[:]))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n, err := s.Purge(ctx, time.Time{}, 0); err != nil || n != 19 {
			t.Errorf("purged %d of 19 that are free, %v", n, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Purge(t.Context(), time.Time{}, 0); err != nil || n != 1 {
			t.Errorf("purged %d, %v, want the one that was held", n, err)
		}
	})
}
