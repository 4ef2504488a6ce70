package idemctl_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/idemctl/shop"
	"github.com/onceward/watermill-idempotent/tests/testserver"
	"github.com/onceward/watermill-idempotent/window"
)

// letter is what the tests read of a dead letter in JSON.
type letter struct {
	ID, Key, Reason, Error, Group, Payload string
	Deliveries                             int
	Metadata                               map[string]string
}

type outcomes struct {
	Matched, Replayed, Dropped, Gone, Failed int64
	AlreadyReplayed                          int64 `json:"already_replayed"`
	Forgotten                                int64 `json:"records_forgotten"`
	WouldReplay                              int64 `json:"would_replay"`
	WouldDrop                                int64 `json:"would_drop"`
	WouldForget                              int64 `json:"would_forget_records"`
	Groups                                   []struct {
		Group     string
		Consumers int
	}
	Letters []struct {
		ID, Key, Action, Error string
		EntryID                string `json:"entry_id"`
	}
}

func deadLetters(o tool, flags ...string) (all []letter) {
	o.t.Helper()
	o.run(append([]string{"dead", "list", shop.Topic, "-o", "json"}, flags...)...).wants(0).into(&all)
	return all
}

// One dead letter is found, looked at and replayed: its entry has marks of who did it, it is no dead
// letter any more, and the same command again does nothing twice.
func TestReplayOneDeadLetter(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o, client := at(t, s.Addr()), s.Client()
	all := deadLetters(o, "--key", "pay:9001")
	if len(all) != 1 || all[0].Deliveries != 3 || all[0].Group != shop.Service || !strings.Contains(all[0].Error, "connection refused") || all[0].Reason != subscriber.ReasonMaxDeliveries {
		t.Fatalf("%+v", all)
	}
	id := all[0].ID
	o.run("dead", "list", shop.Topic).wants(0, id, "pay:9001", "connection refused")
	o.run("dead", "show", shop.Topic, id).wants(0, "max deliveries", "connection refused", shop.Payload(9001))
	var one letter
	o.run("dead", "show", shop.Topic, id, "-o", "json").wants(0).into(&one)
	if one.Payload != shop.Payload(9001) || one.Metadata["idempotency_key"] != "pay:9001" {
		t.Errorf("%+v", one)
	}
	length := client.XLen(t.Context(), shop.Topic).Val()
	o.run("dead", "replay", shop.Topic, id, "--dry-run").wants(0, "would replay", "nothing was changed")
	if n := client.XLen(t.Context(), shop.Topic).Val(); n != length {
		t.Fatalf("a dry run has added %d entries", n-length)
	}
	var did outcomes
	o.run("dead", "replay", shop.Topic, id, "--dry-run", "-o", "json").wants(0).into(&did)
	if did.Replayed != 0 || did.WouldReplay != 1 || len(did.Letters) != 1 || did.Letters[0].Action != "would replay" {
		t.Errorf("a dry run says that it did something: %+v", did)
	}
	did = outcomes{}
	o.run("dead", "replay", shop.Topic, id, "-o", "json").wants(0).into(&did)
	if did.Replayed != 1 || len(did.Letters) != 1 || did.Letters[0].EntryID == "" || did.Letters[0].Action != "replayed" {
		t.Fatalf("%+v", did)
	}
	if n := client.XLen(t.Context(), shop.Topic).Val(); n != length+1 {
		t.Errorf("%d entries were added, want 1", n-length)
	}
	entry, err := client.XRange(t.Context(), shop.Topic, did.Letters[0].EntryID, did.Letters[0].EntryID).Result()
	if err != nil || len(entry) != 1 || !strings.Contains(fmt.Sprint(entry[0].Values["metadata"]), "anna") {
		t.Errorf("the entry does not say who has replayed it: %v %v", entry, err)
	}
	// Who gets it is said, and whether anybody is there.
	if len(did.Groups) != 2 || did.Groups[0].Group != shop.Service || did.Groups[0].Consumers != 0 || did.Groups[1].Group != shop.Lagging || did.Groups[1].Consumers != 1 {
		t.Errorf("groups %+v", did.Groups)
	}
	o.run("dead", "replay", shop.Topic, id).wants(1, "gone").lacks("key get")
	o.run("dead", "show", shop.Topic, id).wants(1, "no such dead letter", "dead list")
	if n := client.XLen(t.Context(), shop.Topic).Val(); n != length+1 {
		t.Errorf("%d entries were added, want 1", n-length)
	}
	o.run("duplicates", shop.Topic, "--only", "pay:9001").wants(0, "deliberate attempt")
	o.run("dead", "replay", shop.Topic, deadLetters(o, "--key", "pay:9002")[0].ID).
		wants(0, "billing nobody: it waits for the next subscription", "ledger 1 consumer, last seen", "idemctl key get billing pay:9002", "idemctl dead list payments")
}

// Letters are picked by reason, time and error; more than one needs a confirmation; what can't be
// replayed is said, and stays.
func TestReplayAndDropSeveral(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	if n := len(deadLetters(o)); n != shop.Failing+1 {
		t.Fatalf("%d dead letters", n)
	}
	for flags, want := range map[string]int{
		"--reason undecodable": 1, "--reason none": 0, "--error REFUSED": shop.Failing, "--group billing": shop.Failing + 1, "--group other": 0,
		"--from 1h": shop.Failing + 1, "--to 1h": 0, "--limit 2": 2, "--key pay:9002": 1,
	} {
		if n := len(deadLetters(o, strings.Fields(flags)...)); n != want {
			t.Errorf("%s picks %d, want %d", flags, n, want)
		}
	}
	newest, oldest := deadLetters(o, "--newest")[0].ID, deadLetters(o)[0].ID
	if newest <= oldest {
		t.Errorf("the newest is %s, the oldest %s", newest, oldest)
	}
	o.run("dead", "replay", shop.Topic, "--error", "refused").wants(2, "3 dead letters", "--yes", "--dry-run")
	o.run("dead", "replay", shop.Topic, "--error", "refused", "--handler", "charge", "--keep", "--yes").wants(0, "3 dead letters: 3 replayed")
	// Kept letters are recognised, unless another copy is asked for.
	o.run("dead", "replay", shop.Topic, "--error", "refused", "--keep", "--yes").wants(0, "3 replayed before")
	o.run("dead", "replay", shop.Topic, "--error", "refused", "--keep", "--yes", "--again", "1").wants(0, "3 replayed")
	var did outcomes
	o.run("dead", "replay", shop.Topic, "--all", "--yes", "-o", "json").wants(1).into(&did)
	if did.Matched != shop.Failing+1 || did.Failed != 1 || did.AlreadyReplayed != shop.Failing {
		t.Errorf("%+v", did)
	}
	if left := deadLetters(o); len(left) != 1 || left[0].Reason != subscriber.ReasonUndecodable {
		t.Errorf("left: %+v", left)
	}
	o.run("dead", "drop", shop.Topic, "--reason", "undecodable", "--dry-run").wants(0, "would drop", "nothing was changed")
	did = outcomes{}
	o.run("dead", "drop", shop.Topic, "--reason", "undecodable", "--dry-run", "-o", "json").wants(0).into(&did)
	if did.Dropped != 0 || did.WouldDrop != 1 || did.Letters[0].Action != "would drop" || did.Groups != nil {
		t.Errorf("a dry run says that it did something: %+v", did)
	}
	o.run("dead", "drop", shop.Topic, deadLetters(o)[0].ID).wants(0, "1 dropped")
	o.run("dead", "list", shop.Topic).wants(0, "No dead letters")
	o.run("dead", "drop", shop.Topic, "1-1").wants(1, "1 not there")
	o.run("dead", "drop", shop.Topic, "--all", "--yes").wants(0, "No dead letter")
}

// A replay may forget the record first, in whichever store it is.
func TestReplayForgetsTheRecord(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o, client := at(t, s.Addr()), s.Client()
	id := deadLetters(o, "--key", "pay:9001")[0].ID
	// The event was handled, by a handler that forgot to do something, before it became a dead letter:
	// its record is older.
	name := "idem:done:billing:payments:charge:pay%3A9001"
	other := "idem:done:billing:payments:charge:pay%3A1"
	value := client.Get(t.Context(), other).Val()
	if err := client.Set(t.Context(), name, value, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	o.run("key", "get", "billing", "pay:9001").wants(0, "done")
	var did outcomes
	o.run("dead", "replay", shop.Topic, id, "--handler", "charge", "--dry-run", "-o", "json").wants(0).into(&did)
	if did.WouldForget != 1 || did.Forgotten != 0 {
		t.Errorf("a dry run: %+v", did)
	}
	// A handler that nobody knows has none.
	r := o.run("dead", "replay", shop.Topic, id, "--handler", "charg", "--dry-run").wants(0, `handler "charg"`, "Did you mean charge?", "no record was there to forget")
	if r.err == "" {
		t.Error("the warning is among the results")
	}
	o.run("dead", "replay", shop.Topic, id, "--handler", "nosuch", "--dry-run").wants(0, `handler "nosuch"`, "There are records of charge").lacks("Did you mean")
	o.run("key", "get", "billing", "pay:9001").wants(0, "done")
	o.run("dead", "replay", shop.Topic, id, "--handler", "charge").wants(0, "forgets the record", "1 replayed").lacks("Nothing to forget")
	o.run("key", "get", "billing", "pay:9001").wants(1)
}

// `topic show` agrees with what was done.
func TestTopicShow(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	var v struct {
		Mode   string
		Stream struct{ Length int64 }
		Window struct {
			Seconds    float64 `json:"duration_seconds"`
			Entries    int
			Duplicates int64
			IDs        int64 `json:"ids_tracked"`
		}
		Groups []struct {
			Name         string
			Lag, Pending int64
		}
		DeadLetters int64 `json:"dead_letters"`
	}
	o.run("topic", "show", shop.Topic, "-o", "json").wants(0).into(&v)
	// The early ones have no ID; the retries that came late are new, and so are the two of the instance.
	ids := int64(shop.Payments + shop.Late + shop.Failing + shop.Unread + 2)
	length := ids + shop.Late + 2 // the broken one, and one that is not guarded
	if v.Mode != "idmp" || v.Window.Seconds != 3600 || v.Window.Duplicates != shop.Retried || v.Window.IDs != ids || v.Stream.Length != length || v.DeadLetters != shop.Failing+1 {
		t.Errorf("%+v, want %d IDs and %d entries", v, ids, length)
	}
	for _, g := range v.Groups {
		switch {
		case g.Name == shop.Service && g.Lag != shop.Unread+3, g.Name == shop.Lagging && (g.Lag != length-2 || g.Pending != 2):
			t.Errorf("group %+v", g)
		}
	}
	if len(v.Groups) != 2 {
		t.Errorf("%d groups", len(v.Groups))
	}
	// Its consumer left with its subscription, a moment ago.
	o.run("topic", "show", shop.Topic).wants(0, `Group "billing" has entries to read or to settle, and no consumer now`).lacks("24h", "1d")
	o.run("topic", "show", "missing").wants(1, `no topic "missing"`, "topic list")
	o.run("topic", "list", "pay*").wants(0, shop.Topic).lacks(shop.Latched)
	o.run("topic", "list", "nothing*", "-o", "json").wants(0, "[]")
	if err := s.Client().Set(t.Context(), "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	o.run("topic", "show", "text").wants(1, "not a stream")
	o.run("latch", "list", shop.Topic).wants(1, "not in mode latch")
	o.run("latch", "get", shop.Latched, "pay:1").wants(1, "no latch")
	o.run("latch", "list", shop.Latched, "--match", "pay:7002").wants(0, "pay:7002").lacks("pay:7001")
}

// The causes of duplicates are told from one another.
func TestDuplicates(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	var v struct {
		ByCause map[string]int64 `json:"by_cause"`
		Pairs   []struct{ Key, Cause string }
	}
	o.run("duplicates", shop.Topic, "--event-key", "pay:{$.id}", "-o", "json").wants(1).into(&v)
	if v.ByCause["late"] != shop.Late || v.ByCause["producers"] != 2 || v.ByCause["unguarded"] != 1 || len(v.Pairs) != shop.Late+3 {
		t.Errorf("%+v", v)
	}
	o.run("duplicates", shop.Topic).wants(1, "later than the window", "several producer IDs", "pay:8001", "--event-key")
	r := o.run("duplicates", shop.Topic).wants(1, "! 1 entry has no key of this library", "Give --event-key TEMPLATE", "2 are extra", "1 entry can't be decoded").lacks("1 entries")
	if hint, table := strings.Index(r.out, "no key of this library"), strings.Index(r.out, "WHY"); hint > table {
		t.Errorf("the hint comes last:\n%s", r.out)
	}
	o.run("duplicates", shop.Topic, "--event-key", "pay:{$.nope}").wants(1, "The source of keys makes none", "$.nope is missing", "Correct --event-key 'pay:{$.nope}'")
	var ids struct {
		Keyless []string `json:"without_key_ids"`
		Broken  []string `json:"undecodable_ids"`
	}
	o.run("duplicates", shop.Topic, "-o", "json").wants(1).into(&ids)
	if len(ids.Keyless) != 1 || len(ids.Broken) != 1 || !strings.Contains(r.out, ids.Keyless[0]) || !strings.Contains(r.out, ids.Broken[0]) {
		t.Errorf("%+v", ids)
	}
	o.run("duplicates", shop.Topic, "--pairs", "0").wants(1, "later than the window").lacks("pay:8001")
	o.run("duplicates", shop.Topic, "--from", "1h", "--only", "pay:1").wants(0)
	o.run("duplicates", shop.Latched).wants(0)
}

// The advice has what the stream and the publishers say; the picture shows it.
func TestWindow(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	var ages window.Ages
	for range 200 {
		ages.Add(time.Minute)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(ages.Distribution())
	}))
	t.Cleanup(web.Close)
	file := filepath.Join(t.TempDir(), "ages.svg")
	var v struct {
		Verdict       string
		Retries       int64
		RetriesMissed int64   `json:"retries_missed"`
		Want          float64 `json:"advised_seconds"`
		Oldest        float64 `json:"retry_age_max_seconds"`
		Forgets       int64   `json:"change_forgets"`
		Changes       []struct{ Field string }
		Caught        []struct{ Count int64 } `json:"caught_ages"`
		Missed        []struct {
			To float64 `json:"to_seconds"`
		} `json:"missed_ages"`
	}
	o.run("window", shop.Topic, "--for", "200ms", "--every", "50ms", "--ages", web.URL, "--ages", web.URL, "--svg", file, "-o", "json").wants(1).into(&v)
	if v.Verdict != "too small" || v.Retries != 400+shop.Late || v.RetriesMissed != shop.Late || v.Oldest < 10_000 || v.Want <= v.Oldest || v.Forgets == 0 || len(v.Changes) == 0 || len(v.Caught) != 1 || len(v.Missed) != 1 || v.Missed[0].To != v.Oldest {
		t.Errorf("%+v", v)
	}
	svg, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(svg), "400 retries were caught, 3 missed") {
		t.Errorf("the picture: %v\n%s", err, svg)
	}
	o.run("window", shop.Topic, "--for", "100ms", "--every", "50ms").wants(1, "too small", "3 missed", "▒", "window 1h", "WindowDiffers",
		"median 2h59m, 99 % below 3h", "12 by the server since the stream was made", "1h – 3h ? 3", "27d", "4h is advised", "11 producer IDs hold 10,000 each").lacks("3h – 6h")
	o.run("window", shop.Topic, "--for", "100ms", "--every", "50ms", "--no-scan").wants(0, "a guess", "--ages")
	o.run("window", shop.Latched, "--for", "100ms", "--every", "50ms").wants(0, "any number of events")
	o.run("window", shop.Topic, "--ages", web.URL+"\x7f").wants(3)
	o.run("window", shop.Topic, "--ages", file).wants(2, "has no ages of retries")
	o.run("window", "missing").wants(1, "no topic")
}

// check compares with what the service is configured with, and finds a key that is too coarse.
func TestCheck(t *testing.T) {
	s := filled(t, testserver.Redis86)
	o := at(t, s.Addr())
	o.run("check", shop.Topic, "new", "--group", shop.Service).wants(0, "noeviction", "1h / 103,595", "13 producer IDs").lacks("FAULT", "the configuration asks")
	o.run("check", shop.Topic, "--window", "2h").wants(0, "asks for 2h")
	o.run("check", shop.Topic, "--strict").wants(1)
	o.run("check", shop.Latched, "--store", "none").wants(0, "latch").lacks("records")
	o.run("check", shop.Topic, "--producer", "billing-7f9c4d5b6c-x2v8q").wants(0, "looks like the name of a pod")
	o.run("check").wants(0, "redis 8.6")
	var v struct {
		OK     bool
		Topics []struct {
			DeadLetters int64 `json:"dead_letters"`
			Groups      []struct {
				Group       string
				DeadLetters int64 `json:"dead_letters"`
			}
		}
		Faults   []string
		Warnings []string
	}
	o.run("check", shop.Topic, "-o", "json").wants(0).into(&v)
	if !v.OK || v.Faults == nil || len(v.Warnings) == 0 {
		t.Errorf("%+v", v)
	}
	// A letter is one group's, not every group's.
	if topic := v.Topics[0]; topic.DeadLetters != shop.Failing+1 || len(topic.Groups) != 2 || topic.Groups[0].DeadLetters != shop.Failing+1 || topic.Groups[1].DeadLetters != 0 {
		t.Errorf("%+v", topic)
	}
	// Two payments of one order have one key.
	client := s.Client()
	for _, payload := range []string{`{"order":1,"id":1}`, `{"order":1,"id":2}`} {
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: "orders", Values: []string{"_watermill_message_uuid", payload, "payload", payload}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	o.run("check", "orders", "--event-key", "order:{$.order}").wants(0, "the key is too coarse", "another field $.id")
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	o.run("check", shop.Topic).wants(0, "allkeys-lru", "Set noeviction")
	// A topic in a mode without keys can be checked, and its dead letters replayed.
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "importer", Mode: publisher.ModeIDMPAuto}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	if err := pub.Publish("imports", message.NewMessage("1", []byte(`{"a":1}`))); err != nil {
		t.Fatal(err)
	}
	o.run("check", "imports").wants(0, "idmpauto").lacks("FAULT")
	if err := client.XAdd(t.Context(), &redis.XAddArgs{
		Stream: subscriber.DeadLetterTopic("imports"),
		Values: []string{"_watermill_message_uuid", "2", "payload", `{"a":2}`, "_dead_reason", "rejected", "_dead_group", "g"},
	}).Err(); err != nil {
		t.Fatal(err)
	}
	o.run("dead", "replay", "imports", "--all", "--yes").wants(0, "1 replayed")
}
