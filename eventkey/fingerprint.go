package eventkey

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Fingerprint says what must be equal in two messages of one key. Where two
// messages have the same key and different fingerprints, one of them must not
// pass for the other: the publisher and the handling middleware report a conflict.
//
// Sum must be deterministic, safe for concurrent use, and should be a digest of a
// few dozen bytes, since it is stored with each key. An error says that the message is
// faulty: another try would not help.
//
// A fingerprint that can be misconfigured has a method Validate() error as well
// (see [ValidateFingerprint]); one that can tell where two payloads differ has a
// method FirstDifference(a, b []byte) string (see [FirstDifference]).
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

// ValidateFingerprint reports what the fingerprint's method Validate() error says,
// if it has one. Constructors call it. Nil is valid and stands for [Payload].
func ValidateFingerprint(f Fingerprint) error {
	if f == nil {
		return nil
	}
	return validate(f)
}

// Sum is the fingerprint f of a message, that of [Payload] where f is nil. Every error
// is [ErrInvalidMessage]; a fingerprint that panics is one.
func Sum(f Fingerprint, msg *message.Message) (sum []byte, err error) {
	if f == nil {
		f = Payload()
	}
	defer func() {
		if p := recover(); p != nil {
			sum, err = nil, invalid("the fingerprint %T panicked on message %q: %v", f, msg.UUID, p)
		}
	}()
	if sum, err = f.Sum(msg); err != nil {
		return nil, invalid("fingerprint of message %q: %w", msg.UUID, err)
	}
	return sum, nil
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
	paths  []string // sorted, each beginning with "$"
	tree   *pathNode
	only   bool
	faults error
}

// JSONWithout is the fingerprint of a JSON payload without the fields at the given
// paths, for those that differ on every retry:
//
//	eventkey.JSONWithout("received_at", "trace.span_id")
//
// White space and the order of names don't count; numbers count as written. A
// payload that is not JSON, or has a name twice in one object, counts byte by
// byte. Paths are made of names and indexes, as in "items[0].id"; a leading "$."
// may be left out.
func JSONWithout(paths ...string) Fingerprint { return newJSONPrint("JSONWithout", false, paths) }

// JSONOnly is the fingerprint of the fields of a JSON payload at the given paths;
// everything else may differ. A payload that is not JSON, or has none of the
// fields, is an error: with nothing to compare, no conflict would ever be found.
// Paths are as for [JSONWithout].
func JSONOnly(paths ...string) Fingerprint { return newJSONPrint("JSONOnly", true, paths) }

func newJSONPrint(name string, only bool, paths []string) *jsonPrint {
	f := &jsonPrint{tree: newPathTree(), only: only}
	var faults []error
	if len(paths) == 0 {
		faults = append(faults, fmt.Errorf("eventkey.%s needs at least one path", name))
	}
	if len(paths) > maxFields {
		faults = append(faults, fmt.Errorf("eventkey.%s takes at most %d paths", name, maxFields))
	}
	for _, path := range paths {
		full := path
		if !strings.HasPrefix(path, "$") {
			if full = "$." + path; strings.HasPrefix(path, "[") {
				full = "$" + path
			}
		}
		if _, err := parsePath(full[1:]); err != nil {
			faults = append(faults, fmt.Errorf("eventkey.%s, path %q: %w", name, path, err))
		}
		f.paths = append(f.paths, full)
	}
	f.faults = errors.Join(faults...)
	slices.Sort(f.paths)
	f.paths = slices.Compact(f.paths)
	if f.faults == nil {
		for slot, path := range f.paths {
			steps, _ := parsePath(path[1:])
			f.tree.insert(steps, slot)
		}
	}
	return f
}

func (f *jsonPrint) Validate() error { return f.faults }

func (f *jsonPrint) Sum(msg *message.Message) ([]byte, error) {
	if f.faults != nil {
		return nil, f.faults
	}
	var canonical []byte
	if f.only {
		values, err := f.values(msg.Payload)
		if err != nil {
			return nil, err
		}
		missing := 0
		for i, v := range values {
			canonical = appendQuoted(canonical, f.paths[i])
			if v == nil {
				missing++
			} else {
				canonical = v.appendTo(append(canonical, ':'), nil)
			}
			canonical = append(canonical, '\n')
		}
		if missing == len(values) {
			return nil, invalid("the payload has none of the fields %s", strings.Join(f.paths, ", "))
		}
	} else if root, err := parseJSON(msg.Payload); err == nil {
		canonical = root.appendTo(nil, f.tree)
	} else {
		// A byte that no JSON text begins with keeps the two kinds apart.
		canonical = append([]byte{0xFF}, msg.Payload...)
	}
	sum := sha256.Sum256(canonical)
	return sum[:], nil
}

// values are the values at the paths, nil for a missing one.
func (f *jsonPrint) values(payload []byte) ([]*jsonNode, error) {
	found := make([]jsonValue, len(f.paths))
	if err := pick(payload, f.tree, found); err != nil {
		return nil, invalid("the payload is unusable: %w", err)
	}
	nodes := make([]*jsonNode, len(found))
	for i, v := range found {
		switch v.kind {
		case 0:
		case kindObject, kindArray:
			node, err := parseJSON(v.raw)
			if err != nil {
				return nil, invalid("the payload is unusable: %w", err)
			}
			nodes[i] = node
		default:
			nodes[i] = &jsonNode{kind: v.kind, text: string(v.text())}
		}
	}
	return nodes, nil
}

// FirstDifference names the first field, in sorted order, in which two payloads
// differ for the fingerprint: "$.amount", or "$" where they differ as a whole. It
// is empty where they don't differ, are not both JSON, or the fingerprint's method
// panics.
func FirstDifference(f Fingerprint, a, b []byte) (field string) {
	defer func() {
		if recover() != nil {
			field = "" // that they differ is known without it
		}
	}()
	if d, ok := f.(interface{ FirstDifference(a, b []byte) string }); ok {
		return d.FirstDifference(a, b)
	}
	return firstDifference(a, b, nil)
}

func firstDifference(a, b []byte, without *pathNode) string {
	rootA, errA := parseJSON(a)
	rootB, errB := parseJSON(b)
	if errA != nil || errB != nil {
		return ""
	}
	return rootA.difference(rootB, "$", without)
}

// FirstDifference makes the difference respect the paths.
func (f *jsonPrint) FirstDifference(a, b []byte) string {
	if f.faults != nil {
		return ""
	}
	if !f.only {
		return firstDifference(a, b, f.tree)
	}
	valuesA, errA := f.values(a)
	valuesB, errB := f.values(b)
	if errA != nil || errB != nil {
		return ""
	}
	for i, path := range f.paths {
		if d := valuesA[i].difference(valuesB[i], path, nil); d != "" {
			return d
		}
	}
	return ""
}
