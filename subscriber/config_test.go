package subscriber

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
)

func TestConfigFaultsAreToldAtOnce(t *testing.T) {
	_, err := New(Config{
		Block: 500 * time.Microsecond, MinIdle: 10 * time.Second, Heartbeat: 4 * time.Second,
		MaxInFlight: -1, ReadAhead: -1, ReadAheadBytes: -1, MaxHeld: -1, MaxDeliveries: -1, DeadLetterMaxLen: -1,
		CloseTimeout: -1, RedeliverAfter: -1, RedeliverMax: -1,
		Order: OrderKey, StartFrom: AfterID("yesterday"), Consumer: strings.Repeat("x", 200),
	}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Client is nil", "Group is empty", "Block 500µs", "MinIdle 10s is shorter than three heartbeats of 4s",
		"MaxInFlight -1", "ReadAhead -1", "ReadAheadBytes -1", "MaxHeld -1", "MaxDeliveries -1", "DeadLetterMaxLen -1",
		"CloseTimeout -1ns", "RedeliverAfter -1ns", "RedeliverMax -1ns", "OrderBy must say", "StartFrom: entry ID", "Consumer is longer",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for want, cfg := range map[string]Config{
		"exclude each other":  {Client: client, Group: "g", FanOut: true},
		"nil *redis.Client":   {Client: (*redis.Client)(nil), Group: "g"},
		"redis.Ring":          {Client: ring, Group: "g"},
		"OrderBy is for":      {Client: client, Group: "g", OrderBy: eventkey.Metadata("order")},
		"OrderBy:":            {Client: client, Group: "g", Order: OrderKey, OrderBy: eventkey.Template("{")},
		"Order(7)":            {Client: client, Group: "g", Order: 7},
		"longer than Heart":   {Client: client, Group: "g", Block: 20 * time.Second},
		"DeleteOnAck needs":   {Client: client, FanOut: true, DeleteOnAck: true},
		"handed back":         {Client: client, Group: "g", Consumer: "handback"},
		"above MaxHeld":       {Client: client, Group: "g", MaxHeld: 10, MaxInFlight: 11},
		"RedeliverMax 1s is":  {Client: client, Group: "g", RedeliverAfter: time.Minute, RedeliverMax: time.Second},
		"MinIdle 721h0m0s is": {Client: client, Group: "g", MinIdle: 721 * time.Hour},
		"Heartbeat 1ms is":    {Client: client, Group: "g", Heartbeat: time.Millisecond},
		"Group is longer tha": {Client: client, Group: strings.Repeat("g", 600)},
	} {
		if _, err := New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	cfg, err := Config{Client: client, Group: "g"}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	for name, same := range map[string]bool{
		"MinIdle 60s":           cfg.MinIdle == time.Minute,
		"Heartbeat 15s":         cfg.Heartbeat == 15*time.Second,
		"Block 500ms":           cfg.Block == 500*time.Millisecond,
		"CloseTimeout 10s":      cfg.CloseTimeout == 10*time.Second,
		"MaxInFlight 1":         cfg.MaxInFlight == 1,
		"ReadAhead 256":         cfg.ReadAhead == 256,
		"MaxHeld 2560":          cfg.MaxHeld == 2560,
		"MaxDeliveries 0":       cfg.MaxDeliveries == 0,
		"StartFrom beginning":   cfg.StartFrom.String() == "beginning",
		"Consumer is not empty": cfg.Consumer != "",
	} {
		if !same {
			t.Errorf("default is not %s: %+v", name, cfg)
		}
	}
	short, err := Config{Client: client, Group: "g", MinIdle: 400 * time.Millisecond, Order: OrderStream, MaxInFlight: 64}.resolve()
	if err != nil || short.Heartbeat != 100*time.Millisecond || short.Block != 100*time.Millisecond || short.MaxInFlight != 1 {
		t.Errorf("%+v, %v", short, err)
	}
}

// A blocked read must not run into the client's read time-out.
func TestBlockStaysBelowReadTimeout(t *testing.T) {
	client := redis.NewClient(&redis.Options{ReadTimeout: 200 * time.Millisecond})
	defer client.Close()
	if b := boundedBlock(client, time.Second); b != 100*time.Millisecond {
		t.Errorf("block is %v", b)
	}
	endless := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer endless.Close()
	if d := readTimeout(endless); d >= 0 {
		t.Errorf("a client without a read time-out has %v", d)
	}
	if b := boundedBlock(endless, time.Second); b != time.Second {
		t.Errorf("block is %v", b)
	}
}

func TestNewDoesNotDial(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	s, err := New(Config{Client: client, Group: "g"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := client.PoolStats().TotalConns; n != 0 {
		t.Errorf("%d connections", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Names that operators, stored entries and other versions of this library know.
func TestGoldenNames(t *testing.T) {
	for got, want := range map[string]string{
		group.HandbackConsumer: "handback", ReasonMaxDeliveries: "max deliveries", ReasonUndecodable: "undecodable",
		ReasonRejected: "rejected", DeadLetterTopic("orders"): "{orders}.dead",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
