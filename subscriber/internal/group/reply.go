package group

import (
	"fmt"
	"strconv"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// The helpers below read replies of scripts and commands. What has another shape than
// the contract says is an error, never a panic.

func list(reply any, least int) ([]any, error) {
	l, ok := reply.([]any)
	if !ok || len(l) < least {
		return nil, fmt.Errorf("unexpected reply %T of the server", reply)
	}
	return l, nil
}

func texts(reply any) ([]string, error) {
	l, err := list(reply, 0)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(l))
	for i, v := range l {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("unexpected %T in a reply of the server", v)
		}
		out[i] = s
	}
	return out, nil
}

// sets reads lists of IDs.
func sets(replies ...any) ([]map[string]bool, error) {
	out := make([]map[string]bool, len(replies))
	for i, reply := range replies {
		ids, err := texts(reply)
		if err != nil {
			return nil, err
		}
		out[i] = set(ids)
	}
	return out, nil
}

func set(ids []string) map[string]bool {
	if len(ids) == 0 {
		return nil
	}
	m := make(map[string]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// Pending is an entry of which only the ID and its delivery count are known.
type Pending struct {
	Name  string
	ID    streamid.ID
	Count int
}

// pairs reads ID, delivery count, ID, delivery count.
func pairs(reply any) ([]Pending, error) {
	l, err := list(reply, 0)
	if err != nil {
		return nil, err
	}
	out := make([]Pending, 0, len(l)/2)
	for i := 0; i+1 < len(l); i += 2 {
		p, err := newPending(l[i], l[i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func newPending(name, count any) (p Pending, err error) {
	p.Name, _ = name.(string)
	if p.ID, err = streamid.Parse(p.Name); err != nil {
		return p, err
	}
	switch n := count.(type) {
	case int64:
		p.Count = int(n)
	case string:
		p.Count, err = strconv.Atoi(n)
	default:
		err = fmt.Errorf("unexpected delivery count %T", count)
	}
	return p, err
}

// optionalID is zero for an empty text, or for none.
func optionalID(reply any) (streamid.ID, error) {
	text, _ := reply.(string)
	if text == "" {
		return streamid.ID{}, nil
	}
	return streamid.Parse(text)
}

func integer(reply any) int64 {
	n, _ := reply.(int64)
	return n
}

// fieldsOf reads a reply of XINFO, a map or a list by the protocol version.
func fieldsOf(reply any) map[string]any {
	fields := make(map[string]any)
	switch r := reply.(type) {
	case map[any]any:
		for name, value := range r {
			fields[fmt.Sprint(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(r); i += 2 {
			fields[fmt.Sprint(r[i])] = r[i+1]
		}
	}
	return fields
}
