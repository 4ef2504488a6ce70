package idemctl_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/idemctl/shop"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// What is wrong with a command line ends with 2, before any server is asked.
func TestWrongCommandLines(t *testing.T) {
	o := at(t, "127.0.0.1:1")
	for line, says := range map[string]string{
		"nonsense":                           "unknown command",
		"topic":                              "COMMAND",
		"topic lst":                          "unknown command",
		"topic show":                         "TOPIC is missing",
		"topic show a b":                     `unexpected argument "b"`,
		"key get":                            "NAMESPACE is missing",
		"key get a:b":                        "as it stands in the log",
		"key list --state lost":              "done and in-progress",
		"check payments -o yaml":             "table and json",
		"check payments --timeout 0s":        "--timeout",
		"check payments --redis http://host": "redis://USER:PASSWORD@HOST:PORT/DB",
		"key list --sql oracle://host/x":     "postgres://",
		"key list --store sql":               "--sql",
		"key list --store etcd":              "redis and sql",
		"dead replay payments":               "--all",
		"dead replay payments 1-0 --all":     "exclude each other",
		"dead replay payments 1-0 --store redis --namespace x": "--handler",
		"dead drop payments":                            "which letters?",
		"dead list payments --from yesterday":           "2006-01-02",
		"window payments --for 0s":                      "above zero",
		"window payments --headroom 0.5":                "below 1",
		"window payments --ages ":                       "window.Ages",
		"duplicates payments --last 0":                  "above zero",
		"duplicates payments --event-key {$.a}{$.b}":    "--event-key",
		"duplicates payments --event-key":               "needs an argument",
		"latch list payments --limit -1":                "negative",
		"purge --limit -1 --before 1h":                  "negative",
		"duplicate payments --last 3":                   "Did you mean duplicates?",
		"topic lst -o json":                             "Did you mean list?",
		"tpic list":                                     "Did you mean topic?",
		"duplicates payments --pair 3":                  "Did you mean --pairs?",
		"duplicates payments --last many":               `--last: "many" is no whole number`,
		"duplicates payments --from 1h --to 2h":         "is not before --to",
		"window payments --headroom x":                  `--headroom: "x" is no number`,
		"check --timeout soon":                          `"soon" is no duration`,
		"check --strict=maybe":                          `"maybe" is neither true nor false`,
		"key get billing":                               "Type `idemctl key get billing EVENT`",
		"key list --after 1h --before 2h":               "is not before --before",
		"dead show payments 12x":                        `"12x" is not the ID of a dead letter`,
		"dead replay payments 12x":                      "`idemctl dead list TOPIC`",
		"dead drop payments 1-0 3":                      `"3" is not the ID of a dead letter`,
		"dead list payments --from 1h --to 2h":          "is not before --to",
		"check x --event-key :{$.a}{$.b}{$.c}":          "nothing separates",
		"--redis redis://u:hunter2@host:6379/x/y check": "--redis",
	} {
		args := strings.Split(line, " ")
		r := o.run(args...)
		if r.code != 2 && !strings.HasPrefix(line, "window payments --ages") {
			t.Errorf("%s: exit code %d\n%s%s", line, r.code, r.out, r.err)
		}
		if !strings.Contains(r.out+r.err, says) {
			t.Errorf("%s does not say %q:\n%s%s", line, says, r.out, r.err)
		}
		for _, raw := range []string{`\n`, "strconv", "time: "} {
			if strings.Contains(r.out+r.err, raw) {
				t.Errorf("%s shows a raw %q:\n%s%s", line, raw, r.out, r.err)
			}
		}
	}
}

// A server that is away, hangs, or does not let the user in, is told from one another, soon, and
// without the password.
func TestServersThatDontAnswer(t *testing.T) {
	o := at(t, "svc:hunter2@127.0.0.1:1")
	for _, args := range [][]string{{"check"}, {"topic", "list"}, {"key", "get", "a", "b"}, {"dead", "list", "payments"}, {"window", "payments"}} {
		o.run(args...).wants(3, "can't be reached", "IDEMCTL_REDIS")
	}
	s := testserver.Start(t, testserver.Redis86)
	s.User("svc", "+@all", "~*")
	at(t, "svc:hunter2@"+s.Addr()).run("check").wants(4, "does not let the user in", "WRONGPASS")
	at(t, "svc:secret@"+s.Addr()).run("topic", "list").wants(0)
	at(t, s.Addr()).run("topic", "list").wants(0, "No topics")
	s.Freeze()
	begin := time.Now()
	at(t, s.Addr()).run("topic", "list", "--timeout", "300ms").wants(3, "can't be reached")
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	s.Thaw()
	o.run("key", "list", "--sql", "postgres://svc:hunter2@127.0.0.1:1/shop").wants(3, "can't be reached", "IDEMCTL_SQL")
	o.run("key", "list", "--sql", "mysql://svc:hunter2@127.0.0.1:1/shop").wants(3, "can't be reached")
	o.run("key", "list", "--sql", "svc:hunter2@tcp(127.0.0.1:1)/shop").wants(3, "can't be reached")
	d := testdb.Postgres(t)
	o.run("key", "list", "--sql", strings.Replace(d.DSN, "/test_", "/missing_", 1)).wants(4, "does not let the user in")
	o.run("key", "list", "--sql", d.DSN).wants(4, "idempotent_done", "does not exist")
	o.run("check", "--redis", s.Addr(), "--sql", d.DSN).wants(1, "records", "does not exist")
}

// The tool works on each server, in a cluster that it is given one node of, behind Sentinel, and
// over a socket.
func TestEveryKindOfServer(t *testing.T) {
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := filled(t, kind)
			works(t, at(t, s.Addr()))
		})
	}
	t.Run("cluster", func(t *testing.T) {
		c := testserver.StartCluster(t, testserver.Redis86)
		fill(t, c.ClusterClient())
		for _, n := range c.Nodes() {
			works(t, at(t, n.Addr()))
		}
		works(t, at(t, n0(c)+"?addr="+c.Addrs()[1]))
	})
	t.Run("sentinel", func(t *testing.T) {
		s := testserver.StartSentinel(t, testserver.Redis86)
		fill(t, s.FailoverClient())
		works(t, at(t, s.Addrs()[0]+"?master_name="+s.MasterName))
	})
}

func n0(c *testserver.Cluster) string { return c.Addrs()[0] }

// works looks at everything that the shop has.
func works(t *testing.T, o tool) {
	t.Helper()
	o.run("check", shop.Topic, "--group", shop.Service).wants(0, shop.Topic, "ok")
	o.run("topic", "list").wants(0, shop.Topic, shop.Latched)
	o.run("topic", "show", shop.Topic).wants(0, shop.Service, shop.Lagging)
	o.run("duplicates", shop.Topic).wants(1, "pay:8001")
	o.run("latch", "get", shop.Latched, "pay:7001").wants(0, "billing")
	o.run("latch", "list", shop.Latched).wants(0, "pay:7005")
	o.run("key", "get", shop.Service, "pay:1").wants(0, shop.Handler)
	o.run("dead", "list", shop.Topic).wants(0, "pay:9001", "undecodable")
}

// A user who lacks a right is told which one.
func TestMissingRights(t *testing.T) {
	s := filled(t, testserver.Redis86)
	s.User("looker", "~*", "+@all", "-xinfo", "-xrange", "-scan")
	o := at(t, "looker:secret@"+s.Addr())
	o.run("topic", "show", shop.Topic).wants(4, "XINFO")
	o.run("topic", "list").wants(4, "+scan")
	o.run("dead", "list", shop.Topic).wants(4, "XRANGE")
	o.run("duplicates", shop.Topic).wants(4)
	o.run("key", "list").wants(4, "scan")
	s.User("service", "~payments", "~{payments}:idem:*", "+@all", "-xadd")
	at(t, "service:secret@"+s.Addr()).run("check", shop.Topic).wants(1, "FAULT", "XADD", "~idem:done:*")
	s.User("all", "~*", "+@all")
	at(t, "all:secret@"+s.Addr()).run("check", shop.Topic).wants(0)
}

// Ctrl-C ends a command, which says what it has seen until then.
func TestInterrupt(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd, err := o.command(ctx, "window", shop.Topic, "--for", "1h", "--every", "20ms", "--no-scan")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := s.Client().ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It has begun to watch when it has asked a few times.
	testserver.Eventually(t, within, func() error {
		stats, err := s.Client().Info(t.Context(), "commandstats").Result()
		if err != nil {
			return err
		}
		var calls int
		if _, after, found := strings.Cut(stats, "cmdstat_xinfo|stream:calls="); found {
			_, _ = fmt.Sscan(strings.ReplaceAll(after, ",", " "), &calls)
		}
		if calls < 8 {
			return fmt.Errorf("%d calls of XINFO STREAM", calls)
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is the verdict's
	if !strings.Contains(out.String(), "verdict") {
		t.Errorf("it does not say what it has seen: %s", out.String())
	}
}
