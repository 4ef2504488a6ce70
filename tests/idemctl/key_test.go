package idemctl_test

import (
	"context"
	"database/sql"
	"maps"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/idemctl/shop"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// record is what the tests read of a record in JSON.
type record struct {
	Key, Namespace, Topic, Handler, Event, State, Action string
	CommittedAt                                          *time.Time `json:"committed_at"`
	ExpiresAt                                            *time.Time `json:"expires_at"`
}

// handled makes the record of an event, or holds its claim.
func handled(t *testing.T, s dedupe.Store, k dedupe.Key, commit bool) {
	t.Helper()
	c, err := s.Claim(t.Context(), k, dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: 30 * time.Second, Retention: 24 * time.Hour, Group: "billing"})
	if err != nil || c.State() != dedupe.StateClaimed {
		t.Fatal(c, err)
	}
	if commit {
		err = c.Commit(t.Context(), nil)
	} else {
		t.Cleanup(func() { _ = c.Rollback(context.Background()) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

func billing(event, handler string) dedupe.Key {
	return dedupe.Key{Namespace: "billing", Topic: "payments", Handler: handler, Event: event}
}

// stores runs a test on each kind of store, with the flags that name it.
func stores(t *testing.T, test func(t *testing.T, o tool, store dedupe.Store, flags []string)) {
	t.Run("redis", func(t *testing.T) {
		s := testserver.Start(t, testserver.Redis86)
		store, err := redisstore.New(redisstore.Config{Client: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		test(t, at(t, s.Addr()), store, nil)
	})
	open := func(t *testing.T, db *sql.DB, dialect sqlstore.Dialect, dsn string) {
		store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: dialect, Table: "handled", PurgeEvery: sqlstore.NoPurge})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		flags := []string{"--sql", dsn, "--table", "handled"}
		o := at(t, "127.0.0.1:1") // nobody asks Redis
		o.run(append([]string{"migrate", "--dry-run"}, flags...)...).wants(0, "nothing was changed")
		o.run(append([]string{"migrate"}, flags...)...).wants(0, "version")
		test(t, o, store, flags)
	}
	t.Run("postgres", func(t *testing.T) {
		d := testdb.Postgres(t)
		open(t, d.Open(t), sqlstore.Postgres, d.DSN)
	})
	t.Run("mariadb", func(t *testing.T) {
		d := testdb.MariaDB(t)
		open(t, d.Open(t), sqlstore.MySQL, d.DSN)
	})
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		open(t, db, sqlstore.SQLite, "sqlite:"+file)
	})
}

// A key that is stuck is found by its namespace and event alone, and freed; nothing else goes.
func TestFreeOneKey(t *testing.T) {
	stores(t, func(t *testing.T, o tool, store dedupe.Store, flags []string) {
		with := func(args ...string) []string { return append(args, flags...) }
		handled(t, store, billing("pay:9001", "charge"), true)
		handled(t, store, billing("pay:9001", "mail"), true)
		handled(t, store, billing("pay:9002", "charge"), true)

		o.run(with("key", "get", "billing", "pay:1")...).wants(1, "no record of billing pay:1", "--table")
		var found []record
		r := o.run(with("key", "get", "billing", "pay:9001", "-o", "json")...).wants(0)
		r.into(&found)
		if len(found) != 2 || found[0].Handler != "charge" || found[1].Handler != "mail" || found[0].State != "done" || found[0].CommittedAt == nil || found[0].ExpiresAt == nil {
			t.Errorf("found %s", r.out)
		}
		o.run(with("key", "get", "billing", "pay:9001")...).wants(0, "charge", "mail", "handled", "ago", "in 23h")
		// Which handler's? It says how to name it, and forgets none.
		o.run(with("key", "forget", "billing", "pay:9001")...).wants(2, "2 handlers", "--topic payments --handler charge", "--all")
		o.run(with("key", "forget", "billing", "pay:9001", "--handler", "mail", "--dry-run")...).wants(0, "would be forgotten")
		o.run(with("key", "get", "billing", "pay:9001", "--topic", "payments", "--handler", "mail")...).wants(0)
		o.run(with("key", "forget", "billing", "pay:9001", "--handler", "mail")...).wants(0, "is forgotten", "The event does not come by itself")
		o.run(with("key", "get", "billing", "pay:9001", "--topic", "payments", "--handler", "mail")...).wants(1)
		o.run(with("key", "forget", "billing", "pay:9001", "--handler", "mail")...).wants(1, "no record")
		// By the key of the log.
		o.run(with("key", "forget", "billing:payments:charge:pay%3A9001")...).wants(0, "is forgotten")
		o.run(with("key", "list", "billing", "-o", "json")...).wants(0).into(&found)
		if len(found) != 1 || found[0].Event != "pay:9002" {
			t.Errorf("left: %v", found)
		}
		o.run(with("key", "list", "shipping")...).wants(0, "No records", "Namespaces with records: billing").lacks("Did you mean")
		o.run(with("key", "list", "biling")...).wants(0, "Did you mean billing?")
		o.run(with("key", "get", "biling", "pay:9002")...).wants(1, "Did you mean billing?")
		o.run(with("key", "list", "shipping", "-o", "json")...).wants(0, "[]")
		o.run(with("key", "list", "billing", "--before", "1h")...).wants(0, "No records")
		o.run(with("key", "list", "billing", "--after", "1h", "--contains", "9002")...).wants(0, "pay:9002")
	})
}

// After a record is forgotten it is said how the event comes again, as far as Redis knows.
func TestForgetSaysWhatIsNext(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	o.run("key", "forget", "billing", "pay:1", "--dry-run").wants(0, "nothing was changed").lacks("by itself")
	o.run("key", "forget", "billing", "pay:1").wants(0, "eventkey.NextAttempt", "The window of topic payments lasts 1h", "may be refused as a duplicate until").lacks("dead replay")
	store, err := redisstore.New(redisstore.Config{Client: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	// Its event is a dead letter.
	handled(t, store, billing("pay:9001", "charge"), true)
	o.run("key", "forget", "billing", "pay:9001").wants(0, "Its dead letter: idemctl dead replay payments "+deadLetters(o, "--key", "pay:9001")[0].ID)
	// Latches tell exactly.
	for event, says := range map[string]string{"pay:7001": "holds it for 59m", "pay:7999": "does not hold it"} {
		key := billing(event, "refund")
		key.Topic = shop.Latched
		handled(t, store, key, true)
		o.run("key", "forget", "billing", event).wants(0, "The window of topic refunds "+says)
	}
	// A topic that nobody knows, and JSON.
	key := billing("pay:7001", "charge")
	key.Topic = "gone"
	handled(t, store, key, true)
	o.run("key", "forget", "billing", "pay:7001").wants(0, "by itself").lacks("topic gone")
	handled(t, store, key, true)
	var did []record
	o.run("key", "forget", "billing", "pay:7001", "-o", "json").wants(0).into(&did)
	if len(did) != 1 || did[0].Action != "forgotten" {
		t.Errorf("%+v", did)
	}
}

// A list is in the order in which people count, and says how much of it is not shown.
func TestKeyListInOrder(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	var some []record
	r := o.run("key", "list", "billing", "--contains", "pay:", "--limit", "10", "-o", "json").wants(0, "more of", "--limit 0 shows all")
	r.into(&some)
	if len(some) != 10 || some[1].Event != "pay:2" || some[9].Event != "pay:10" {
		t.Errorf("%s", r.out)
	}
	o.run("key", "list", "billing", "-o", "json").wants(0, "--limit 0").into(&some)
	if len(some) != 100 {
		t.Errorf("%d records without a limit", len(some))
	}
	o.run("key", "list", "billing", "--limit", "0", "-o", "json").wants(0).lacks("--limit").into(&some)
	if len(some) < shop.Payments {
		t.Errorf("%d records", len(some))
	}
}

// A claim that is held is shown and left alone.
func TestAHeldClaimIsLeftAlone(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	store, err := redisstore.New(redisstore.Config{Client: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	handled(t, store, billing("pay:9001", "charge"), false)
	o := at(t, s.Addr())
	o.run("key", "list", "--state", "in-progress").wants(0, "pay:9001", "in progress")
	o.run("key", "list", "--state", "done").wants(0, "No records")
	o.run("key", "get", "billing", "pay:9001").wants(0, "in progress", "claim ends")
	o.run("key", "forget", "billing", "pay:9001").wants(1, "is being handled", "Try again")
	o.run("key", "get", "billing", "pay:9001").wants(0, "in progress")
	// A record that can't be read keeps its handler from running; it can be forgotten.
	name := redisstore.Config{}.Name(billing("pay:9003", "charge"))
	if err := s.Client().Set(t.Context(), name, "\x00what?", 0).Err(); err != nil {
		t.Fatal(err)
	}
	exact := []string{"billing", "pay:9003", "--topic", "payments", "--handler", "charge"}
	o.run(append([]string{"key", "get"}, exact...)...).wants(1, "key forget")
	o.run(append([]string{"key", "forget"}, exact...)...).wants(0, "is forgotten")
	if n := s.Client().Exists(t.Context(), name).Val(); n != 0 {
		t.Error("it is still there")
	}
}

// A purge removes what is asked for, after a confirmation, and says how much; a dry run says the
// same and changes nothing.
func TestPurge(t *testing.T) {
	stores(t, func(t *testing.T, o tool, store dedupe.Store, flags []string) {
		with := func(args ...string) []string { return append(args, flags...) }
		for _, event := range []string{"pay:1", "pay:2", "pay:3"} {
			handled(t, store, billing(event, "charge"), true)
		}
		var did struct {
			Count  int
			DryRun bool `json:"dry_run"`
			More   bool
		}
		o.run(with("purge", "--before", "1h", "--dry-run")...).wants(0, "0 records")
		o.run(with("purge", "--before", "0s", "--dry-run", "-o", "json")...).wants(0).into(&did)
		if did.Count != 3 || !did.DryRun {
			t.Errorf("a dry run says %+v", did)
		}
		o.run(with("purge", "--before", "0s")...).wants(2, "--yes", "--dry-run")
		o.run(with("key", "list", "billing")...).wants(0, "pay:1", "pay:2", "pay:3")
		o.run(with("purge", "--before", "0s", "--limit", "1", "--yes", "-o", "json")...).wants(0).into(&did)
		if did.Count != 1 || did.DryRun || !did.More {
			t.Errorf("a purge of one says %+v", did)
		}
		o.run(with("purge", "--before", "0s", "--yes")...).wants(0, "2 records removed")
		o.run(with("key", "list", "billing")...).wants(0, "No records")
		if flags == nil {
			o.run("purge").wants(2, "by itself", "--before")
		} else {
			o.run(with("purge")...).wants(0, "0 records removed")
		}
	})
}

// migrate goes to a version and no further, never back, and prints what it would run.
func TestMigrate(t *testing.T) {
	d := testdb.Postgres(t)
	o := at(t, "127.0.0.1:1")
	o.env = append(o.env, "IDEMCTL_SQL="+d.DSN)
	o.run("migrate", "--to", "1", "--dry-run").wants(0, "from version 0 to 1", "nothing was changed")
	o.run("migrate", "--to", "1").wants(0, "from version 0 to 1")
	o.run("migrate", "--to", "1").wants(0, "has version 1 already")
	var did struct{ From, To, Newest int }
	o.run("migrate", "-o", "json").wants(0).into(&did)
	if did.From != 1 || did.To != sqlstore.SchemaVersion || did.Newest != sqlstore.SchemaVersion {
		t.Errorf("%+v", did)
	}
	o.run("migrate", "--to", "1").wants(0, "already")
	o.run("migrate", "--to", "99").wants(2, "no version 99")
	text, err := sqlstore.Schema(sqlstore.Postgres, "shop.handled", 1)
	if err != nil {
		t.Fatal(err)
	}
	if r := o.run("migrate", "--print", "--to", "1", "--table", "shop.handled").wants(0); r.out != text {
		t.Errorf("printed:\n%s", r.out)
	}
	o.env = o.env[:len(o.env)-1]
	o.run("migrate", "--print").wants(2, "--dialect")
	o.run("migrate", "--print", "--dialect", "mysql").wants(0, "CREATE TABLE")
	o.run("migrate", "--print", "--dialect", "oracle").wants(2, "oracle")
	o.run("migrate").wants(2, "--sql")
	// A mistyped name makes no new file.
	missing := filepath.Join(t.TempDir(), "typo.db")
	o.run("key", "list", "--sql", "sqlite:"+missing).wants(3, "typo.db")
	o.run("migrate", "--sql", "sqlite:"+missing, "--dry-run").wants(0, "would be made")
	if found, _ := filepath.Glob(missing); found != nil {
		t.Error("it is there")
	}
	o.run("migrate", "--sql", "sqlite:"+missing).wants(0)
	o.run("key", "list", "--sql", "sqlite:"+missing).wants(0, "No records")
}

// What only looks, and every dry run, writes nothing at all.
func TestDryRunsChangeNothing(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o, client := at(t, s.Addr()), s.Client()
	before := contents(t, client)
	for _, args := range dryRuns {
		r := o.run(args...)
		if r.code > 2 {
			t.Errorf("%s: exit code %d\n%s%s", r.line, r.code, r.out, r.err)
		}
		if after := contents(t, client); !maps.Equal(before, after) {
			t.Errorf("%s has changed something", r.line)
			before = after
		}
	}
}

var dryRuns = [][]string{
	{"check", "payments", "refunds", "new"}, {"topic", "list"}, {"topic", "show", "payments"}, {"duplicates", "payments"},
	{"window", "payments", "--for", "100ms", "--every", "50ms"}, {"latch", "list", "refunds"}, {"latch", "get", "refunds", "pay:7001"},
	{"key", "list"}, {"key", "get", "billing", "pay:1"}, {"key", "forget", "billing", "pay:1", "--dry-run"},
	{"purge", "--before", "0s", "--dry-run"}, {"purge", "--before", "0s"}, // nobody confirms it
	{"dead", "list", "payments"}, {"dead", "replay", "payments", "--all", "--dry-run"},
	{"dead", "replay", "payments", "--all", "--dry-run", "--handler", "charge"}, {"dead", "drop", "payments", "--all", "--dry-run"},
}
