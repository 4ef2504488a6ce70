// Package testdb starts PostgreSQL and MariaDB for tests: on free loopback ports, as an
// unprivileged user, in folders of their own, ended with the test process.
//
//	db := testdb.Postgres(t)
//	pool := db.Open(t)
//
// There is one server of each kind in a test process, and each test gets a database of
// its own. TestMain must call Main. `make servers` brings the programs.
package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the drivers
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/tests/internal/port"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// nobody is who the servers run as where the tests run as root: PostgreSQL refuses to.
const nobody = 65534

const (
	startWithin = 60 * time.Second
	setUpWithin = 2 * time.Minute
)

// Database is one of a test's own.
type Database struct {
	// DSN is for the drivers pgx and mysql.
	DSN string

	server *server
}

// Postgres gives a new database of PostgreSQL 15.
func Postgres(t testing.TB) *Database { return fresh(t, "postgres") }

// MariaDB gives a new database of MariaDB 10.11.
func MariaDB(t testing.TB) *Database { return fresh(t, "mariadb") }

// Open opens it, and closes it with the test.
func (d *Database) Open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.server.driver, d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// server is a running server process.
type server struct {
	driver string
	dsn    func(database string) string
	cmd    *exec.Cmd
	dir    string
	free   func()
}

var shared = struct {
	sync.Mutex
	servers map[string]*server
}{servers: make(map[string]*server)}

// Main runs the tests of a package, ends the servers, those of testserver as well, and
// looks for leaked goroutines.
func Main(m *testing.M, ignore ...goleak.Option) { os.Exit(Run(m, ignore...)) }

// Run is Main for a TestMain that has something to do after it. It returns the exit code.
func Run(m *testing.M, ignore ...goleak.Option) int {
	code := m.Run()
	testserver.EndShared()
	shared.Lock()
	for _, s := range shared.servers {
		s.end()
	}
	shared.Unlock()
	if code == 0 {
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: %v\n", err)
			code = 1
		}
	}
	return code
}

func fresh(t testing.TB, kind string) *Database {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	s := shared.servers[kind]
	if s == nil {
		var err error
		if s, err = start(t, kind); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		shared.servers[kind] = s
	}
	name := fmt.Sprintf("test_%08x%08x", rand.Uint32(), rand.Uint32())
	admin, err := sql.Open(s.driver, s.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.ExecContext(context.Background(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return &Database{DSN: s.dsn(name), server: s}
}

func start(t testing.TB, kind string) (*server, error) {
	t.Helper()
	folder := testserver.Program(t, map[string]string{"postgres": "postgres-15/postgres", "mariadb": "mariadb-10.11/mariadbd"}[kind])
	number, free, err := port.Reserve()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "shared-"+kind+"-") //nolint:usetesting // it outlives this test
	if err != nil {
		free()
		return nil, err
	}
	s := &server{dir: dir, free: free}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			s.end()
			return nil, err
		}
	}
	if kind == "postgres" {
		err = s.postgres(filepath.Dir(folder), number)
	} else {
		err = s.mariadb(filepath.Dir(folder), number)
	}
	if err == nil {
		err = s.ready()
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *server) postgres(programs string, number int) error {
	data := filepath.Join(s.dir, "data")
	initdb := s.command(filepath.Join(programs, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err := s.finish(initdb); err != nil {
		return err
	}
	s.driver = "pgx"
	s.dsn = func(database string) string {
		if database == "" {
			database = "postgres"
		}
		return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", port.Addr(number), database)
	}
	return s.run(filepath.Join(programs, "postgres"), "-D", data, "-p", fmt.Sprint(number), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=400")
}

func (s *server) mariadb(programs string, number int) error {
	program, base := filepath.Join(programs, "mariadbd"), filepath.Join(programs, "root", "usr")
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(data, nobody, nobody); err != nil {
			return err
		}
	}
	args := []string{"--no-defaults", "--datadir=" + data, "--basedir=" + base, "--lc-messages-dir=" + filepath.Join(base, "share/mysql"),
		"--character-sets-dir=" + filepath.Join(base, "share/mysql/charsets"), "--skip-grant-tables"}
	tables, err := os.ReadFile(filepath.Join(base, "share/mysql/mysql_system_tables.sql"))
	if err != nil {
		return err
	}
	setUp := s.command(program, append(args, "--bootstrap", "--skip-networking")...)
	setUp.Stdin = strings.NewReader("CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\n" + string(tables))
	if err := s.finish(setUp); err != nil {
		return err
	}
	s.driver = "mysql"
	s.dsn = func(database string) string { return fmt.Sprintf("root@tcp(%s)/%s", port.Addr(number), database) }
	return s.run(program, append(args, "--bind-address=127.0.0.1", "--port="+fmt.Sprint(number), "--socket="+filepath.Join(s.dir, "sock"),
		"--pid-file="+filepath.Join(s.dir, "pid"), "--innodb-flush-log-at-trx-commit=2", "--max-connections=400")...)
}

// command makes one that ends with the test process.
func (s *server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = childAttr()
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// finish runs a command to its end.
func (s *server) finish(cmd *exec.Cmd) error {
	timer := time.AfterFunc(setUpWithin, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, tail(string(out)))
	}
	return nil
}

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }

func (s *server) run(program string, args ...string) error {
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	return nil
}

// ready returns when the server answers.
func (s *server) ready() error {
	db, err := sql.Open(s.driver, s.dsn(""))
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(startWithin); ; <-tick.C {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := db.PingContext(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(s.logFile())
			return fmt.Errorf("it does not answer: %w\n%s", err, tail(string(log)))
		}
	}
}

func (s *server) end() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // "signal: killed" is what was asked for
	}
	_ = os.RemoveAll(s.dir)
	s.free()
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
