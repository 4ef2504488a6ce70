package sqlstore

// Dialect is a kind of database. Its statements are in internal/sqlrecord/statements.go, what
// its errors mean in errors.go beside it.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres" // PostgreSQL 11 or newer
	MySQL    Dialect = "mysql"    // MySQL 8.0 or newer, MariaDB 10.6 or newer
	SQLite   Dialect = "sqlite"   // SQLite 3.24 or newer
)
