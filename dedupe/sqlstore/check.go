package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// Check asks the database whether it can keep records, and writes nothing. Call it when the
// process starts, after Migrate if that is called, and with a deadline: it ends with ctx.
//
// The error says that the database is unavailable, or what is missing: the table, a column
// of it, a right of the user; it matches dedupe.ErrRefused then, or dedupe.ErrInvalid for
// connections without autocommit. The warnings are about what goes wrong under load.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	if err := s.check(ctx); err != nil {
		return nil, fmt.Errorf("sqlstore: check: %w", s.explain(err))
	}
	if w := sqlrecord.PoolWarning(s.cfg.DB.Stats().MaxOpenConnections, s.cfg.MaxInFlight); w != "" {
		warnings = append(warnings, w)
	}
	if w := s.purge.warning(); w != "" {
		warnings = append(warnings, w)
	}
	if s.cfg.Dialect == SQLite {
		var wait int
		if err := s.cfg.DB.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&wait); err == nil && wait == 0 {
			warnings = append(warnings, "The connections have no busy_timeout: a COMMIT fails as soon as a reader is in its way, and the handler runs again. Set it in the DSN.")
		}
	}
	return warnings, nil
}

func (s *Store) check(ctx context.Context) error {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if s.cfg.Dialect == MySQL {
		var autocommit bool
		if err := conn.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&autocommit); err != nil {
			return err
		}
		if !autocommit {
			return errNoAutocommit
		}
	}
	var missing []string
	lacks := func(right string, err error) error {
		if sqlrecord.KindOf(err) != sqlrecord.NoRight {
			return err
		}
		missing = append(missing, right)
		return nil
	}
	_, err = scan(conn.QueryRowContext(ctx, s.text.Record, []byte{}))
	if err = lacks("SELECT", err); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	for _, p := range s.text.Probes {
		_, err := conn.ExecContext(ctx, p.Text)
		if sqlrecord.KindOf(err) == sqlrecord.Busy { // SQLite, while somebody writes
			continue
		}
		if err := lacks(p.Right, err); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		rights := strings.Join(missing, ", ")
		return fmt.Errorf("%w: the user may not %s: GRANT %s ON %s TO the user", dedupe.ErrRefused, rights, rights, s.cfg.Table)
	}
	return nil
}
