package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
)

// noWord is for commands that only have others: a word behind them is none of these.
func noWord(cmd *cobra.Command, given []string) error {
	if len(given) == 0 {
		return nil
	}
	return unknownCommand(cmd, given[0])
}

func unknownCommand(cmd *cobra.Command, word string) error {
	var all []string
	for _, c := range cmd.Commands() {
		all = append(all, c.Name())
	}
	return exit.Errorf(exit.Usage, "unknown command %q for %q", word, cmd.CommandPath()).
		Do("%s`%s --help` shows which there are.", didYouMean(similar(word, all)), cmd.CommandPath())
}

// flagError says in plain words what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	// The mistyped command stands in front of the flag that it does not have.
	if given := cmd.Flags().Args(); cmd.HasSubCommands() && len(given) > 0 {
		return unknownCommand(cmd, given[0])
	}
	meant := ""
	var unknown *pflag.NotExistError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		var all []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, "--"+f.Name) })
		meant = didYouMean(similar("--"+unknown.GetSpecifiedName(), all))
	case errors.As(err, &wrong):
		err = fmt.Errorf("--%s: %s", wrong.GetFlag().Name, valueFault(wrong))
	}
	return exit.Errorf(exit.Usage, "%w", err).Do("%s`%s --help` shows how it is used.", meant, cmd.CommandPath())
}

// valueFault is what a flag's own Set says, or what the parser of a number means.
func valueFault(wrong *pflag.InvalidValueError) string {
	var number *strconv.NumError
	if !errors.As(wrong, &number) {
		return wrong.Unwrap().Error()
	}
	if errors.Is(number, strconv.ErrRange) {
		return fmt.Sprintf("%q is out of range", wrong.GetValue())
	}
	kinds := map[string]string{"int": "no whole number, such as 100", "float64": "no number, such as 1.5", "bool": "neither true nor false"}
	return fmt.Sprintf("%q is %s", wrong.GetValue(), kinds[wrong.GetFlag().Value.Type()])
}

// didYouMean is the beginning of a hint; empty where nothing is meant.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "Did you mean " + oneOf(names) + "? "
}

// oneOf lists names: "a, b or c".
func oneOf(names []string) string {
	last := len(names) - 1
	if last <= 0 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

const (
	mostSlips   = 2 // of the keyboard
	mostSimilar = 5
)

// similar are the names that one may mean which does not exist: those that begin with it, or that a
// slip or two make of it. The closest come first.
func similar(name string, names []string) []string {
	type candidate struct {
		name  string
		slips int
	}
	var all []candidate
	lower := strings.ToLower(name)
	for _, n := range slices.Compact(slices.Sorted(slices.Values(names))) {
		slips := distance(lower, strings.ToLower(n))
		if n != "" && (slips <= min(mostSlips, len(name)/3) || strings.HasPrefix(strings.ToLower(n), lower)) {
			all = append(all, candidate{n, slips})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.slips - b.slips })
	var found []string
	for _, c := range all[:min(len(all), mostSimilar)] {
		found = append(found, c.name)
	}
	return found
}

// distance is Levenshtein's: how many letters must be put in, taken out or replaced.
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range from {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range to {
			replaced := diagonal
			if x != y {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(to)]
}
