// Command payments publishes payment events through a link that loses replies, and has
// them handled by a consumer that is killed in the middle, between its work and the
// acknowledgement, and by one that takes over. It shows that each event is in the stream
// once, and was handled once.
//
//	go run ./examples/payments                 # an embedded server
//	go run ./examples/payments -plain          # the same by watermill-redisstream
//	REDIS_ADDR=localhost:6379 go run ./examples/payments -loss 0.5 -in events.jsonl
//
// An event is a JSON object on a line of its own, with order_id and payment_id.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Exit codes: flags that can't be used are 2, as in package flag.
const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	// What the client's pool has to say about cut connections would be in the table's way.
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var code int
	if task := os.Getenv(workerEnv); task != "" {
		code = runWorker(ctx, task)
	} else {
		code = run(ctx, os.Args[1:], os.Getenv("REDIS_ADDR"), os.Stdin, os.Stdout, os.Stderr)
	}
	stop()
	os.Exit(code)
}

func runWorker(ctx context.Context, task string) int {
	if err := work(ctx, task, os.Stdin, os.Stdout); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "payments: consumer: %v\n", err)
		return exitFailed
	}
	return exitOK
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// options are the flags.
type options struct {
	in    string
	loss  float64
	seed  uint64
	plain bool
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("payments", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.in, "in", "", "`file` with one JSON event a line, - for standard input; default: the shipped one")
	fs.Float64Var(&o.loss, "loss", 0.2, "`share` of the appends whose reply is lost, from 0 to 0.9")
	fs.Uint64Var(&o.seed, "seed", 40, "`number` that decides which replies are lost")
	fs.BoolVar(&o.plain, "plain", false, "use watermill-redisstream's own publisher and subscriber")
	fs.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: payments [flags]   (REDIS_ADDR=host:port or redis://… for a real server)")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !(o.loss >= 0 && o.loss <= 0.9): // this way round NaN is refused, too
		err = fmt.Errorf("-loss %v is outside 0 to 0.9", o.loss)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "payments: %v\n", err)
		fs.Usage()
	}
	return o, err
}

// run is main without the process around it.
func run(ctx context.Context, args []string, addr string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	if err := produceAndConsume(ctx, o, addr, stdin, stdout); err != nil {
		_, _ = fmt.Fprintf(stderr, "payments: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// produceAndConsume reads the events, publishes each, has them handled, and reports.
func produceAndConsume(ctx context.Context, o options, addr string, stdin io.Reader, stdout io.Writer) (err error) {
	events, err := readInput(o.in, stdin)
	if err != nil {
		return err
	}
	s, err := connect(ctx, addr, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()

	publish := publishOnce
	if o.plain {
		publish = publishPlain
	}
	_, _ = fmt.Fprintf(stdout, "%s, topic %s, %g %% of the replies to appends are lost (seed %d)\n\n", s.name, s.topic, o.loss*100, o.seed)
	res, err := publish(ctx, s, events)
	if err != nil {
		return err
	}
	if res.entries, err = s.direct.XLen(ctx, s.topic).Result(); err != nil {
		return err
	}
	if res.handlings, err = consumeAll(ctx, s, o.plain, res.entries); err != nil {
		return err
	}
	if err := res.print(stdout); err != nil {
		return err
	}
	return res.failures()
}
