package connect

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/internal/redact"
)

// Database is one that has answered.
type Database struct {
	DB      *sql.DB
	Dialect sqlstore.Dialect
	// Where is its address, without a password.
	Where string
}

// source is a data source name as it was understood.
type source struct {
	driver, dsn, where string
	dialect            sqlstore.Dialect
	file               string // of SQLite
}

const hintDSN = "The forms are postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@HOST:PORT/DATABASE and sqlite:FILE; see `idemctl help connection`."

// OpenSQL opens a database, and returns once it has answered. The file of an SQLite database
// must be there, unless create is set.
func (s Settings) OpenSQL(ctx context.Context, create bool) (*Database, error) {
	src, err := parseDSN(s.SQL, create)
	if err != nil {
		return nil, err
	}
	if src.file != "" && !create {
		if _, err := os.Stat(src.file); err != nil {
			return nil, exit.Errorf(exit.Unreachable, "the SQLite database can't be opened: %w", err).Do("Correct --sql (or IDEMCTL_SQL). `idemctl migrate` makes a new file.")
		}
	}
	db, err := sql.Open(src.driver, src.dsn)
	if err != nil {
		return nil, badDSN(s.SQL, err)
	}
	bounded, cancel := s.Bounded(ctx)
	defer cancel()
	if err := db.PingContext(bounded); err != nil {
		_ = db.Close()
		if errors.Is(err, context.Canceled) {
			return nil, err
		}
		text := redact.Clean(err.Error())
		if IsLogin(err) {
			return nil, exit.Errorf(exit.Refused, "the database at %s does not let the user in: %s", src.where, text).
				Do("Correct user, password and database in --sql, best by the environment: IDEMCTL_SQL=…")
		}
		return nil, exit.Errorf(exit.Unreachable, "the database at %s can't be reached: %s", src.where, text).
			Do("Correct --sql (or IDEMCTL_SQL), or start the database.")
	}
	return &Database{DB: db, Dialect: src.dialect, Where: src.where}, nil
}

// Dialect is the kind of database that is named; nobody is asked.
func (s Settings) Dialect() (sqlstore.Dialect, error) {
	src, err := parseDSN(s.SQL, false)
	return src.dialect, err
}

// NewFile is the file of an SQLite database that is not there yet.
func (s Settings) NewFile() (file string, isNew bool) {
	src, err := parseDSN(s.SQL, false)
	if err != nil || src.file == "" {
		return "", false
	}
	_, err = os.Stat(src.file)
	return src.file, errors.Is(err, fs.ErrNotExist)
}

// IsLogin reports that a database has answered and does not let the user in.
func IsLogin(err error) bool {
	var state interface{ SQLState() string }
	var my *mysql.MySQLError
	switch {
	case errors.As(err, &state):
		return strings.HasPrefix(state.SQLState(), "28") || state.SQLState() == "3D000"
	case errors.As(err, &my):
		return my.Number == 1044 || my.Number == 1045 || my.Number == 1049 || my.Number == 1698
	}
	return false
}

func badDSN(text string, err error) error {
	return exit.Errorf(exit.Usage, "--sql %q is no database: %s", redact.Clean(text), redact.Clean(err.Error())).Do(hintDSN)
}

// parseDSN tells databases apart by the form of their name.
func parseDSN(text string, create bool) (source, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case scheme == "postgres" || scheme == "postgresql":
		u, err := url.Parse(text)
		if err != nil {
			return source{}, badDSN(text, err)
		}
		return source{driver: "pgx", dsn: text, where: u.Host + u.Path, dialect: sqlstore.Postgres}, nil
	case strings.Contains(text, "dbname=") || strings.HasPrefix(text, "host="):
		return source{driver: "pgx", dsn: text, where: redact.Clean(text), dialect: sqlstore.Postgres}, nil
	case scheme == "mysql" && strings.HasPrefix(rest, "//"):
		return parseMySQL(text)
	case strings.Contains(text, "tcp(") || strings.Contains(text, "unix("):
		c, err := mysql.ParseDSN(text)
		if err != nil {
			return source{}, badDSN(text, err)
		}
		return ofMySQL(c), nil
	case scheme == "sqlite" || scheme == "sqlite3" || scheme == "file":
		file := strings.TrimPrefix(rest, "//")
		file, parameters, _ := strings.Cut(file, "?")
		if file == "" {
			return source{}, badDSN(text, errors.New("the name of the file is missing"))
		}
		q, err := url.ParseQuery(parameters)
		if err != nil {
			return source{}, badDSN(text, err)
		}
		if !q.Has("_pragma") {
			q.Add("_pragma", "busy_timeout(5000)")
		}
		if !q.Has("mode") && !create {
			q.Set("mode", "rw") // or a mistyped name would make a new database
		}
		dsn := "file:" + (&url.URL{Path: file}).EscapedPath() + "?" + q.Encode()
		return source{driver: "sqlite", dsn: dsn, where: file, dialect: sqlstore.SQLite, file: file}, nil
	}
	return source{}, badDSN(text, errors.New("its kind is not known"))
}

// parseMySQL understands the form of a URL, which the driver does not.
func parseMySQL(text string) (source, error) {
	u, err := url.Parse(text)
	if err != nil {
		return source{}, badDSN(text, err)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "3306")
	}
	c, err := mysql.ParseDSN("tcp(" + host + ")" + u.Path + "?" + u.RawQuery)
	if err != nil {
		return source{}, badDSN(text, err)
	}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	return ofMySQL(c), nil
}

func ofMySQL(c *mysql.Config) source {
	c.Logger = &mysql.NopLogger{}
	return source{driver: "mysql", dsn: c.FormatDSN(), where: c.Addr + "/" + c.DBName, dialect: sqlstore.MySQL}
}
