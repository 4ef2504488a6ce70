package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

//go:embed payments.jsonl
var shipped []byte

// maxLine is the longest line that is read.
const maxLine = 1 << 20

// payKey names a payment. An order can have several payments, so the order alone
// would not do.
var payKey = eventkey.Template("pay:{$.order_id}:{$.payment_id}")

// event is a line of the input.
type event struct {
	line    int
	payload []byte
	fields  map[string]string
	key     string
}

// identity tells business events apart without help of the library's keys.
func (e event) identity() [2]string { return [2]string{e.fields["order_id"], e.fields["payment_id"]} }

func (e event) String() string {
	s := e.fields["order_id"] + " " + e.fields["payment_id"]
	if amount := e.fields["amount"]; amount != "" {
		s += ", " + strings.TrimSpace(amount+" "+e.fields["currency"])
	}
	return s
}

func readInput(name string, stdin io.Reader) ([]event, error) {
	switch name {
	case "":
		return readEvents("payments.jsonl", bytes.NewReader(shipped))
	case "-":
		return readEvents("standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readEvents(name, f)
}

// readEvents reads everything before anything is published, so that a bad line
// leaves nothing half done. The key source itself says what it can't make a key of.
func readEvents(name string, r io.Reader) ([]event, error) {
	var events []event
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		payload := bytes.TrimSpace(lines.Bytes())
		if len(payload) == 0 {
			continue
		}
		e := event{line: n, payload: bytes.Clone(payload)}
		if err := e.parse(); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		events = append(events, e)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s, line %d: longer than %d bytes", name, n, maxLine)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("%s: no events", name)
	}
	return events, nil
}

func (e *event) parse() error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(e.payload, &raw); err != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	e.fields = make(map[string]string, len(raw))
	for name, value := range raw {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value) // a number, as it is written
		}
		e.fields[name] = text
	}
	key, err := payKey.Key("payments", message.NewMessage("", e.payload))
	var missing *eventkey.NoKeyError
	if errors.As(err, &missing) {
		return fmt.Errorf("the field %s is missing or empty", missing.Field)
	}
	if err == nil {
		err = eventkey.CheckKey(key)
	}
	e.key = key
	return err
}
