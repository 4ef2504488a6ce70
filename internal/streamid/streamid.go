// Package streamid has the IDs of stream entries.
package streamid

import (
	"fmt"
	"strconv"
	"strings"
)

// ID is the ID of a stream entry: milliseconds and a sequence number. The zero ID is 0-0,
// which no entry has.
type ID struct{ MS, Seq uint64 }

// Parse reads "1700000000000-0". A sequence of 0 may be left out, as for the server's own
// commands: servers for tests report a group that has read nothing as "0".
func Parse(s string) (ID, error) {
	ms, seq, ok := strings.Cut(s, "-")
	if !ok {
		seq = "0"
	}
	m, errM := strconv.ParseUint(ms, 10, 64)
	n, errS := strconv.ParseUint(seq, 10, 64)
	if errM != nil || errS != nil {
		return ID{}, fmt.Errorf("entry ID %q is not <milliseconds>-<sequence>", s)
	}
	return ID{MS: m, Seq: n}, nil
}

// String is the ID as the server writes it.
func (a ID) String() string {
	return strconv.FormatUint(a.MS, 10) + "-" + strconv.FormatUint(a.Seq, 10)
}

// IsZero tells whether it is 0-0.
func (a ID) IsZero() bool { return a == ID{} }

// After tells whether a comes after b in a stream.
func (a ID) After(b ID) bool { return a.MS > b.MS || a.MS == b.MS && a.Seq > b.Seq }

// Compare is for sorting.
func (a ID) Compare(b ID) int {
	switch {
	case a.After(b):
		return 1
	case b.After(a):
		return -1
	}
	return 0
}

// Before is the highest ID below a; that of 0-0 is 0-0.
func (a ID) Before() ID {
	switch {
	case a.Seq > 0:
		a.Seq--
	case a.MS > 0:
		a.MS, a.Seq = a.MS-1, 1<<64-1
	}
	return a
}
