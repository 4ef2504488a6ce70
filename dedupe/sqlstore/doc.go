// Package sqlstore is a transactional dedupe.Store in PostgreSQL, MySQL, MariaDB or
// SQLite, over database/sql and any driver. The claim is a row that the handler's own
// transaction inserts first; what the handler writes and the record that it did commit
// together. A handler's effect in the same database is there exactly once, whatever
// crashes.
//
//	store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Postgres})
//	err = store.Migrate(ctx)
//	once, err := middleware.New(middleware.Config{Store: store, ...}, logger)
//	router.AddHandler(..., once.Handler(sqlstore.WithTx(
//		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
//			_, err := tx.ExecContext(ctx, "INSERT INTO ledger ...")
//			return nil, err
//		})))
//
// Tested on PostgreSQL 15, MariaDB 10.11 and SQLite (modernc.org/sqlite). MySQL 8 has
// MariaDB's dialect here, and no test has run on it.
//
// The repository has this and the same with pgx as examples to run, in examples/stores.
//
// There is no lease. A claim lives as long as its database session: that of a dead
// process is rolled back by the database as soon as it notices; that of a frozen one
// holds on while its connection stands. Bound it where it matters:
// idle_in_transaction_session_timeout in PostgreSQL, idle_transaction_timeout in
// MariaDB, wait_timeout in MySQL. In SQLite a claim holds the whole database, for every key.
//
// A message that a handler publishes by itself, inside the transaction, is out before
// the commit; if that fails, it was published for nothing. Return messages instead: they
// are recorded in the transaction.
//
// Each running handler has a connection of the pool, and duplicates of a key that runs
// in the same process need none. The pool should hold a few more connections than
// handlers run at a time.
//
// From its first Claim to its Close a store removes what ran out; see Config.PurgeEvery.
// The schema is made by Store.Migrate, or by a tool from the files of [Migrations]. Names
// and keys are bytes in the table; the view <table>_readable shows them as text.
package sqlstore
