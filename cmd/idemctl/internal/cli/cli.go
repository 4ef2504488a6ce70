// Package cli has the commands of idemctl, one file each. They connect, call the packages of
// the library, and show what those say; they have no rules of their own about topics,
// windows, records or dead letters.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/internal/redact"
)

// app is what all commands have in common.
type app struct {
	connect.Settings
	screen *screen.Screen
	output string
	// began is set once a command runs: errors of before are of the command line.
	began bool
}

// The forms of results.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// defaultTimeout is that of connections and replies.
const defaultTimeout = 10 * time.Second

// Run runs a command line, shows its error, and returns the exit code.
func Run(ctx context.Context, s *screen.Screen, args []string) exit.Code {
	a := &app{screen: s}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.OK
	}
	var own *exit.Error
	if !a.began && !errors.As(err, &own) { // cobra's: an unknown command, a missing argument
		err = exit.Errorf(exit.Usage, "%w", err).Do("`%s --help` shows how it is used.", cmd.CommandPath())
	}
	a.fail(err)
	return exit.Of(err)
}

// fail shows an error, and what to do.
func (a *app) fail(err error) {
	var own *exit.Error
	if errors.As(err, &own) && own.Err.Error() == "" { // everything is said
		return
	}
	if errors.Is(err, context.Canceled) {
		a.screen.Remark("Interrupted.")
		return
	}
	// One that joins several has a line for each; below the first one they are indented, so that no text
	// from elsewhere looks like a line of ours.
	lines := strings.Split(redact.Clean(err.Error()), "\n")
	a.screen.Remark("Error: %s", strings.Join(printables(lines), "\n  "))
	if own != nil && own.Hint != "" {
		a.screen.Remark("%s", own.Hint)
	}
}

// found ends a command with exit code 1 after its results have said why.
func found() error { return exit.Errorf(exit.Found, "") }

const groupLook, groupChange = "look", "change"

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "idemctl",
		Short:         "Look at and repair topics, windows, records and dead letters of watermill-idempotent",
		Long:          rootHelp,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noWord,
		RunE:          showHelp,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			switch a.output {
			case outputTable, outputJSON:
			default:
				return exit.Errorf(exit.Usage, "--output %q is unknown", a.output).Do("There are table and json.")
			}
			if a.Timeout <= 0 {
				return exit.Errorf(exit.Usage, "--timeout %v is not above zero", a.Timeout)
			}
			a.began, a.screen.JSON = true, a.output == outputJSON
			return nil
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.Redis, "redis", env("IDEMCTL_REDIS", ""), "`URL` of Redis; default: $IDEMCTL_REDIS, else redis://localhost:6379")
	flags.BoolVar(&a.Cluster, "cluster", os.Getenv("IDEMCTL_CLUSTER") == "true", "the server is a node of a cluster; without it, it is asked")
	flags.StringVar(&a.SQL, "sql", env("IDEMCTL_SQL", ""), "`DSN` of the database with the records; default: $IDEMCTL_SQL")
	flags.StringVar(&a.Table, "table", env("IDEMCTL_TABLE", sqlstore.DefaultTable), "`NAME` of the table with the records, as in sqlstore.Config")
	flags.StringVar(&a.Prefix, "prefix", env("IDEMCTL_PREFIX", redisstore.DefaultPrefix), "`TEXT` that the records' names in Redis begin with, as in redisstore.Config")
	a.Timeout = defaultTimeout
	flags.Var((*span)(&a.Timeout), "timeout", "how long to wait for a connection, or a reply")
	flags.StringVarP(&a.output, "output", "o", outputTable, "write results as `FORM`: table or json")
	hideDefaults(root, "redis", "sql")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp)))
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		text := reflow(screen.Or(c.Long, c.Short))
		if !c.IsAdditionalHelpTopicCommand() {
			text += "\n" + usage(c)
		}
		_, _ = io.WriteString(c.OutOrStdout(), text) // nobody reads on
	})
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(func(c *cobra.Command) error {
		_, err := io.WriteString(c.OutOrStderr(), usage(c))
		return err
	})
	root.AddGroup(&cobra.Group{ID: groupLook, Title: "Look:"}, &cobra.Group{ID: groupChange, Title: "Look and change:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupLook, newCheck(a), newTopic(a), newDuplicates(a), newWindow(a), newLatch(a))
	add(groupChange, newKey(a), newPurge(a), newDead(a), newMigrate(a))
	root.AddCommand(newTopicOfHelp("connection", "Addresses of servers and databases; passwords", connectionHelp),
		newTopicOfHelp("exit-codes", "What the exit codes mean, for scripts", exitHelp))
	return root
}

// env is an environment variable, or a default.
func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// hideDefaults keeps values of the environment, which may have passwords in them, out of
// the help.
func hideDefaults(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		cmd.PersistentFlags().Lookup(name).DefValue = ""
	}
}

// must is for what fails only if the program is wrong, in every run of it.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newTopicOfHelp makes a page for `idemctl help`.
func newTopicOfHelp(name, short, text string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text}
}

// parent makes a command that only has others.
func parent(use, short, long string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: noWord, RunE: showHelp}
	c.AddCommand(children...)
	return c
}

// showHelp is what a command does that needs another word: a person sees which, and a script
// gets the code of a wrong command line.
func showHelp(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	if cmd.HasParent() {
		return exit.Errorf(exit.Usage, "")
	}
	return nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// server opens Redis.
func (a *app) server(ctx context.Context) (*connect.Redis, error) {
	if a.Redis == "" {
		a.Redis = "redis://localhost:6379"
	}
	return a.OpenRedis(ctx)
}

// store opens the store of records that the flags name.
func (a *app) store(ctx context.Context, kind string) (*connect.Store, error) {
	if a.Redis == "" {
		a.Redis = "redis://localhost:6379"
	}
	return a.OpenStore(ctx, kind, false)
}

// confirm asks before something is removed in bulk. Without a terminal --yes must be given.
func (a *app) confirm(yes bool, what string) error {
	switch {
	case yes:
		return nil
	case !a.screen.CanAsk():
		return exit.Errorf(exit.Usage, "%s: nobody is there to confirm it", what).Do("Add --yes, or look first with --dry-run.")
	}
	if !a.screen.Ask("%s.", what) {
		return exit.Errorf(exit.Found, "not confirmed; nothing was changed")
	}
	return nil
}

// examples are indented for cobra.
func examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }

// dryRun adds the flag.
func dryRun(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVar(into, "dry-run", false, "say what would be done, and change nothing")
}

func yesFlag(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVarP(into, "yes", "y", false, "don't ask")
}

func storeFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "store", "", "where the records are: `redis|sql`; default: sql if --sql is given, else redis")
	must(cmd.RegisterFlagCompletionFunc("store", cobra.FixedCompletions([]string{connect.KindRedis, connect.KindSQL}, cobra.ShellCompDirectiveNoFileComp)))
}

// args checks how many arguments there are, and names the missing ones.
func args(names ...string) cobra.PositionalArgs {
	required := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			required++
		}
	}
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < required:
			return fmt.Errorf("%s is missing", names[len(got)])
		case len(got) > len(names):
			return fmt.Errorf("unexpected argument %q", got[len(names)])
		}
		for i, g := range got {
			if g == "" {
				return fmt.Errorf("%s is empty", strings.Trim(names[i], "[]"))
			}
		}
		return nil
	}
}
