package screen

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Page is what people read: tables, facts, sentences.
type Page struct {
	text  strings.Builder
	width int
}

// String is the page.
func (p *Page) String() string { return p.text.String() }

// Line writes a line as it is.
func (p *Page) Line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// Gap writes an empty line, unless the page is empty.
func (p *Page) Gap() {
	if p.text.Len() > 0 {
		p.text.WriteByte('\n')
	}
}

// Heading begins a part of the page.
func (p *Page) Heading(format string, args ...any) {
	p.Gap()
	p.Line(format, args...)
}

// Table writes rows under a head. Columns in right, by their numbers from 0, are numbers.
// Nothing is cut: what is in a cell can be copied into the next command.
func (p *Page) Table(head []string, rows [][]string, right ...int) {
	p.TableWith(head, rows, nil, right...)
}

// TableWith is Table with a text below each row, which is cut where the page ends.
func (p *Page) TableWith(head []string, rows [][]string, below []string, right ...int) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	write := func(row []string) {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if slices.Contains(right, i) {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
			line.WriteString("  ")
		}
		p.text.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	write(head)
	for i, row := range rows {
		write(row)
		if i < len(below) && below[i] != "" {
			p.Line("  %s", cut(below[i], p.width-2))
		}
	}
}

// cut shortens a text to a width.
func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}

// Fact is a name with a value.
type Fact struct{ Name, Value string }

// Facts writes names and values below each other; facts without a value are left out. Long
// values are wrapped beside their names.
func (p *Page) Facts(facts ...Fact) {
	width := 0
	for _, f := range facts {
		if f.Value != "" {
			width = max(width, utf8.RuneCountInString(f.Name))
		}
	}
	for _, f := range facts {
		if f.Value == "" {
			continue
		}
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(f.Name)+2)
		lines := Wrap(f.Value, p.width-width-2)
		p.Line("%s%s%s", f.Name, pad, strings.Join(lines, "\n"+strings.Repeat(" ", width+2)))
	}
}

// Sentences writes each as a paragraph of its own, behind a mark.
func (p *Page) Sentences(mark string, texts ...string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(mark))
	for _, text := range texts {
		p.Line("%s%s", mark, strings.Join(Wrap(text, p.width-len(indent)), "\n"+indent))
	}
}

// Wrap breaks a text at spaces. A word that is longer stays whole.
func Wrap(text string, width int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			switch {
			case line == "":
				line = word
			case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
				line += " " + word
			default:
				lines = append(lines, line)
				line = word
			}
		}
		lines = append(lines, line)
	}
	return lines
}
