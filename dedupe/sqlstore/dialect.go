package sqlstore

import (
	_ "embed"
	"strings"
)

// Dialect is a kind of database.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres" // PostgreSQL 11 or newer
	MySQL    Dialect = "mysql"    // MySQL 8.0 or newer, MariaDB 10.6 or newer
	SQLite   Dialect = "sqlite"   // SQLite 3.24 or newer
)

var (
	//go:embed schema_postgres.sql
	schemaPostgres string
	//go:embed schema_mysql.sql
	schemaMySQL string
	//go:embed schema_sqlite.sql
	schemaSQLite string
)

// migration are the statements that make the table, one by one: not all drivers take
// several at a time.
func (c Config) migration() []string {
	schema := map[Dialect]string{Postgres: schemaPostgres, MySQL: schemaMySQL, SQLite: schemaSQLite}[c.Dialect]
	index := strings.ReplaceAll(c.Table, ".", "_") + "_expires"
	text := strings.NewReplacer("{table}", c.Table, "{index}", index).Replace(schema)
	var all []string
	for part := range strings.SplitSeq(stripComments(text), ";") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

func stripComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "--")
		b.WriteString(strings.TrimRight(line, " \n"))
		b.WriteByte('\n')
	}
	return b.String()
}
