package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// row is what became of one publish.
type row struct {
	event    event
	verdict  string
	entry    string
	attempts int64
	err      error
}

// result is what became of all of them.
type result struct {
	mode                  string
	rows                  []row
	duplicates, conflicts int64 // as told by verdicts
	entries               int64 // in the stream
	handlings             []handling
	seen                  map[[2]string]bool
}

func (r *result) add(row row) {
	if r.seen == nil {
		r.seen = make(map[[2]string]bool)
	}
	r.seen[row.event.identity()] = true
	r.rows = append(r.rows, row)
}

// print writes the tables, and one line for programs. A plain publisher has no
// verdicts: there the duplicates are the entries that the stream has too many.
func (r *result) print(w io.Writer) error {
	events, publishes := int64(len(r.seen)), int64(len(r.rows))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "LINE\tEVENT\tKEY\tVERDICT\tENTRY ID\tATTEMPTS")
	for _, row := range r.rows {
		key := row.event.key
		if r.mode == "plain" {
			key = "-"
		}
		_, _ = fmt.Fprintf(table, "%4d\t%s\t%s\t%s\t%s\t%8d\n", row.event.line, row.event, key, row.verdict, row.entry, row.attempts)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if r.mode == "plain" {
		r.duplicates = r.entries - events
		_, _ = fmt.Fprintf(w, "\n%d entries are too many: %d because the client sent again what got no reply, %d because the application did.\n",
			r.duplicates, r.entries-publishes, publishes-events)
	}
	if err := r.printHandlings(w); err != nil {
		return err
	}
	handled, skipped := counts(r.handlings)
	_, err := fmt.Fprintf(w, "\nevents=%d publishes=%d entries=%d duplicates=%d conflicts=%d mode=%s handled=%d skipped=%d\n",
		events, publishes, r.entries, r.duplicates, r.conflicts, r.mode, handled, skipped)
	return err
}

func (r *result) printHandlings(w io.Writer) error {
	events := make(map[string]event)
	for _, row := range r.rows {
		if _, ok := events[row.event.key]; !ok {
			events[row.event.key] = row.event
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nCONSUMER\tEVENT\tKEY\tWHAT IT DID")
	before := make(map[string]bool)
	for _, h := range r.handlings {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", h.consumer, events[h.Key], h.Key, h.told(before[h.Key]))
		before[h.Key] = true
	}
	return table.Flush()
}

// failures has the errors of all publishes that failed; a conflict is none, since
// refusing it is what was asked for.
func (r *result) failures() error {
	var all []error
	for _, row := range r.rows {
		if row.err != nil {
			all = append(all, fmt.Errorf("line %d: %w", row.event.line, row.err))
		}
	}
	return errors.Join(all...)
}
