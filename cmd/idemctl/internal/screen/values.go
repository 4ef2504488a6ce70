package screen

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/onceward/watermill-idempotent/internal/span"
)

// Count writes a number with commas.
func Count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Plural is a number with what it counts: "1 entry", "2 entries".
func Plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + more
}

// Known is a number that is negative where it is not known.
func Known(n int64) string {
	if n < 0 {
		return "?"
	}
	return Count(n)
}

// Duration writes the two largest units: 4d3h, 1h20m, 2m5s, 3.2s, 40ms.
func Duration(d time.Duration) string { return span.Text(d) }

// Time writes a time in UTC, to the second; "" for the zero time.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// Ago writes a time together with how long ago that is, or how long until then.
func Ago(t, now time.Time) string {
	switch d := now.Sub(t); {
	case t.IsZero():
		return ""
	case d < 0:
		return Time(t) + ", in " + Duration(-d)
	default:
		return Time(t) + ", " + Duration(d) + " ago"
	}
}

// Bytes writes a size.
func Bytes(n int64) string {
	size := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if size < 1000 {
			if unit == "B" || size >= 100 {
				return fmt.Sprintf("%.0f %s", size, unit)
			}
			return fmt.Sprintf("%.1f %s", size, unit)
		}
		size /= 1000
	}
	return fmt.Sprintf("%.1f TB", size)
}

// Rate writes how often something comes.
func Rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0 a second"
	case perSecond < 0.0167:
		return strings.TrimSuffix(strconv.FormatFloat(perSecond*3600, 'f', 1, 64), ".0") + " an hour"
	case perSecond < 1:
		return strings.TrimSuffix(strconv.FormatFloat(perSecond*60, 'f', 1, 64), ".0") + " a minute"
	}
	text := strconv.FormatFloat(perSecond, 'f', 1, 64)
	if perSecond >= 100 {
		text = Count(int64(perSecond + 0.5))
	}
	return strings.TrimSuffix(text, ".0") + " a second"
}

// Printable shows what a terminal must not get: control characters of keys and payloads,
// which could move the cursor or worse, are escaped.
func Printable(text string) string {
	clean := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if strings.IndexFunc(text, clean) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Or is the text, or another one where it is empty.
func Or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// Text is Printable for a text of several lines, such as a payload: line breaks and tabs stay.
func Text(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		columns := strings.Split(strings.TrimSuffix(line, "\r"), "\t")
		for j, c := range columns {
			columns[j] = Printable(c)
		}
		lines[i] = strings.Join(columns, "\t")
	}
	return strings.Join(lines, "\n")
}
