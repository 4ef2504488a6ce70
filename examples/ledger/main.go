// Command ledger books payments into a database, while the process that does it is
// killed again and again, at every step, and shows that the sum of the ledger is the
// sum of the payments.
//
//	go run ./examples/ledger                                             # SQLite, nothing to set up
//	DATABASE_URL=postgres://user@localhost/db go run ./examples/ledger   # PostgreSQL
//
// The booking and the record that the event was handled are one transaction
// (dedupe/sqlstore). Each payment is delivered until it is acknowledged: the first
// delivery is killed before the claim, after it, after the booking, after the record or
// before the acknowledgement, in turn.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

const (
	workerEnv = "LEDGER_WORKER" // set in the processes that handle one delivery
	payments  = 20
)

// steps are where a worker may be killed.
var steps = []string{"before the claim", "after the claim", "after the booking", "after the record", "before the acknowledgement"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if task := os.Getenv(workerEnv); task != "" {
		err = work(ctx, task)
	} else {
		err = run(ctx, os.Getenv("DATABASE_URL"), payments, os.Stdout)
	}
	stop()
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "ledger: %v\n", err)
		os.Exit(1)
	}
}

// run delivers every payment until it is acknowledged.
func run(ctx context.Context, url string, payments int, out io.Writer) (err error) {
	if url == "" {
		dir, err := os.MkdirTemp("", "ledger-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		url = "sqlite:" + filepath.Join(dir, "ledger.db")
	}
	db, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()

	kills, want := 0, 0
	_, _ = fmt.Fprintln(out, "PAYMENT  AMOUNT  KILLED                      BOOKED BY THEN  BOOKED IN THE END")
	for n := range payments {
		p := payment{ID: fmt.Sprintf("p%d", 9001+n), Amount: 100 + n}
		want += p.Amount
		p.Die = steps[n%len(steps)]
		if err := deliver(ctx, db, p); err == nil {
			return fmt.Errorf("%s was to be killed %s, and was not", p.ID, p.Die)
		}
		kills++
		first, err := db.booked(ctx, p.ID)
		if err != nil {
			return err
		}
		killed := p.Die
		p.Die = ""
		for range 2 { // once more than needed: a duplicate
			if err := deliver(ctx, db, p); err != nil {
				return err
			}
		}
		last, err := db.booked(ctx, p.ID)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "%-7s  %6d  %-26s  %14d  %17d\n", p.ID, p.Amount, killed, first, last)
	}
	sum, err := db.sum(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\npayments=%d kills=%d sum=%d ledger=%d\n", payments, kills, want, sum)
	if sum != want {
		return fmt.Errorf("the ledger holds %d, the payments are %d", sum, want)
	}
	return nil
}

// deliver has a process of its own handle one delivery. It is acknowledged by ending
// well.
func deliver(ctx context.Context, db *database, p payment) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"="+p.encode(db))
	cmd.Stderr = os.Stderr
	return cmd.Run()
}
