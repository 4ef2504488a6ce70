package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/dedupe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// purgedDB answers the statements of a purge, and counts them. The real ones are asked in
// tests/sqlstore.
type purgedDB struct {
	mu      sync.Mutex
	over    int64 // rows that ran out
	fail    error // what each statement gets
	taken   []time.Time
	batches []time.Time
	kept    int
	ended   int
}

func (db *purgedDB) Connect(context.Context) (driver.Conn, error) { return purgedConn{db}, nil }
func (db *purgedDB) Driver() driver.Driver                        { return nil }

type purgedConn struct{ db *purgedDB }

func (purgedConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (purgedConn) Close() error                        { return nil }
func (c purgedConn) Begin() (driver.Tx, error)         { return c, nil }
func (purgedConn) Commit() error                       { return nil }
func (purgedConn) Rollback() error                     { return nil }

func (c purgedConn) ExecContext(_ context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	db := c.db
	db.mu.Lock()
	defer db.mu.Unlock()
	switch {
	case db.fail != nil:
		return nil, db.fail
	case strings.HasPrefix(text, "DELETE"):
		db.batches = append(db.batches, time.Now())
		if limit := args[0].Value.(int64); limit > 500 { // as the documentation says
			return nil, fmt.Errorf("a batch of %d", limit)
		}
		n := min(db.over, args[0].Value.(int64))
		db.over -= n
		return driver.RowsAffected(n), nil
	case strings.Contains(text, "SET token"):
		db.taken = append(db.taken, time.Now())
	case strings.Contains(text, "expires_at = "+nowPostgres+" +"):
		db.kept++
	case strings.Contains(text, "expires_at = "+nowPostgres+" WHERE"):
		db.ended++
	}
	return driver.RowsAffected(1), nil
}

const nowPostgres = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

// purging makes a store over such a database.
func purging(t *testing.T, db *purgedDB, every time.Duration) (*Store, *watermill.CaptureLoggerAdapter) {
	t.Helper()
	logger := watermill.NewCaptureLogger()
	pool := sql.OpenDB(db)
	t.Cleanup(func() { _ = pool.Close() })
	s, err := New(Config{DB: pool, Dialect: Postgres, PurgeEvery: every, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, logger
}

func TestPurgeEvery(t *testing.T) {
	db := sql.OpenDB(noDriver{})
	defer db.Close()
	for every, want := range map[time.Duration]string{
		1: "PurgeEvery 1ns is shorter than 1s", -2: "NoPurge (-1)", -time.Hour: "PurgeEvery", time.Second - 1: "PurgeEvery", time.Second: "", NoPurge: "", 0: "",
	} {
		_, err := Config{DB: db, Dialect: Postgres, PurgeEvery: every}.resolve()
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", every, err, want)
		}
	}
}

// It begins within a minute, comes at most a fifth early, and ends with Close. All
// that ran out goes, with a rest between two batches.
func TestPurgeComesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &purgedDB{over: 3*purgeBatch + 1}
		s, logger := purging(t, db, 0)
		<-time.After(time.Hour)
		synctest.Wait()
		if len(db.taken) > 0 {
			t.Fatal("a store that nobody uses purges")
		}
		begin := time.Now()
		s.StartPurge()
		s.StartPurge()
		<-time.After(24 * time.Hour)
		synctest.Wait()
		n := len(db.taken)
		if n < 24*6 || n > 24*6*10/8+1 || db.ended != n || db.over != 0 {
			t.Errorf("%d purges in a day, %d of them ended, and %d rows left", n, db.ended, db.over)
		}
		if first := db.taken[0].Sub(begin); first > firstPurge {
			t.Errorf("the first came after %v", first)
		}
		for i := range n - 1 {
			if gap := db.taken[i+1].Sub(db.taken[i]); gap < DefaultPurgeEvery*8/10 || gap > DefaultPurgeEvery+time.Second {
				t.Errorf("%v between two", gap)
			}
		}
		for i := range 3 {
			if rest := db.batches[i+1].Sub(db.batches[i]); rest < minRest {
				t.Errorf("%v between two batches", rest)
			}
		}
		if got := logger.Captured()[watermill.ErrorLogLevel]; len(got) > 0 {
			t.Errorf("logged %+v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-time.After(24 * time.Hour)
		synctest.Wait()
		if len(db.taken) != n {
			t.Error("it purges after Close")
		}
	})
}

func TestNoPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &purgedDB{over: 1}
		s, _ := purging(t, db, NoPurge)
		s.StartPurge()
		<-time.After(24 * time.Hour)
		synctest.Wait()
		if len(db.taken) > 0 {
			t.Error("it purges")
		}
	})
}

// Close during a purge ends it, between two batches.
func TestCloseDuringAPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &purgedDB{over: 1 << 40}
		s, logger := purging(t, db, 0)
		s.StartPurge()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		n := len(db.batches)
		<-time.After(time.Hour)
		synctest.Wait()
		if n < 1000 || len(db.batches) != n || db.kept < 10 {
			t.Errorf("%d batches, %d after Close; the row was kept %d times", n, len(db.batches)-n, db.kept)
		}
		s.StartPurge()
		if got := logger.Captured()[watermill.ErrorLogLevel]; len(got) > 0 {
			t.Errorf("logged %+v", got)
		}
	})
}

// What fails is said, each time, and by Check; and that it works again.
func TestPurgeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("the database is away")
		db := &purgedDB{over: 5, fail: away}
		s, logger := purging(t, db, time.Minute)
		s.StartPurge()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		failures := logger.Captured()[watermill.ErrorLogLevel]
		if len(failures) < 10 || !errors.Is(failures[0].Err, away) || failures[0].Fields["table"] != DefaultTable {
			t.Errorf("logged %+v", failures)
		}
		if w := s.purge.warning(); !strings.Contains(w, "have failed since") || !strings.Contains(w, "the database is away") {
			t.Errorf("Check warns %q", w)
		}
		db.mu.Lock()
		db.fail = nil
		db.mu.Unlock()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if w := s.purge.warning(); w != "" || db.over != 0 {
			t.Errorf("Check warns %q, %d rows left", w, db.over)
		}
		if n := len(logger.Captured()[watermill.InfoLogLevel]); n != 1 {
			t.Errorf("%d times that it works again", n)
		}
	})
}

// The first claim starts it.
func TestClaimStartsThePurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &purgedDB{}
		s, _ := purging(t, db, 0)
		c, err := s.Claim(t.Context(), dedupe.Key{Namespace: "n", Event: "e"},
			dedupe.ClaimOptions{Token: "t", Lease: time.Second, Retention: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if len(db.taken) == 0 {
			t.Error("nothing purges")
		}
	})
}
