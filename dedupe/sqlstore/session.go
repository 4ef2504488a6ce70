package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// session is a connection with a transaction on it, prepared so that the transaction
// can't end unnoticed, and put back as it was.
type session struct {
	store *Store
	conn  *sql.Conn
	tx    *sql.Tx
	// cancel ends the transaction's own context. Drivers take the context of BEGIN for
	// COMMIT and ROLLBACK too, which have none of their own in database/sql.
	cancel    context.CancelFunc
	committed bool
	id        int64    // of the connection, in MySQL
	lock      string   // its name, in MySQL
	undo      []string // statements that put the connection back as it was
}

// takeLock takes a key's lock in MySQL, under a name of at most 64 bytes for the whole
// server, and returns that name, since the handler may change to another database.
const takeLock = "SELECT GET_LOCK(l.name, 0), l.name, @@autocommit, CONNECTION_ID() " +
	"FROM (SELECT CONCAT(?, LEFT(SHA2(CONCAT(COALESCE(NULLIF(?, ''), DATABASE(), ''), '.', ?), 256), 16)) AS name) AS l"

// begin opens a session. The transaction does not end with ctx: a handler that has done
// its work while the process shuts down may still be recorded.
func (s *Store) begin(ctx context.Context, id []byte, wait time.Duration) (_ *session, taken bool, err error) {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	sess := &session{store: s, conn: conn}
	defer func() {
		if err != nil || taken {
			sess.end(ctx)
		}
	}()
	switch s.cfg.Dialect {
	case MySQL:
		_, name := sqlrecord.Lock(id)
		database, table, qualified := strings.Cut(s.cfg.Table, ".")
		if !qualified {
			database, table = "", s.cfg.Table
		}
		var got sql.NullInt64
		var autocommit bool
		err = conn.QueryRowContext(ctx, takeLock, name, database, table).Scan(&got, &sess.lock, &autocommit, &sess.id)
		if err != nil {
			return nil, false, err
		}
		if got.Int64 != 1 {
			return nil, true, nil
		}
		sess.undo = []string{"DO RELEASE_LOCK('" + sess.lock + "')"}
		if !autocommit {
			err = errNoAutocommit
			return nil, false, err
		}
		// A deadlock's victim has its transaction ended by the server, and each
		// statement after it would commit by itself: an effect without a record.
		if _, err = conn.ExecContext(ctx, "SET autocommit = 0"); err != nil {
			return nil, false, err
		}
		sess.undo = append([]string{"SET autocommit = 1"}, sess.undo...)
	case SQLite:
		var before int
		if err = conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
			return nil, false, err
		}
		sess.undo = []string{fmt.Sprintf("PRAGMA busy_timeout = %d", before)}
		if _, err = conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", max(wait.Milliseconds(), 1))); err != nil {
			return nil, false, err
		}
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	sess.cancel = cancel
	stop := context.AfterFunc(ctx, cancel)
	sess.tx, err = conn.BeginTx(own, &sql.TxOptions{Isolation: s.cfg.Isolation})
	if !stop() { // database/sql is rolling it back
		err = errors.Join(context.Cause(ctx), err)
	}
	return sess, false, err
}

// errNoAutocommit refuses what can be neither used nor put back: under autocommit=0 a
// plain SELECT opens a transaction, and the next one on that connection, perhaps an
// hour later, sees what was there then.
var errNoAutocommit = fmt.Errorf("%w: the connections have autocommit=0, and what is done outside of a transaction "+
	"would never be committed; take it out of the DSN", dedupe.ErrInvalid)

// inserted is called once the claim's row is there. SQLite's COMMIT may have to wait
// for readers, and how long is the user's choice, not ours.
func (sess *session) inserted(ctx context.Context) error {
	if sess.store.cfg.Dialect != SQLite {
		return nil
	}
	_, err := sess.tx.ExecContext(ctx, sess.undo[0])
	return err
}

// commit commits, and gives up when ctx ends; nobody knows then whether it was done.
func (sess *session) commit(ctx context.Context) error {
	var err error
	if sess.store.cfg.Dialect == MySQL {
		// The driver's own COMMIT waits for a silent server for as long as TCP does.
		_, err = sess.tx.ExecContext(ctx, "COMMIT")
	} else {
		stop := context.AfterFunc(ctx, sess.cancel)
		err = sess.tx.Commit()
		stop()
	}
	sess.committed = err == nil
	return err
}

var errUnusable = errors.New("the connection can't be used: it is lost, or the handler has left its rows open")

// check looks at the connection before it is used, in MySQL, whose driver closes one on
// which rows are open; nobody could find out afterwards that it had not been lost.
func (sess *session) check() error {
	if sess.store.cfg.Dialect != MySQL {
		return nil
	}
	return sess.conn.Raw(func(conn any) error {
		if v, ok := conn.(driver.Validator); ok && !v.IsValid() {
			return errUnusable
		}
		return nil
	})
}

// stands asks MySQL whether it still has the session of a connection that can't be used,
// before that is closed.
func (sess *session) stands(ctx context.Context) bool {
	timer := time.NewTimer(lastLook) // the server ends one that was lost within that
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin) // for a pool that has no other connection
	defer cancel()
	var holder sql.NullInt64
	err := sess.store.cfg.DB.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", sess.lock).Scan(&holder)
	return err == nil && holder.Valid && holder.Int64 == sess.id
}

// cleanUp bounds what is done for a connection that is given back.
const cleanUp = 5 * time.Second

// end gives the connection back. The transaction, if there is one, has ended or is
// rolled back here. A connection that can't be put back as it was is closed. stood means
// that the server answered the rollback.
//
// It returns when ctx ends or cleanUp is over. What is left then goes on alone: a
// statement of a handler that still runs, or a driver that heeds no context, has the
// connection, and only its end gives it back.
func (sess *session) end(ctx context.Context) (stood bool) {
	bound := cleanUp
	if until, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		bound = min(bound, time.Until(until))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	done := make(chan bool, 1)
	go func() {
		defer cancel()
		done <- sess.giveBack(ctx)
	}()
	// The driver sees the end of ctx, too, and closes the connection then.
	timer := time.NewTimer(bound + grace)
	defer timer.Stop()
	select {
	case stood = <-done:
	case <-timer.C:
	}
	return stood
}

// grace is what a driver gets to close a connection in.
const grace = 100 * time.Millisecond

func (sess *session) giveBack(ctx context.Context) (stood bool) {
	ok := true
	if sess.tx != nil && !sess.committed && sess.store.cfg.Dialect == MySQL {
		// First, since the one of the driver waits as its COMMIT does. Not by conn: when
		// the connection is lost, that waits for the end of the transaction.
		_, err := sess.tx.ExecContext(ctx, "ROLLBACK")
		if errors.Is(err, sql.ErrTxDone) { // by the handler; without autocommit there is another
			_, err = sess.conn.ExecContext(ctx, "ROLLBACK")
		}
		ok = err == nil
	}
	if sess.tx != nil {
		stop := context.AfterFunc(ctx, sess.cancel)
		err := sess.tx.Rollback()
		stop()
		stood = err == nil
		ok = ok && (stood || errors.Is(err, sql.ErrTxDone))
	}
	if sess.cancel != nil {
		sess.cancel()
	}
	for _, text := range sess.undo {
		if ok {
			_, err := sess.conn.ExecContext(ctx, text)
			ok = err == nil
		}
	}
	if !ok {
		_ = sess.conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
	_ = sess.conn.Close() // it went back, or is closed already
	return stood
}
