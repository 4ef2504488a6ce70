package eventkey

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/jsonpath"
)

// Fingerprint says what must be equal in two messages of one key. Where two
// messages have the same key and different fingerprints, one of them must not
// pass for the other: publisher and middleware report a conflict.
//
// Sum must be deterministic, safe for concurrent use, and should be a digest of a
// few dozen bytes, since it is stored with each key. An error says that the message is
// faulty: another try would not help.
//
// It does not see the metadata traceparent, tracestate and baggage: the context of a trace is
// another one in each try.
//
// A fingerprint that can be misconfigured has a method Validate() error as well; it is
// called by the constructor that the fingerprint is given to. One that can name what
// differs has a method FirstDifference(a, b []byte) string, which gets two payloads and
// returns the path of a field, or nothing: it stands in the publisher's conflict.
type Fingerprint interface {
	Sum(msg *message.Message) ([]byte, error)
}

// FingerprintFunc is a [Fingerprint] made of a function.
type FingerprintFunc func(msg *message.Message) ([]byte, error)

// Sum implements [Fingerprint].
func (f FingerprintFunc) Sum(msg *message.Message) ([]byte, error) { return f(msg) }

// Validate reports a nil function.
func (f FingerprintFunc) Validate() error {
	if f == nil {
		return errors.New("eventkey.FingerprintFunc is nil")
	}
	return nil
}

type payloadPrint struct{}

// Payload is the default fingerprint: the SHA-256 digest of the payload. Every
// byte counts, metadata does not.
func Payload() Fingerprint { return payloadPrint{} }

func (payloadPrint) Sum(msg *message.Message) ([]byte, error) {
	sum := sha256.Sum256(msg.Payload)
	return sum[:], nil
}

// jsonPrint is JSONWithout or JSONOnly.
type jsonPrint struct {
	only    bool
	fields  []jsonField      // of JSONOnly, sorted
	picker  *jsonpath.Picker // of their steps up to the first [*]
	without jsonpath.Set     // of JSONWithout
	faults  error
}

// jsonField is a path of JSONOnly.
type jsonField struct {
	path  string
	from  string          // the path up to the first [*]
	rest  []jsonpath.Step // what follows it
	index int             // of the value at from
}

// JSONWithout is the fingerprint of a JSON payload without the fields at the given
// paths, for those that differ on every retry:
//
//	eventkey.JSONWithout("received_at", "trace.span_id", "variants[*].updated_at", `labels["a.b"]`)
//
// Whether such a field is there does not count either. White space, the order of names
// and a byte order mark don't count; numbers count as written. A payload that is not
// JSON, or has a duplicate name in an object, counts byte by byte. The package comment
// describes paths.
func JSONWithout(paths ...string) Fingerprint { return newJSONPrint("JSONWithout", false, paths) }

// JSONOnly is the fingerprint of the fields of a JSON payload at the given paths;
// everything else may differ. With [*] the number of elements counts as well. A payload
// that is not JSON, or has none of the fields, is [ErrInvalidMessage]: with nothing to
// compare, no conflict would ever be found. The package comment describes paths.
func JSONOnly(paths ...string) Fingerprint { return newJSONPrint("JSONOnly", true, paths) }

func newJSONPrint(name string, only bool, paths []string) *jsonPrint {
	f := &jsonPrint{only: only, picker: jsonpath.NewPicker()}
	var faults []error
	if len(paths) == 0 {
		faults = append(faults, fmt.Errorf("eventkey.%s needs at least one path", name))
	}
	if len(paths) > maxFields {
		faults = append(faults, fmt.Errorf("eventkey.%s takes at most %d paths", name, maxFields))
	}
	for _, path := range paths {
		steps, err := jsonpath.Parse(path)
		if err != nil {
			faults = append(faults, fmt.Errorf("eventkey.%s, path %q: %w", name, path, err))
			continue
		}
		f.without = append(f.without, steps)
		fixed := slices.IndexFunc(steps, func(st jsonpath.Step) bool { return st.Kind == jsonpath.Each })
		if fixed < 0 {
			fixed = len(steps)
		}
		f.fields = append(f.fields, jsonField{
			path: jsonpath.Format(steps), from: jsonpath.Format(steps[:fixed]),
			rest: steps[fixed:], index: f.picker.Add(steps[:fixed]),
		})
	}
	// One field may be written in two ways.
	slices.SortFunc(f.fields, func(a, b jsonField) int { return strings.Compare(a.path, b.path) })
	f.fields = slices.CompactFunc(f.fields, func(a, b jsonField) bool { return a.path == b.path })
	f.faults = errors.Join(faults...)
	return f
}

func (f *jsonPrint) Validate() error { return f.faults }

func (f *jsonPrint) Sum(msg *message.Message) ([]byte, error) {
	if f.faults != nil {
		return nil, f.faults
	}
	var canonical []byte
	if f.only {
		var err error
		if canonical, err = f.fieldsOf(msg.Payload); err != nil {
			return nil, err
		}
	} else if root, err := jsonpath.Read(msg.Payload); err == nil {
		canonical = root.AppendTo(nil, f.without)
	} else {
		// A byte that no JSON text begins with keeps the two kinds apart.
		canonical = append([]byte{0xFF}, msg.Payload...)
	}
	sum := sha256.Sum256(canonical)
	return sum[:], nil
}

// fieldsOf is the canonical form of the fields alone.
func (f *jsonPrint) fieldsOf(payload []byte) (canonical []byte, err error) {
	values, err := f.values(payload)
	if err != nil {
		return nil, err
	}
	some := false
	for _, field := range f.fields {
		canonical = jsonpath.AppendQuoted(canonical, field.path)
		if v := values[field.index]; v != nil && (len(field.rest) == 0 || v.IsArray()) {
			var found bool
			canonical, found = v.AppendAt(append(canonical, ':'), field.rest)
			some = some || found
		}
		canonical = append(canonical, '\n')
	}
	if !some {
		paths := make([]string, len(f.fields))
		for i, field := range f.fields {
			paths[i] = field.path
		}
		return nil, invalid("the payload has none of the fields %s", strings.Join(paths, ", "))
	}
	return canonical, nil
}

// values are the values that the picker finds, nil for a missing one.
func (f *jsonPrint) values(payload []byte) ([]*jsonpath.Node, error) {
	found := make([]jsonpath.Value, f.picker.Size())
	if err := f.picker.Pick(payload, found); err != nil {
		return nil, invalid("the payload is unusable: %w", err)
	}
	nodes := make([]*jsonpath.Node, len(found))
	for i, v := range found {
		var err error
		if nodes[i], err = v.Node(); err != nil {
			return nil, invalid("the payload is unusable: %w", err)
		}
	}
	return nodes, nil
}

// FirstDifference makes the difference respect the paths.
func (f *jsonPrint) FirstDifference(a, b []byte) string {
	if f.faults != nil {
		return ""
	}
	if !f.only {
		return jsonpath.FirstDifference(a, b, f.without)
	}
	valuesA, errA := f.values(a)
	valuesB, errB := f.values(b)
	if errA != nil || errB != nil {
		return ""
	}
	for _, field := range f.fields {
		if d := valuesA[field.index].DifferenceAt(valuesB[field.index], field.from, field.rest); d != "" {
			return d
		}
	}
	return ""
}
