package eventkey

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/jsonpath"
)

// maxFields bounds the fields of a template and the paths of a fingerprint.
const maxFields = 64

// Template makes the key from a text with fields in braces:
//
//	eventkey.Template("pay:{tenant}:{$.order_id}:{$.payment_id}")
//
// {name} is the metadata field of that name. A name is made of letters, digits,
// and the characters _ - . and /. {$.path.to[0]["odd.name"]} is a field of a JSON
// payload, by one of the paths that the package comment describes, without [*]; it must
// hold a string, a number or a boolean. Numbers and booleans are taken as they are
// written, so that 1e3 stays 1e3 and no digit is lost. A literal brace is written twice.
//
// A field that is missing, null or empty is [ErrNoKey], as is an empty payload. An
// object or array in the place of a field, a payload that is not JSON, a
// duplicate name in an object on the way to a field, and a value that is not valid
// UTF-8 are [ErrInvalidMessage].
//
// Different values give different keys: a value that contains a percent sign, a
// colon or another character that the template separates its fields with has it
// percent-encoded. Template("pay:{a}:{b}") gives what Join("pay", a, b) gives.
// Two fields therefore need between them at least one ASCII punctuation character
// other than the percent sign.
//
// A template that breaks these rules is reported by [Validate], and so by every
// constructor that takes a [Source].
func Template(t string) Source { return parseTemplate(t) }

type template struct {
	text    string
	parts   []part
	picker  *jsonpath.Picker // of the payload fields
	fields  int
	escapes byteSet
	faults  error
}

// part is a literal or a field.
type part struct {
	literal string
	field   string // as written between the braces; "" for a literal
	index   int    // of a payload field among those picked; -1 for a metadata field
}

func parseTemplate(text string) *template {
	t := &template{text: text, picker: jsonpath.NewPicker(), escapes: setOf("%:")}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("key template %q: "+format, append([]any{text}, args...)...))
	}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			t.parts = append(t.parts, part{literal: literal.String(), index: -1})
			literal.Reset()
		}
	}

	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case (c == '{' || c == '}') && i+1 < len(text) && text[i+1] == c:
			literal.WriteByte(c)
			i += 2
		case c == '}':
			fault("the } at byte %d closes nothing: write }} for a literal brace", i)
			i++
		case c == '{':
			size := braceIn(text[i+1:])
			if size < 0 || text[i+1+size] == '{' {
				fault("the { at byte %d is not closed: write {{ for a literal brace", i)
				if size < 0 {
					size = len(text) - i - 2
				} else {
					size--
				}
			} else {
				flush()
				if err := t.addField(text[i+1 : i+1+size]); err != nil {
					fault("%w", err)
				}
			}
			i += size + 2
		default:
			literal.WriteByte(c)
			i++
		}
	}
	flush()

	if !utf8.ValidString(text) {
		fault("it is not valid UTF-8")
	}
	for _, err := range t.separate() {
		fault("%w", err)
	}
	t.faults = errors.Join(faults...)
	return t
}

// braceIn is the index of the first brace in the text, -1 if there is none. A quoted name
// in a path may have braces in it.
func braceIn(text string) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"' && text[0] == '$':
			quoted = !quoted
		case (c == '{' || c == '}') && !quoted:
			return i
		}
	}
	return -1
}

// addField adds the field that stands between two braces.
func (t *template) addField(field string) error {
	index := -1
	switch {
	case field == "":
		return errors.New("a field {} has no name")
	case t.fields == maxFields:
		return fmt.Errorf("field {%s}: a template takes at most %d fields", field, maxFields)
	case field[0] == '$':
		steps, err := jsonpath.Parse(field)
		if err != nil {
			return fmt.Errorf("field {%s}: %w", field, err)
		}
		if slices.ContainsFunc(steps, func(st jsonpath.Step) bool { return st.Kind == jsonpath.Each }) {
			return fmt.Errorf("field {%s}: a key needs one value, [*] is each element of an array: write a number", field)
		}
		index = t.picker.Add(steps)
	default:
		for _, r := range field {
			if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./", r) {
				return fmt.Errorf("field {%s}: unexpected %q: a field is {metadata_name} or {$.path.in.payload}", field, r)
			}
		}
	}
	t.fields++
	t.parts = append(t.parts, part{field: field, index: index})
	return nil
}

// separate finds the characters to escape, and the fields that nothing separates.
func (t *template) separate() (faults []error) {
	previous, gap := "", ""
	for _, p := range t.parts {
		if p.field == "" {
			gap = p.literal
			continue
		}
		if previous != "" {
			separated := false
			for i := range len(gap) {
				if c := gap[i]; isPunct(c) && c != '%' {
					t.escapes.add(c)
					separated = true
				}
			}
			if !separated {
				faults = append(faults, fmt.Errorf("nothing separates {%s} from {%s}, so different values could give one key: "+
					"put a colon or other ASCII punctuation, except %%, between them", previous, p.field))
			}
		}
		previous, gap = p.field, ""
	}
	if t.fields == 0 {
		faults = append(faults, errors.New("it has no valid field, so every message would get the same key"))
	}
	return faults
}

// Validate reports all faults of the template.
func (t *template) Validate() error { return t.faults }

func (t *template) String() string { return fmt.Sprintf("eventkey.Template(%q)", t.text) }

// Key implements [Source].
func (t *template) Key(topic string, msg *message.Message) (string, error) {
	if t.faults != nil {
		return "", t.faults
	}
	// Keys and payload fields are few and short as a rule; these stay on the stack.
	var values [8]jsonpath.Value
	var buf [128]byte
	found, key := values[:0], buf[:0]

	for i := range t.parts {
		p := &t.parts[i]
		if p.field == "" {
			key = append(key, p.literal...)
			continue
		}
		if p.index < 0 {
			value := msg.Metadata.Get(p.field)
			if value == "" {
				return "", &NoKeyError{Field: p.field, Topic: topic, UUID: msg.UUID, inMetadata: true}
			}
			if !utf8.ValidString(value) {
				return "", t.fail(p, topic, msg, errors.New("its value is not valid UTF-8"))
			}
			key = appendEscaped(key, value, &t.escapes)
			continue
		}
		if len(found) == 0 {
			if jsonpath.Blank(msg.Payload) {
				return "", noKey(p.field, topic, msg)
			}
			if size := t.picker.Size(); size > len(values) {
				found = make([]jsonpath.Value, size)
			} else {
				found = values[:size]
			}
			if err := t.picker.Pick(msg.Payload, found); err != nil {
				return "", t.fail(p, topic, msg, fmt.Errorf("the payload is unusable: %w", err))
			}
		}
		var value []byte
		switch v := found[p.index]; v.Kind {
		case jsonpath.String, jsonpath.Number, jsonpath.Bool:
			value = v.Text()
		case jsonpath.Object, jsonpath.Array:
			return "", t.fail(p, topic, msg, fmt.Errorf("it is %v, a key needs a string, a number or a boolean", v.Kind))
		}
		if len(value) == 0 {
			return "", noKey(p.field, topic, msg)
		}
		if !utf8.Valid(value) {
			return "", t.fail(p, topic, msg, errors.New("its value is not valid UTF-8, or has half of a surrogate pair"))
		}
		key = appendEscaped(key, value, &t.escapes)
	}
	return string(key), nil
}

func (t *template) fail(p *part, topic string, msg *message.Message, err error) error {
	return invalid("key field {%s} of message %q for topic %q: %w", p.field, msg.UUID, topic, err)
}
