package publisher_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
)

// childEnv holds the orders for a process that this test binary is started as: a
// producer of its own, to be killed or to race with others.
const childEnv = "IDEMPOTENT_TEST_PUBLISHER"

type orders struct {
	Addr, Topic string
	Window      publisher.Window
	From, To    int // payments, one call each
}

// childMain publishes what it reads and prints one line a receipt. It begins when
// a line comes on standard input, so that several children start at once.
func childMain() int {
	var o orders
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	client := redis.NewClient(&redis.Options{Addr: o.Addr})
	defer func() { _ = client.Close() }()
	p, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey, Window: o.Window}, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer func() { _ = p.Close() }()
	fmt.Println("ready")
	if !bufio.NewScanner(os.Stdin).Scan() {
		return 2
	}
	for n := o.From; n < o.To; n++ {
		msg := payment(n)
		if err := p.Publish(o.Topic, msg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		r, _ := publisher.ReceiptOf(msg)
		fmt.Println(r.Verdict)
	}
	return 0
}

// child is a running producer process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines chan string
	begin func()
}

// startChild starts a producer and waits until it is ready.
func startChild(t testing.TB, o orders) *child {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: cmd, lines: make(chan string, 1000), begin: func() { _, _ = fmt.Fprintln(in, "go") }}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(c.kill)
	if line := c.next(); line != "ready" {
		t.Fatalf("child says %q", line)
	}
	return c
}

// next is the child's next line; "" when it has ended.
func (c *child) next() string {
	c.t.Helper()
	select {
	case line := <-c.lines:
		return line
	case <-time.After(20 * time.Second):
		c.t.Fatal("child says nothing")
		return ""
	}
}

func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}
