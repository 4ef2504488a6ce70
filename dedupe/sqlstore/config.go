package sqlstore

import (
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/internal/invalid"
)

// DefaultTable is the default of [Config].
const DefaultTable = "idempotent_done"

// Config configures a [Store]. DB and Dialect are required.
type Config struct {
	// DB is the database that the handlers write to. It stays the caller's: Close does
	// not close it. A running handler holds one of its connections; one of a pool that is
	// bounded (SetMaxOpenConns) is never used for a claim, so that handlers that ask for
	// another don't wait for each other. Its driver must end a statement when the statement's context ends;
	// nothing else bounds it when the server falls silent. MySQL's connections must be
	// in autocommit mode, as they are unless the DSN says otherwise.
	DB *sql.DB
	// Dialect says which database it is.
	Dialect Dialect
	// Table is the name of the table, plain or with a schema; default:
	// idempotent_done. [Store.Migrate] makes it. A plain name is looked up in the
	// handler's transaction, too: name the schema if handlers set PostgreSQL's
	// search_path.
	Table string
	// Isolation is that of the handlers' transactions; default: the database's.
	Isolation sql.IsolationLevel
	// MaxInFlight is how many messages are handled at once, over all subscriptions with
	// this store. [Store.Check] warns about a pool that is not larger, and nothing else
	// looks at it; 0: it is not known, and Check does not say anything.
	MaxInFlight int
	// PurgeEvery is how often the store removes records that ran out; default:
	// [DefaultPurgeEvery], 10 minutes, up to a fifth less at random. One store of a table
	// purges at a time, and the next one waits until 0.8 of its PurgeEvery is over, however
	// many processes there are. What ran out is judged by the database's clock. The first
	// Claim starts it, and Close ends it. It works in batches of 500 rows, and rests between
	// them for as long as a batch takes. At least [MinPurgeEvery]; [NoPurge] turns it off.
	PurgeEvery time.Duration
	// Logger gets what has failed and nobody asked for: a purge. Nil: the default logger of
	// log/slog gets it.
	Logger watermill.LoggerAdapter
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,40}\.)?[A-Za-z_][A-Za-z0-9_]{0,40}$`)

func (c Config) resolve() (Config, error) {
	var faults invalid.Faults
	if c.DB == nil {
		faults.Add("DB is nil")
	}
	if !sqlrecord.IsDialect(string(c.Dialect)) {
		faults.Add("Dialect %q is unknown; there are %q, %q and %q", c.Dialect, Postgres, MySQL, SQLite)
	}
	invalid.Negative(&faults, "MaxInFlight", c.MaxInFlight)
	if c.PurgeEvery == 0 {
		c.PurgeEvery = DefaultPurgeEvery
	}
	faults.AddIf(c.PurgeEvery < MinPurgeEvery && c.PurgeEvery != NoPurge, "PurgeEvery %v is shorter than %v; NoPurge (%d) turns the purge off",
		c.PurgeEvery, MinPurgeEvery, NoPurge)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if err := checkTable(c.Table); err != nil {
		faults = append(faults, err)
	}
	return c, faults.Err("sqlstore: invalid config")
}

func checkTable(name string) error {
	if !tableName.MatchString(name) {
		return fmt.Errorf("Table %q is not a plain name, or one with a schema", name) //nolint:staticcheck // the name of the field
	}
	return nil
}
