package chart

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
)

// Lines draws bars for a terminal that is so many columns wide: a full block for what was
// caught, a hatched one for what was missed. Marks stand between the bars, where their age is.
func (a Ages) Lines(width int) []string {
	bars := a.bars()
	if len(bars) == 0 {
		return nil
	}
	labels, labelWidth, numbers, top := make([]string, len(bars)), 0, len("CAUGHT"), int64(1)
	for i, b := range bars {
		labels[i] = labelOf(b)
		labelWidth = max(labelWidth, utf8.RuneCountInString(labels[i]))
		numbers = max(numbers, len(number(b.caught)), len(number(b.missed)))
		top = max(top, b.caught+b.missed)
	}
	room := max(width-labelWidth-2*(numbers+2)-3, 8)
	lines := []string{fmt.Sprintf("%-*s  %*s  %*s", labelWidth, "AGE", numbers, "CAUGHT", numbers, "MISSED")}
	marks := slices.SortedFunc(slices.Values(a.Marks), func(a, b Mark) int { return cmp.Compare(a.At, b.At) })
	mark := func(upTo time.Duration) {
		left := marks[:0]
		for _, m := range marks {
			if m.At > 0 && m.At <= upTo {
				text := m.Name + " " + screen.Duration(m.At) + " "
				lines = append(lines, strings.Repeat("─", max(width-utf8.RuneCountInString(text)-1, 2))+" "+strings.TrimSpace(text))
			} else {
				left = append(left, m)
			}
		}
		marks = left
	}
	for i, b := range bars {
		// What lies in a bar stands above it, unless the bar ends there.
		mark(max(b.from, b.to-1))
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%-*s  %*s  %*s  %s", labelWidth, labels[i],
			numbers, a.caught(b), numbers, number(b.missed), blocks(b, top, room)), " "))
	}
	mark(1 << 62)
	return lines
}

func labelOf(b bar) string {
	switch {
	case b.from == 0:
		return "up to " + screen.Duration(b.to)
	case b.to == 1<<62:
		return "above " + screen.Duration(b.from)
	}
	return screen.Duration(b.from) + " – " + screen.Duration(b.to)
}

// caught is how many of a bar were caught; "?" where nobody has measured that.
func (a Ages) caught(b bar) string {
	if a.Unmeasured {
		return "?"
	}
	return number(b.caught)
}

func number(n int64) string {
	if n == 0 {
		return "·"
	}
	return screen.Count(n)
}

// blocks draws at least one block of what there is any of.
func blocks(b bar, top int64, room int) string {
	cells := func(n int64) int {
		if n == 0 {
			return 0
		}
		return max(int(n*int64(room)/top), 1)
	}
	return strings.Repeat("█", cells(b.caught)) + strings.Repeat("▒", cells(b.missed))
}
