package server

import (
	"fmt"
	"strconv"
	"strings"
)

// StreamInfo is the part of XINFO STREAM that this library uses. It is read by
// name from the raw reply, so that fields of later servers do no harm.
type StreamInfo struct {
	Last   ID // last-generated-id
	Length int64
	Groups int64
	// The rest is there from Redis 8.6 on; MaxSize is 0 before.
	IDMPDuration int64 // seconds
	IDMPMaxSize  int64 // ids a producer
	PIDsTracked  int64
	IIDsTracked  int64
	IIDsAdded    int64
}

// ParseStreamInfo reads the reply of XINFO STREAM, a map or a flat list by the
// protocol version.
func ParseStreamInfo(reply any) (StreamInfo, error) {
	var info StreamInfo
	var last string
	set := func(name, value any) {
		n, _ := value.(int64)
		switch name {
		case "last-generated-id":
			last, _ = value.(string)
		case "length":
			info.Length = n
		case "groups":
			info.Groups = n
		case "idmp-duration":
			info.IDMPDuration = n
		case "idmp-maxsize":
			info.IDMPMaxSize = n
		case "pids-tracked":
			info.PIDsTracked = n
		case "iids-tracked":
			info.IIDsTracked = n
		case "iids-added":
			info.IIDsAdded = n
		}
	}
	switch fields := reply.(type) {
	case map[any]any:
		for name, value := range fields {
			set(name, value)
		}
	case []any:
		for i := 0; i+1 < len(fields); i += 2 {
			set(fields[i], fields[i+1])
		}
	default:
		return info, fmt.Errorf("XINFO STREAM: unexpected reply of type %T", reply)
	}
	var err error
	if info.Last, err = ParseID(last); err != nil {
		return info, fmt.Errorf("XINFO STREAM: %w", err)
	}
	return info, nil
}

// ID is an entry ID as two numbers, comparable by [ID.After].
type ID struct{ MS, Seq uint64 }

// ParseID reads "1700000000000-0".
func ParseID(s string) (ID, error) {
	ms, seq, ok := strings.Cut(s, "-")
	if ok {
		m, errM := strconv.ParseUint(ms, 10, 64)
		n, errS := strconv.ParseUint(seq, 10, 64)
		if errM == nil && errS == nil {
			return ID{MS: m, Seq: n}, nil
		}
	}
	return ID{}, fmt.Errorf("entry ID %q is not <milliseconds>-<sequence>", s)
}

// After reports whether a was made later than b.
func (a ID) After(b ID) bool {
	return a.MS > b.MS || a.MS == b.MS && a.Seq > b.Seq
}
