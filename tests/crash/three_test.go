package crash_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const processes = 3

// TestFaultThreeAtOnce has three processes deliver each of 10,000 events at once, while
// handlers fail and replies of the store get lost at random. With the transactional
// stores every event has one effect; with all of them one record and one message, and no
// run begins while another holds the claim.
func TestFaultThreeAtOnce(t *testing.T) {
	events := 10_000
	if testing.Short() {
		events = 300
	}
	for name, l := range map[string]load{
		"redis":    {Store: "redis", Loss: 0.01},
		"postgres": {Store: "postgres", Loss: 0.005},
		"pgx":      {Store: "pgx", Loss: 0.005},
		"mysql":    {Store: "mysql", Loss: 0.005},
		"sqlite":   {Store: "sqlite"}, // without a link that could lose anything
	} {
		t.Run(name, func(t *testing.T) {
			l.Events = events
			switch name {
			case "redis":
				l.DSN = testserver.Start(t, testserver.Redis86).Addr()
			case "mysql":
				l.DSN = testdb.MariaDB(t).DSN
			case "sqlite":
				l.Events /= 10 // one writer at a time
				l.DSN = filepath.Join(t.TempDir(), "test.db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
			default:
				l.DSN = testdb.Postgres(t).DSN
			}
			threeAtOnce(t, l)
		})
	}
}

func threeAtOnce(t *testing.T, l load) {
	if err := l.createLedger(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	files := make([]string, processes)
	for n := range processes {
		one := l
		one.Number, one.Journal = n, filepath.Join(t.TempDir(), "journal")
		files[n] = one.Journal
		cmd := one.command(t)
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", n, err, out)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	all, lost := make([]history, l.Events), 0
	for _, file := range files {
		lost += readJournal(t, file, all)
	}
	t.Logf("%d replies lost", lost)
	if l.Loss > 0 && lost == 0 {
		t.Error("no reply was lost")
	}
	for e, h := range all {
		if err := h.check(l.transactional()); err != nil {
			t.Errorf("event %d: %v", e, err)
			break
		}
	}
	if !l.transactional() {
		return
	}
	rows, different, err := l.effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rows != l.Events || different != l.Events {
		t.Errorf("%d effects of %d events, want %d", rows, different, l.Events)
	}
}

func (l load) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), loadEnv+"="+string(text))
	return cmd
}

// span is when a run began and ended, by the machine's clock.
type span struct{ begin, end int64 }

// history is what the processes did with one event.
type history struct {
	runs      []span // whose claim was held until their end
	successes int
	records   int
	messages  map[string]bool
}

// readJournal adds what a process did, and returns how many replies it lost.
func readJournal(t *testing.T, file string, all []history) (lost int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		what, rest, _ := strings.Cut(lines.Text(), " ")
		if what == "lost" {
			_, err = fmt.Sscan(rest, &lost)
		} else {
			err = addLine(all, what, rest)
		}
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
	}
	return lost
}

func addLine(all []history, what, rest string) error {
	var e int
	var s span
	var uuid string
	switch what {
	case "run", "failed":
		if _, err := fmt.Sscan(rest, &e, &s.begin, &s.end); err != nil {
			return err
		}
		all[e].runs = append(all[e].runs, s)
		if what == "run" {
			all[e].successes++
		}
	case "record":
		if _, err := fmt.Sscan(rest, &e); err != nil {
			return err
		}
		all[e].records++
	case "message":
		if _, err := fmt.Sscan(rest, &e, &uuid); err != nil {
			return err
		}
		if all[e].messages == nil {
			all[e].messages = make(map[string]bool)
		}
		all[e].messages[uuid] = true
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// check tells what is wrong with an event's history. The result of a run whose commit
// could not be sent is lost with its transaction, so that it runs again; and where the
// commit's reply was lost nobody is told that it is recorded.
func (h history) check(transactional bool) error {
	slices.SortFunc(h.runs, func(a, b span) int { return int(a.begin - b.begin) })
	for i := 1; i < len(h.runs); i++ {
		if h.runs[i].begin < h.runs[i-1].end {
			return fmt.Errorf("a run began %d ns before the end of another", h.runs[i-1].end-h.runs[i].begin)
		}
	}
	if h.records > 1 || h.successes < 1 || !transactional && (h.records != 1 || h.successes != 1) {
		return fmt.Errorf("%d records of %d successes", h.records, h.successes)
	}
	if len(h.messages) != 1 {
		return fmt.Errorf("%d different messages, want 1", len(h.messages))
	}
	return nil
}
