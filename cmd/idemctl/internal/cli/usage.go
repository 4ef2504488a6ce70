package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
)

// helpWidth is how many columns a help text takes.
const helpWidth = 80

// wrapped are flags with their texts, for a terminal.
func wrapped(flags *pflag.FlagSet) string {
	return strings.TrimRight(flags.FlagUsagesWrapped(helpWidth), "\n ")
}

// usage shows a command's help: how it is called, examples first, since they are what is
// looked for at night, then flags; those of all commands only where `idemctl --help` asks for
// them, in one line elsewhere.
func usage(c *cobra.Command) string {
	var b strings.Builder
	line := func(lines ...string) {
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
	}
	line("Usage:")
	if c.HasAvailableSubCommands() {
		line("  " + c.CommandPath() + " COMMAND")
	} else {
		line("  " + c.UseLine())
	}
	if c.HasExample() {
		line("", "Examples:", c.Example)
	}
	commands(c, line)
	if c.HasAvailableLocalFlags() {
		line("", "Flags:", wrapped(c.LocalFlags()))
	}
	if c.HasAvailableInheritedFlags() {
		line("", "Flags of all commands (see `idemctl --help`):", "  "+strings.Join(names(c.InheritedFlags()), ", "))
	}
	if c.HasAvailableSubCommands() {
		line("", "`"+c.CommandPath()+" COMMAND --help` shows examples and flags of a command.")
	}
	return b.String()
}

// reflow breaks paragraphs of a help text anew. Lines that are indented stay as they are.
func reflow(text string) string {
	var b strings.Builder
	paragraph := ""
	flush := func() {
		if paragraph != "" {
			b.WriteString(strings.Join(screen.Wrap(paragraph, helpWidth), "\n") + "\n")
			paragraph = ""
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' {
			paragraph += " " + line
			continue
		}
		flush()
		b.WriteString(line + "\n")
	}
	flush()
	return b.String()
}

func names(flags *pflag.FlagSet) (all []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + "/" + name
		}
		all = append(all, name)
	})
	return all
}

// commands lists those below c, by groups, and the pages that are only read.
func commands(c *cobra.Command, line func(...string)) {
	list := func(title string, picks func(*cobra.Command) bool) {
		begun := false
		for _, sub := range c.Commands() {
			if !picks(sub) {
				continue
			}
			if !begun {
				line("", title)
				begun = true
			}
			name := sub.Name()
			if sub.IsAdditionalHelpTopicCommand() {
				name = "help " + name
			}
			line("  " + name + strings.Repeat(" ", max(17-len(name), 1)) + sub.Short)
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, func(sub *cobra.Command) bool { return sub.GroupID == g.ID })
	}
	list("Commands:", func(sub *cobra.Command) bool { return c.HasParent() && sub.IsAvailableCommand() })
	list("Beside them:", func(sub *cobra.Command) bool {
		return !c.HasParent() && sub.GroupID == "" && (sub.IsAvailableCommand() || sub.Name() == "help" || sub.IsAdditionalHelpTopicCommand())
	})
}
