package redisstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// Names are stored on servers, and change only with a migration.
func TestGoldenRecordNames(t *testing.T) {
	for want, k := range map[string]dedupe.Key{
		"idem:done:payments:orders:charge:pay%3A1001": {Namespace: "payments", Topic: "orders", Handler: "charge", Event: "pay:1001"},
		"idem:done:a%3Ab:%7Bx}::100%25":               {Namespace: "a:b", Topic: "{x}", Event: "100%"},
	} {
		got := prefix(DefaultPrefix).name(k)
		if got != want {
			t.Errorf("%+v is named %q, want %q", k, got, want)
		}
		if back, err := prefix(DefaultPrefix).parse(got); err != nil || back != k {
			t.Errorf("%q is read as %+v, %v", got, back, err)
		}
	}
	for _, bad := range []string{"", "idem:done", "idem:done:a:b", "other:a:b:c:d"} {
		if _, err := prefix(DefaultPrefix).parse(bad); !errors.Is(err, dedupe.ErrCorrupt) {
			t.Errorf("%q: %v, want ErrCorrupt", bad, err)
		}
	}
}

// assemble does what commit.lua does.
func assemble(at time.Time, kind string, body []byte) string {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	return kind + string(ms[2:]) + string(body)
}

func TestRecordIsReadAsWritten(t *testing.T) {
	at := time.UnixMilli(1795967808875)
	for _, fingerprint := range [][]byte{nil, []byte("one")} {
		for group, extra := range map[string]int{"": 0, "billing": 0, "audit": 2 + len("audit")} {
			for _, outputs := range [][][]byte{nil, {{}}, {[]byte("a"), {}, bytes.Repeat([]byte("x"), 300)}} {
				kind, body, err := encode("billing", dedupe.ClaimOptions{Token: "token", Fingerprint: fingerprint, Group: group}, outputs)
				if err != nil {
					t.Fatal(err)
				}
				tag := tagOf("token")
				value := assemble(at, kind, body)
				r, err := parseRecord(value)
				if err != nil {
					t.Fatal(err)
				}
				if !r.at.Equal(at) || r.tag != tag || !bytes.Equal(r.digest, storeutil.Digest(fingerprint)) || len(r.outputs) != len(outputs) || r.claim {
					t.Errorf("%d outputs: read as %+v", len(outputs), r)
				}
				if got := r.groupOf("billing"); got != group {
					t.Errorf("group %q, want %q", got, group)
				}
				for i := range outputs {
					if !bytes.Equal(r.outputs[i], outputs[i]) {
						t.Errorf("output %d differs", i)
					}
				}
				if len(outputs) == 0 && len(value) != 28+extra {
					t.Errorf("a settled record has %d bytes; above 28 Redis takes the next size of allocation", len(value))
				}
				for n := range value { // cut off anywhere, it is never read as something else
					if n == recordBytes+extra { // as though it were settled
						continue
					}
					if r, err := parseRecord(value[:n]); err == nil && len(r.outputs) >= len(outputs) {
						t.Errorf("cut off at %d of %d, it is read as %+v", n, len(value), r)
					}
				}
			}
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("")
	f.Add("ctoken")
	f.Add("d" + string(make([]byte, 40)))
	f.Add("e" + string(make([]byte, 27)) + "\x01x\xff")
	f.Fuzz(func(t *testing.T, value string) {
		r, err := parseRecord(value)
		if err != nil && !errors.Is(err, dedupe.ErrCorrupt) {
			t.Errorf("error %v", err)
		}
		size := 0
		for _, out := range r.outputs {
			size += len(out)
		}
		if size > len(value) {
			t.Errorf("%d bytes of outputs in %d", size, len(value))
		}
	})
}

func TestConfig(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, cfg := range map[string]Config{
		"no client":  {},
		"nil client": {Client: (*redis.Client)(nil)},
		"ring":       {Client: ring},
		"a tag":      {Client: client, Prefix: "{billing}:"},
		"no colon":   {Client: client, Prefix: "billing"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s, err := New(Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	if s.cfg.Prefix != "idem:done:" {
		t.Errorf("Prefix %q", s.cfg.Prefix)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
