package cli

import (
	"cmp"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// migrated is what a migration did, in JSON.
type migrated struct {
	Store  string `json:"store"`
	From   int    `json:"from"`
	To     int    `json:"to"`
	Newest int    `json:"newest"`
	DryRun bool   `json:"dry_run"`
}

func newMigrate(a *app) *cobra.Command {
	var to int
	var dry, print bool
	var dialect string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of SQL stores to a version",
		Long: `Makes the table of records in a database, and what belongs to it, or brings it to a newer
version. It can be repeated, may run beside services, and never goes back.

--print writes the SQL statements in place of running them, for a database that only its
administrator changes: of the database of --sql, or of --dialect without any.`,
		Example: examples("idemctl migrate --sql postgres://localhost/shop --dry-run", "idemctl migrate --sql sqlite:shop.db",
			"idemctl migrate --sql mysql://root@localhost/shop --table handled --to 1", "idemctl migrate --print --dialect postgres > schema.sql"),
		Args: args(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if print {
				return printSchema(a, dialect, to)
			}
			if to < 0 || to > sqlstore.SchemaVersion {
				return exit.Errorf(exit.Usage, "there is no version %d of the schema", to).Do("The newest is %d.", sqlstore.SchemaVersion)
			}
			if file, isNew := a.NewFile(); dry && isNew {
				return a.screen.Show(migrated{Store: "sqlite at " + file + ", table " + a.Table, To: cmp.Or(to, sqlstore.SchemaVersion), Newest: sqlstore.SchemaVersion, DryRun: true},
					func(p *screen.Page) {
						p.Line("%s is not there; the file would be made with version %d; nothing was changed", file, cmp.Or(to, sqlstore.SchemaVersion))
					})
			}
			s, err := a.OpenStore(cmd.Context(), connect.KindSQL, !dry)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			m := migrated{Store: s.Where, To: to, Newest: sqlstore.SchemaVersion, DryRun: dry}
			if m.From, err = s.SQL.SchemaVersion(cmd.Context()); err != nil {
				return err
			}
			if to == 0 {
				m.To = sqlstore.SchemaVersion
			}
			m.To = max(m.To, m.From)
			if !dry {
				if err := s.SQL.MigrateTo(cmd.Context(), min(m.To, sqlstore.SchemaVersion)); err != nil {
					return err
				}
			}
			return a.screen.Show(m, func(p *screen.Page) {
				switch {
				case m.From >= m.To:
					p.Line("%s has version %d already", m.Store, m.From)
				case dry:
					p.Line("%s would go from version %d to %d; nothing was changed", m.Store, m.From, m.To)
				default:
					p.Line("%s went from version %d to %d", m.Store, m.From, m.To)
				}
			})
		},
	}
	cmd.Flags().IntVar(&to, "to", 0, "`VERSION` to stop at; default: the newest")
	cmd.Flags().BoolVar(&print, "print", false, "print the statements, and run none")
	cmd.Flags().StringVar(&dialect, "dialect", "", "for --print without --sql: `postgres|mysql|sqlite`")
	must(cmd.RegisterFlagCompletionFunc("dialect", cobra.FixedCompletions([]string{"postgres", "mysql", "sqlite"}, cobra.ShellCompDirectiveNoFileComp)))
	dryRun(cmd, &dry)
	return cmd
}

func printSchema(a *app, dialect string, to int) error {
	if dialect == "" && a.SQL != "" {
		d, err := a.Dialect()
		if err != nil {
			return err
		}
		dialect = string(d)
	}
	if dialect == "" {
		return exit.Errorf(exit.Usage, "--print needs to know the kind of database").Do("Add --dialect postgres, mysql or sqlite.")
	}
	text, err := sqlstore.Schema(sqlstore.Dialect(dialect), a.Table, to)
	if err != nil {
		return exit.Errorf(exit.Usage, "%w", err).Do("Dialects are postgres, mysql and sqlite, versions 1 to %d.", sqlstore.SchemaVersion)
	}
	if a.screen.JSON {
		return a.screen.Show(map[string]string{"dialect": dialect, "table": a.Table, "sql": text}, nil)
	}
	_, err = io.WriteString(a.screen.Out, text)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
