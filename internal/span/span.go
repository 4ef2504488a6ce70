// Package span writes durations for people.
package span

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// Text writes the two largest units: 4d3h, 1h20m, 2m5s, 3.2s, 40ms. What is smaller is left out, not
// rounded: 2h59m59s has not been three hours.
func Text(d time.Duration) string {
	if d < 0 {
		return "-" + Text(-max(d, -1<<62))
	}
	two := func(large, small time.Duration, l, s string) string {
		text := fmt.Sprintf("%d%s", d/large, l)
		if rest := d % large / small; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, s)
		}
		return text
	}
	switch {
	case d >= day:
		return two(day, time.Hour, "d", "h")
	case d >= time.Hour:
		return two(time.Hour, time.Minute, "h", "m")
	case d >= time.Minute:
		return two(time.Minute, time.Second, "m", "s")
	case d >= time.Second:
		return strings.TrimSuffix(strconv.FormatFloat(d.Truncate(Step(d)).Seconds(), 'f', 1, 64), ".0") + "s"
	case d >= time.Millisecond:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d > 0:
		return "<1ms"
	}
	return "0s"
}

// Step is by how much a duration must grow, at least, to be written differently.
func Step(d time.Duration) time.Duration {
	switch {
	case d >= day:
		return time.Hour
	case d >= time.Hour:
		return time.Minute
	case d >= time.Minute:
		return time.Second
	case d >= time.Second:
		return 100 * time.Millisecond
	}
	return time.Millisecond
}
