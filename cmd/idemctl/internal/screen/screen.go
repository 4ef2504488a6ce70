// Package screen is what the program writes: tables for people, JSON for programs, progress
// and questions on the terminal.
package screen

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Screen is where a command writes. Results go to Out; progress, questions and remarks go to
// Err, so that what a program reads has only results in it.
type Screen struct {
	In       io.Reader
	Out, Err io.Writer
	// JSON asks for JSON in place of tables.
	JSON bool
	// Width is how many columns texts may take.
	Width int
}

// DefaultWidth is that of a screen that is no terminal.
const DefaultWidth = 80

// New makes the screen of the process.
func New() *Screen {
	s := &Screen{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Width: DefaultWidth}
	if f, ok := s.Out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			s.Width = min(max(w, 40), 120)
		}
	}
	return s
}

// Show writes the value as JSON, or what people calls with a page.
func (s *Screen) Show(value any, people func(*Page)) error {
	if s.JSON {
		e := json.NewEncoder(s.Out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(value)
	}
	p := &Page{width: s.Width}
	people(p)
	_, err := io.WriteString(s.Out, p.String())
	return err
}

// Remark writes a line beside the results.
func (s *Screen) Remark(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }

// CanAsk reports whether there is somebody to answer a question.
func (s *Screen) CanAsk() bool { return isTerminal(s.In) && isTerminal(s.Err) }

// Ask asks a question that only "yes" answers with yes.
func (s *Screen) Ask(format string, args ...any) bool {
	fmt.Fprintf(s.Err, format+` Type "yes" to go on: `, args...)
	var answer string
	if _, err := fmt.Fscanln(s.In, &answer); err != nil && answer == "" {
		return false // nothing, or the end of the input, is no
	}
	return strings.EqualFold(answer, "yes")
}

func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
