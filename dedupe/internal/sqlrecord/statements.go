// Package sqlrecord is the table of records as dedupe/sqlstore and dedupe/pgxstore have it
// in common: its statements, their parameters, and what a database's error means. It talks
// to no database.
package sqlrecord

import (
	"fmt"
	"strings"
)

// The dialects, by the names that sqlstore.Dialect has for them.
const (
	Postgres = "postgres"
	MySQL    = "mysql"
	SQLite   = "sqlite"
)

// dialect is what differs. Statements have ? for parameters; bind makes them the
// database's.
type dialect struct {
	// now is the server's clock, in milliseconds since 1970, not the transaction's start.
	now string
	// insert makes the claim's row unless there is one, without an error and without
	// waiting for another transaction; parameters are lock, then the columns.
	insert   string
	numbered bool // $1 instead of ?
	// groupColumn counts the columns consumer_group of a table; its parameters are the
	// table's schema, empty for the one in force, and its name. addGroup adds it to a table
	// of an older version, without waiting long for running handlers, since everybody
	// else would wait behind it.
	groupColumn string
	addGroup    []string
	// remove deletes up to ? rows that ran out, without waiting for a row that somebody
	// has; empty where it takes Expired, Free and Delete.
	remove string
}

// over picks rows that ran out, the oldest first: no claim (expires_at is 0 until it is
// committed, and READ UNCOMMITTED shows it), and not the row of the purge's own.
// The clock is read once: PostgreSQL compares each entry of the index with a function that may
// change, and would go through all of it.
const over = "SELECT id FROM {table} WHERE expires_at <= (SELECT {now}) AND committed_at > 0 AND length(namespace) > 0 ORDER BY expires_at LIMIT ?"

const columns = "id, namespace, topic, handler, event, token, committed_at, expires_at, consumer_group"

var dialects = map[string]dialect{
	// An insert of a key that another transaction has inserted waits for that one's
	// end; the lock, which both ask for first and none waits for, prevents it. It goes
	// with the transaction. Under REPEATABLE READ the insert may fail for a row
	// that was committed since (40001), and is tried again in a new transaction.
	Postgres: {
		now: "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
		insert: "INSERT INTO {table} (" + columns + ") SELECT ?::bytea, ?::bytea, ?::bytea, ?::bytea, ?::bytea, ?::bytea, 0, 0, NULL::bytea " +
			"WHERE pg_try_advisory_xact_lock(?::bigint # ('{table}'::regclass::oid::bigint << 32)) ON CONFLICT (id) DO NOTHING",
		numbered: true,
		groupColumn: "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(CASE WHEN ?::text = '' THEN '' ELSE ?::text || '.' END || ?::text) " +
			"AND attname = 'consumer_group' AND NOT attisdropped",
		addGroup: []string{"SET LOCAL lock_timeout = '1s'", "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS consumer_group bytea"},
		// An array, which is made once and looked up by the primary key; IN may be planned as
		// a scan of the table.
		remove: "DELETE FROM {table} WHERE id = ANY (ARRAY(" + over + " FOR UPDATE SKIP LOCKED))",
	},
	// The lock is the session's here, and given back after the transaction's end. A
	// duplicate key is an error that ends the statement only.
	MySQL: {
		// UNIX_TIMESTAMP reads its argument in the session's zone, and is an hour off when
		// clocks are put back.
		now:    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
		insert: "INSERT INTO {table} (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, 0, 0, NULL)",
		groupColumn: "SELECT count(*) FROM information_schema.columns WHERE table_schema = CASE WHEN ? = '' THEN DATABASE() ELSE ? END " +
			"AND table_name = ? AND column_name = 'consumer_group'",
		addGroup: []string{"SET lock_wait_timeout = 1", "ALTER TABLE {table} ADD COLUMN consumer_group VARBINARY(2048)"},
	},
	// There is one writer at a time. Being the transaction's first statement, the
	// insert waits for it (busy_timeout); after a SELECT it would fail at once.
	SQLite: {
		now:         "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
		insert:      "INSERT INTO {table} (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, 0, 0, NULL) ON CONFLICT (id) DO NOTHING",
		groupColumn: "SELECT count(*) FROM pragma_table_info(?3, CASE WHEN ?1 = '' THEN 'main' ELSE ?2 END) WHERE name = 'consumer_group'",
		addGroup:    []string{"ALTER TABLE {table} ADD COLUMN consumer_group BLOB"},
		remove:      "DELETE FROM {table} WHERE id IN (" + over + ")",
	},
}

// Statements are those of a store.
type Statements struct {
	Insert, Record, Commit, Find, Settle, Drop, List string
	// Older picks records that were committed before a time; Purgeable counts these, and those
	// that ran out.
	Older, Purgeable string
	// Remove deletes up to so many rows that ran out. Where it is empty, Expired gives
	// their IDs, Free locks those that nobody has (see IDs), and Delete deletes one. Delete
	// takes no list: a table that is not much larger than the list is scanned, whatever
	// index is forced, up to the row of a claim, which it would wait for.
	Remove, Expired, Free, Delete string
	// TakePurge, KeepPurge and EndPurge are about the row that one store at a time has
	// while it purges; see PurgeKey.
	TakePurge, KeepPurge, EndPurge string
	GroupColumn                    string
	AddGroup                       []string
	Probes                         []Probe

	locks bool // Insert takes the key's lock, whose number is its last parameter
}

// Probe is a statement that does nothing, but for which the user needs a right.
type Probe struct{ Right, Text string }

// IsDialect reports whether there are statements for it.
func IsDialect(name string) bool {
	_, ok := dialects[name]
	return ok
}

// New makes the statements for a table in a dialect that [IsDialect].
func New(dialect, table string) Statements {
	d := dialects[dialect]
	bind := func(text string) string {
		text = strings.NewReplacer("{table}", table, "{now}", d.now).Replace(text)
		if !d.numbered {
			return text
		}
		var b strings.Builder
		n := 0
		for _, r := range text {
			if r == '?' {
				n++
				fmt.Fprintf(&b, "$%d", n)
			} else {
				b.WriteRune(r)
			}
		}
		return b.String()
	}
	const fields = "namespace, topic, handler, event, token, committed_at, expires_at, fingerprint, outputs, consumer_group, consumer_group IS NOT NULL, {now}"
	var addGroup []string
	for _, text := range d.addGroup {
		addGroup = append(addGroup, bind(text))
	}
	return Statements{
		locks:       d.numbered,
		GroupColumn: bind(d.groupColumn),
		AddGroup:    addGroup,
		Probes: []Probe{
			{"INSERT", bind("INSERT INTO {table} (" + columns + ") SELECT " + columns + " FROM {table} WHERE 1 = 0")},
			{"UPDATE", bind("UPDATE {table} SET expires_at = 0 WHERE 1 = 0")},
			{"DELETE", bind("DELETE FROM {table} WHERE 1 = 0")},
		},

		Insert:    bind(d.insert),
		Record:    bind("SELECT " + fields + " FROM {table} WHERE id = ?"),
		Commit:    bind("UPDATE {table} SET committed_at = {now}, expires_at = {now} + ?, fingerprint = ?, outputs = ?, consumer_group = ? WHERE id = ? AND token = ?"),
		Find:      bind("SELECT 1 FROM {table} WHERE id = ? AND token = ? AND committed_at > 0"),
		Settle:    bind("UPDATE {table} SET outputs = NULL WHERE id = ? AND token = ? AND outputs IS NOT NULL"),
		Drop:      bind("DELETE FROM {table} WHERE id = ? AND token = ?"),
		List:      bind("SELECT id, " + fields + " FROM {table} WHERE id > ? ORDER BY id LIMIT 200"),
		Older:     bind("SELECT id, token FROM {table} WHERE committed_at < ? AND length(namespace) > 0 LIMIT ?"),
		Purgeable: bind("SELECT count(*) FROM {table} WHERE (committed_at < ? OR expires_at <= (SELECT {now})) AND committed_at > 0 AND length(namespace) > 0"),
		Remove:    bind(d.remove),
		Expired:   bind(over),
		Free:      bind("SELECT id FROM {table} WHERE id IN ({ids}) AND expires_at <= {now} FOR UPDATE SKIP LOCKED"),
		Delete:    bind("DELETE FROM {table} WHERE id = ?"),
		TakePurge: bind("UPDATE {table} SET token = ?, committed_at = {now}, expires_at = {now} + ? WHERE id = ? " +
			"AND (expires_at <= {now} OR expires_at > {now} + ? OR token = ?) AND (committed_at <= {now} - ? OR committed_at > {now})"),
		KeepPurge: bind("UPDATE {table} SET expires_at = {now} + ? WHERE id = ? AND token = ?"),
		EndPurge:  bind("UPDATE {table} SET expires_at = {now} WHERE id = ? AND token = ?"),
	}
}
