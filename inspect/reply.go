package inspect

import "time"

// record is a part of a reply that has names: a map, or a list of names and values, by the
// protocol's version.
type record map[string]any

func recordOf(reply any) record {
	r := make(record)
	switch v := reply.(type) {
	case []any:
		for i := 0; i+1 < len(v); i += 2 {
			if name, ok := v[i].(string); ok {
				r[name] = v[i+1]
			}
		}
	case map[any]any:
		for k, value := range v {
			if name, ok := k.(string); ok {
				r[name] = value
			}
		}
	}
	return r
}

func recordsOf(reply any) []record {
	list, _ := reply.([]any)
	records := make([]record, len(list))
	for i, one := range list {
		records[i] = recordOf(one)
	}
	return records
}

func (r record) text(name string) string {
	s, _ := r[name].(string)
	return s
}

// number is one that is missing, or null, as -1.
func (r record) number(name string) int64 {
	n, ok := r[name].(int64)
	if !ok {
		return -1
	}
	return n
}

// millis is a time in milliseconds; -1 where it is missing.
func (r record) millis(name string) time.Duration {
	n := r.number(name)
	if n < 0 {
		return -1
	}
	return time.Duration(n) * time.Millisecond
}
