package idemctl_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/tests/idemctl/shop"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Nobody is told that all is well, or that there is nothing, of a name that is mistyped.
func TestMistypedNames(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	for _, args := range [][]string{
		{"dead", "list", "paymets"}, {"dead", "show", "paymets", "1-0"}, {"dead", "replay", "paymets", "1-0"}, {"dead", "replay", "paymets", "--all", "--dry-run"},
		{"dead", "drop", "paymets", "1-0"}, {"topic", "show", "paymets"}, {"duplicates", "paymets"}, {"window", "paymets"},
		{"latch", "list", "paymets"}, {"latch", "get", "paymets", "pay:1"},
	} {
		o.run(args...).wants(1, `no topic "paymets"`, "Did you mean payments?", "topic list")
	}
	o.run("dead", "list", "orders").wants(1, `no topic "orders"`).lacks("Did you mean")
	o.run("dead", "list", shop.Latched).wants(0, "No dead letters")

	o.run("check", "paymets").wants(0, `no topic "paymets" yet`, "Did you mean payments?", "The first publish makes it")
	o.run("check", "orders").wants(0, `no topic "orders" yet`).lacks("Did you mean")
	o.run("check", "orders", "--strict").wants(1)
	o.run("check", shop.Topic, "--group", "biling").wants(0, `no group "biling" yet`, "has billing, ledger", "Did you mean billing?")
	o.run("check", shop.Topic, "--group", shop.Service).wants(0).lacks("yet")

	o.run("dead", "list", shop.Topic, "--reason", "rejectd").wants(0, `the reason "rejectd"`, "Did you mean rejected?", "max deliveries (3), undecodable (1)")
	o.run("dead", "list", shop.Topic, "--reason", "rejected").wants(0, "max deliveries (3)").lacks("Did you mean")
	o.run("dead", "replay", shop.Topic, "--group", "biling", "--yes").wants(0, `the group "biling"`, "Did you mean billing?", "billing (4)")
	o.run("dead", "drop", shop.Topic, "--reason", "undecodible", "--yes").wants(0, "Did you mean undecodable?")
	o.run("dead", "list", shop.Topic, "--reason", "undecodable", "--key", "pay:9001").wants(0, "None of the 4").lacks("No dead letter has")
	var none []letter
	o.run("dead", "list", shop.Topic, "--reason", "rejectd", "-o", "json").wants(0).into(&none)
	if len(none) != 0 {
		t.Errorf("%+v", none)
	}
}
