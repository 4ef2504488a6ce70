package subscriber_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
)

// consumerSpec tells a consumer process what to do. A consumer that is to be killed or
// stopped is a process of its own: this test binary, started again.
type consumerSpec struct {
	Addr        string // of the server
	Link        string // address to subscribe through, if another
	Topic       string
	MaxInFlight int
	Order       string
	MinIdleMS   int
	HandlerMS   int
	NackPercent int
	MaxDeliver  int
	DieOn       string // payload that kills the process
	FailOn      string // payload that always fails
	ReadAhead   int
	Check       bool // log who owns the entry when a hand-out starts
	AckLate     bool // acknowledge also when the message's context has ended
	StartsOnly  bool // log nothing but the starts
}

// late is logged instead of the owner by a process that was too slow to ask for it.
const late = "late"

const consumerVariable = "SUBSCRIBER_TEST_CONSUMER"

// logKey is the list that the consumers of a topic write to.
func logKey(topic string) string { return "log:" + topic }

type logLine struct {
	event, pid, id, payload, rest string
	at                            time.Time
}

func readLog(t testing.TB, client redis.UniversalClient, topic string) []logLine {
	t.Helper()
	raw, err := client.LRange(context.Background(), logKey(topic), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	lines := make([]logLine, len(raw))
	for i, text := range raw {
		f := strings.SplitN(text, "|", 6)
		if len(f) != 6 {
			t.Fatalf("log line %q", text)
		}
		us, _ := strconv.ParseInt(f[5], 10, 64)
		lines[i] = logLine{event: f[0], pid: f[1], id: f[2], payload: f[3], rest: f[4], at: time.UnixMicro(us)}
	}
	return lines
}

type consumer struct {
	t   testing.TB
	cmd *exec.Cmd
}

// startConsumer starts a consumer process and waits until it has subscribed.
func startConsumer(t testing.TB, spec consumerSpec) *consumer {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), consumerVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &consumer{t, cmd}
	t.Cleanup(c.kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "subscribed\n" {
		t.Fatalf("consumer says %q: %v", line, err)
	}
	return c
}

// kill ends it as a crash would.
func (c *consumer) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// wait waits until it has ended by itself.
func (c *consumer) wait() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Wait()
	}
}

func (c *consumer) signal(sig syscall.Signal) {
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Errorf("%v: %v", sig, err)
	}
}

func (c *consumer) pid() string { return strconv.Itoa(c.cmd.Process.Pid) }

// consume is the consumer process.
func consume(text string) error {
	var spec consumerSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	// The log is exact: a line that was sent twice, or given up, would look like an entry out
	// of order. On a busy machine only patience helps.
	direct := redis.NewClient(&redis.Options{
		Addr: spec.Addr, PoolSize: 80, MaxRetries: -1,
		DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, PoolTimeout: time.Minute,
	})
	client := direct
	if spec.Link != "" {
		client = redis.NewClient(&redis.Options{Addr: spec.Link, ReadTimeout: 500 * time.Millisecond, DialTimeout: 500 * time.Millisecond})
	}
	pid := os.Getpid()
	write := func(event, id, payload string, rest any) {
		if spec.StartsOnly && event != "start" {
			return
		}
		if err := direct.RPush(context.Background(), logKey(spec.Topic),
			fmt.Sprintf("%s|%d|%s|%s|%v|%d", event, pid, id, payload, rest, time.Now().UnixMicro())).Err(); err != nil {
			fmt.Fprintln(os.Stderr, "log:", err)
			os.Exit(1)
		}
	}
	cfg := subscriber.Config{
		Client: client, Group: "billing", Consumer: fmt.Sprintf("p%d", pid),
		MaxInFlight: spec.MaxInFlight, MaxDeliveries: spec.MaxDeliver, ReadAhead: spec.ReadAhead,
		MinIdle: time.Duration(spec.MinIdleMS) * time.Millisecond, Block: 50 * time.Millisecond,
		RedeliverAfter: 2 * time.Millisecond, RedeliverMax: 20 * time.Millisecond,
		Hooks: []subscriber.Hooks{{
			OnOwnershipLost: func(ev subscriber.OwnershipEvent) {
				if ev.Refused {
					write("refused", ev.EntryID, "", "")
				}
			},
		}},
	}
	switch spec.Order {
	case "key":
		orderKey(&cfg)
	case "stream":
		orderStream(&cfg)
	}
	var logger watermill.LoggerAdapter
	if os.Getenv("SUBSCRIBER_TEST_VERBOSE") != "" {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false)
	}
	sub, err := subscriber.New(cfg, logger)
	if err != nil {
		return err
	}
	messages, err := sub.Subscribe(context.Background(), spec.Topic)
	if err != nil {
		return err
	}
	fmt.Println("subscribed")
	var running sync.WaitGroup
	for msg := range messages {
		running.Go(func() { handle(spec, direct, msg, write) })
	}
	running.Wait()
	return nil
}

func handle(spec consumerSpec, direct *redis.Client, msg *message.Message, write func(event, id, payload string, rest any)) {
	began := time.Now()
	d, _ := subscriber.DeliveryOf(msg)
	id, payload := d.EntryID(), string(msg.Payload)
	owner := any(d.Count())
	if spec.Check {
		if owner = ownerOf(direct, spec.Topic, id); time.Since(began) > 200*time.Millisecond {
			owner = late
		}
	}
	write("start", id, payload, owner)
	if payload == spec.DieOn {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if spec.HandlerMS > 0 {
		timer := time.NewTimer(time.Duration(spec.HandlerMS) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-msg.Context().Done():
			write("cancelled", id, payload, context.Cause(msg.Context()))
			if spec.AckLate {
				msg.Ack() // refused, unless the entry is still ours
			} else {
				msg.Nack()
			}
			return
		}
	}
	if payload == spec.FailOn || rand.IntN(100) < spec.NackPercent {
		write("nack", id, payload, "")
		msg.Nack()
		return
	}
	write("end", id, payload, "")
	msg.Ack()
}

// ownerOf is the consumer that an entry is pending for.
func ownerOf(client *redis.Client, topic, id string) string {
	rows, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: topic, Group: "billing", Start: id, End: id, Count: 1}).Result()
	if err != nil || len(rows) == 0 {
		return fmt.Sprint("nobody ", err)
	}
	return rows[0].Consumer
}
