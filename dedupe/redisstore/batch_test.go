package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer answers in place of a server: every claim is got, every script does what it is for.
// With before set that is called first, with the commands that come together. An error that is
// errOfHook is a hook's, which leaves the commands as they are.
type fakeServer struct {
	before func(keys []string) error

	mu   sync.Mutex
	came [][]string // the keys of commands that came together
}

var _ redis.Hook = (*fakeServer)(nil)

func (*fakeServer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fakeServer) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if err := f.answer(cmd); err != nil {
			return err
		}
		return cmd.Err()
	}
}

func (f *fakeServer) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		return f.answer(cmds...)
	}
}

var errOfHook = errors.New("circuit open")

func (f *fakeServer) answer(cmds ...redis.Cmder) error {
	var keys []string
	for _, cmd := range cmds {
		keys = append(keys, keyOf(cmd))
	}
	f.mu.Lock()
	f.came = append(f.came, keys)
	f.mu.Unlock()
	var err error
	if f.before != nil {
		err = f.before(keys)
	}
	if errors.Is(err, errOfHook) {
		return err
	}
	for _, cmd := range cmds {
		switch {
		case err != nil:
			cmd.SetErr(err)
		case cmd.Name() == "set":
			cmd.SetErr(redis.Nil)
		default:
			cmd.(interface{ SetVal(any) }).SetVal(int64(1))
		}
	}
	return nil
}

func keyOf(cmd redis.Cmder) string {
	name := cmd.Args()[1]
	if strings.HasPrefix(cmd.Name(), "eval") {
		name = cmd.Args()[3]
	}
	text := name.(string)
	return text[strings.LastIndex(text, ":")+1:]
}

// sizes are how many commands came together, each time.
func (f *fakeServer) sizes() (sizes []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, keys := range f.came {
		sizes = append(sizes, len(keys))
	}
	return sizes
}

func (f *fakeServer) times(key string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, keys := range f.came {
		if slices.Contains(keys, key) {
			n++
		}
	}
	return n
}

// withStore runs a test with a store whose server is a fake, in a bubble of its own time.
func withStore(t *testing.T, before func(f *fakeServer) func(keys []string) error, test func(t *testing.T, s *Store, f *fakeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{}
		if before != nil {
			f.before = before(f)
		}
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer func() { _ = client.Close() }()
		client.AddHook(f)
		s, err := New(Config{Client: client})
		if err != nil {
			t.Fatal(err)
		}
		test(t, s, f)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

type claiming struct {
	claim dedupe.Claim
	err   error
	after time.Duration
}

// claim claims an event in a goroutine of its own; the result is there when the channel says so.
func startClaim(ctx context.Context, s *Store, event string) <-chan claiming {
	done := make(chan claiming, 1)
	begun := time.Now()
	go func() {
		k := dedupe.Key{Namespace: "n", Topic: "t", Handler: "h", Event: event}
		c, err := s.Claim(ctx, k, dedupe.ClaimOptions{Token: event, Lease: time.Minute, Retention: time.Hour})
		done <- claiming{c, err, time.Since(begun)}
	}()
	synctest.Wait()
	return done
}

func mustClaim(t *testing.T, done <-chan claiming) claiming {
	t.Helper()
	got := <-done
	if got.err != nil || got.claim.State() != dedupe.StateClaimed {
		t.Fatalf("claim: %+v", got)
	}
	return got
}

// holdFirst has the server answer the first command when release is called.
func holdFirst(release <-chan struct{}) func(f *fakeServer) func([]string) error {
	return func(*fakeServer) func([]string) error {
		return func(keys []string) error {
			if slices.Contains(keys, "first") {
				<-release
			}
			return nil
		}
	}
}

// eachSender runs a test with callers that wait for a sender, and with one that sends by itself
// what finds nothing on its way.
func eachSender(t *testing.T, test func(t *testing.T, in func(context.Context) (context.Context, context.CancelFunc))) {
	t.Helper()
	t.Run("by a sender", func(t *testing.T) {
		test(t, context.WithCancel)
	})
	t.Run("by its caller", func(t *testing.T) {
		test(t, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		})
	})
}

// What comes while a command is on its way goes out together.
func TestCommandsThatComeMeanwhileGoTogether(t *testing.T) {
	eachSender(t, testCommandsThatComeMeanwhile)
}

func testCommandsThatComeMeanwhile(t *testing.T, in func(context.Context) (context.Context, context.CancelFunc)) {
	var release chan struct{}
	withStore(t, func(f *fakeServer) func([]string) error {
		release = make(chan struct{})
		return holdFirst(release)(f)
	}, func(t *testing.T, s *Store, f *fakeServer) {
		ctx, cancel := in(t.Context())
		defer cancel()
		waiting := []<-chan claiming{startClaim(ctx, s, "first")}
		for n := range batchCommands + 44 {
			waiting = append(waiting, startClaim(ctx, s, fmt.Sprint(n)))
		}
		close(release)
		for _, done := range waiting {
			mustClaim(t, done)
		}
		if got, want := f.sizes(), []int{1, batchCommands, 44}; !slices.Equal(got, want) {
			t.Errorf("commands came in %v, want %v", got, want)
		}
	})
}

// A connection that is stalled keeps others waiting for a moment only, and at most so many
// are opened for that.
func TestStalledPipelineDoesNotKeepOthersWaiting(t *testing.T) {
	eachSender(t, testStalledPipeline)
}

func testStalledPipeline(t *testing.T, in func(context.Context) (context.Context, context.CancelFunc)) {
	var release chan struct{}
	withStore(t, func(f *fakeServer) func([]string) error {
		release = make(chan struct{})
		return func(keys []string) error {
			if strings.HasPrefix(keys[0], "stalled") {
				<-release
			}
			return nil
		}
	}, func(t *testing.T, s *Store, f *fakeServer) {
		ctx, cancel := in(t.Context())
		defer cancel()
		stalled := []<-chan claiming{startClaim(ctx, s, "stalled 0")}
		late := mustClaim(t, startClaim(ctx, s, "behind"))
		if late.after != lateAfter {
			t.Errorf("kept waiting for %v, want %v", late.after, lateAfter)
		}
		if next := mustClaim(t, startClaim(ctx, s, "next")); next.after != 0 {
			t.Errorf("the one after it for %v", next.after)
		}
		for n := range maxSenders + 2 {
			<-time.After(lateAfter)
			stalled = append(stalled, startClaim(ctx, s, fmt.Sprint("stalled ", n+1)))
		}
		<-time.After(lateAfter)
		if n := len(f.sizes()); n != maxSenders+2 {
			t.Errorf("%d commands were sent, want %d and two that were answered", n, maxSenders)
		}
		close(release)
		for _, done := range stalled {
			mustClaim(t, done)
		}
	})
}

// A caller that gives up while its command waits has sent nothing; one whose command is out
// has its claim given up when the answer is there.
func TestGiveUpAClaim(t *testing.T) {
	var release chan struct{}
	withStore(t, func(f *fakeServer) func([]string) error {
		release = make(chan struct{})
		return holdFirst(release)(f)
	}, func(t *testing.T, s *Store, f *fakeServer) {
		gone := errors.New("the user went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		out, queued := startClaim(ctx, s, "first"), startClaim(ctx, s, "queued")
		cancel(gone)
		for _, done := range []<-chan claiming{out, queued} {
			if got := <-done; !errors.Is(got.err, gone) {
				t.Errorf("%+v", got)
			}
		}
		synctest.Wait()
		if n := f.times("first"); n != 1 {
			t.Errorf("%d commands for the claim before its answer is there", n)
		}
		close(release)
		synctest.Wait()
		if f.times("first") != 2 || f.times("queued") != 0 {
			t.Errorf("came: %v, want the claim that was out and its removal", f.came)
		}
	})
}

// A caller sends by itself only if the client gives up before it does: after 5 s, by default.
// Else it leaves when its time is over.
func TestCallerSendsByItself(t *testing.T) {
	for _, tt := range []struct {
		waits  time.Duration
		itself bool
	}{{4 * time.Second, false}, {6 * time.Second, true}} {
		var release chan struct{}
		withStore(t, func(*fakeServer) func([]string) error {
			release = make(chan struct{})
			return func([]string) error { <-release; return nil }
		}, func(t *testing.T, s *Store, _ *fakeServer) {
			for name, in := range map[string]func() (context.Context, func()){
				"deadline": func() (context.Context, func()) {
					ctx, cancel := context.WithTimeout(t.Context(), tt.waits)
					return ctx, cancel
				},
				"claim": func() (context.Context, func()) {
					ctx, cancel := storeutil.WithCancel(t.Context(), time.Now().Add(tt.waits))
					timer := time.AfterFunc(tt.waits, func() { cancel(context.DeadlineExceeded) })
					return ctx, func() { timer.Stop(); cancel(nil) }
				},
			} {
				ctx, cancel := in()
				done := startClaim(ctx, s, "first")
				<-time.After(tt.waits + time.Second) // the client of this test has no time-outs
				select {
				case got := <-done:
					if tt.itself || got.after != tt.waits {
						t.Errorf("%s in %v: ended after %v: %v", name, tt.waits, got.after, got.err)
					}
				default:
					if !tt.itself {
						t.Errorf("%s in %v: goes on", name, tt.waits)
					}
				}
				close(release)
				synctest.Wait()
				release = make(chan struct{})
				cancel()
			}
			close(release)
		})
	}
}

// What fails, or panics in a hook of the client's, goes out again by itself.
func TestFailedPipelineGoesOutOneByOne(t *testing.T) {
	for name, fail := range map[string]func() error{
		"lost":     func() error { return errors.New("connection reset") },
		"panicked": func() error { panic("a hook") },
		"not sent": func() error { return errOfHook },
	} {
		t.Run(name, func(t *testing.T) {
			var release, busy chan struct{}
			withStore(t, func(*fakeServer) func([]string) error {
				release, busy = make(chan struct{}), make(chan struct{})
				return func(keys []string) error {
					switch {
					case len(keys) > 1:
						return fail()
					case keys[0] == "first":
						<-release
					case keys[0] == "busy":
						<-busy
					}
					return nil
				}
			}, func(t *testing.T, s *Store, f *fakeServer) {
				waiting := []<-chan claiming{startClaim(t.Context(), s, "first")}
				for n := range 5 {
					waiting = append(waiting, startClaim(t.Context(), s, fmt.Sprint(n)))
				}
				close(release)
				synctest.Wait()
				last := startClaim(t.Context(), s, "busy") // what comes now waits for it
				for _, done := range waiting {
					mustClaim(t, done)
				}
				if got, want := f.sizes(), []int{1, 5, 1, 1, 1, 1, 1, 1}; !slices.Equal(got, want) {
					t.Errorf("commands came in %v, want %v", got, want)
				}
				close(busy)
				mustClaim(t, last)
			})
		})
	}
}

// A large record goes by itself, whatever waits: a server that refuses it for its size closes
// the connection.
func TestLargeRecordGoesAlone(t *testing.T) {
	var release chan struct{}
	withStore(t, func(f *fakeServer) func([]string) error {
		release = make(chan struct{})
		return holdFirst(release)(f)
	}, func(t *testing.T, s *Store, f *fakeServer) {
		large := mustClaim(t, startClaim(t.Context(), s, "large")).claim
		first := startClaim(t.Context(), s, "first")
		small := startClaim(t.Context(), s, "small")
		if err := large.Commit(t.Context(), [][]byte{make([]byte, batchedBytes)}); err != nil {
			t.Error(err)
		}
		if got := f.came[len(f.came)-1]; !slices.Equal(got, []string{"large"}) {
			t.Errorf("%v came while another command was out, want the large record", got)
		}
		close(release)
		mustClaim(t, first)
		mustClaim(t, small)
	})
}

// Close ends the waiting, and waits for what is out.
func TestCloseWhileCommandsWait(t *testing.T) {
	var release chan struct{}
	withStore(t, func(f *fakeServer) func([]string) error {
		release = make(chan struct{})
		return holdFirst(release)(f)
	}, func(t *testing.T, s *Store, f *fakeServer) {
		out, queued := startClaim(t.Context(), s, "first"), startClaim(t.Context(), s, "queued")
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		for _, done := range []<-chan claiming{out, queued} {
			if got := <-done; !errors.Is(got.err, dedupe.ErrClosed) {
				t.Errorf("%+v", got)
			}
		}
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close has not waited for the command that was out: %v", err)
		default:
		}
		close(release)
		if err := <-closed; err != nil || f.times("queued") != 0 {
			t.Errorf("%v, came %v", err, f.came)
		}
	})
}

// A single command that a hook does not let through is sent again.
func TestHookRefusesACommand(t *testing.T) {
	refused := false
	withStore(t, func(*fakeServer) func([]string) error {
		return func([]string) error {
			if !refused {
				refused = true
				return errOfHook
			}
			return nil
		}
	}, func(t *testing.T, s *Store, f *fakeServer) {
		mustClaim(t, startClaim(t.Context(), s, "event"))
		if n := f.times("event"); n != 2 {
			t.Errorf("sent %d times", n)
		}
	})
}

// answer is an error that the server has answered.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// The right that is missing is named also where the last of the tries had no answer.
func TestRefusalBeforeTheLastTry(t *testing.T) {
	var release chan struct{}
	var sent atomic.Int64
	withStore(t, func(*fakeServer) func([]string) error {
		release = make(chan struct{})
		return func([]string) error {
			switch sent.Add(1) {
			case 1: // the claim
			case 2:
				return answer("NOPERM User app has no permissions to run the 'evalsha' command")
			default:
				<-release
			}
			return nil
		}
	}, func(t *testing.T, s *Store, _ *fakeServer) {
		err := mustClaim(t, startClaim(t.Context(), s, "event")).claim.Commit(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "+evalsha") || errors.Is(err, dedupe.ErrRefused) {
			t.Errorf("commit: %v, want one that names the right, and that nobody knows", err)
		}
		close(release)
	})
}

// wrapper is a client of one's own; it can't be compared.
type wrapper struct {
	redis.UniversalClient

	_ []string
}

// What a client of another type does with a pipeline is not known: each command goes alone.
func TestWrappedClientIsSentSingleCommands(t *testing.T) {
	var release chan struct{}
	synctest.Test(t, func(t *testing.T) {
		release = make(chan struct{})
		f := &fakeServer{}
		f.before = holdFirst(release)(f)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer func() { _ = client.Close() }()
		client.AddHook(f)
		s, err := New(Config{Client: wrapper{UniversalClient: client}})
		if err != nil {
			t.Fatal(err)
		}
		waiting := []<-chan claiming{startClaim(t.Context(), s, "first"), startClaim(t.Context(), s, "a"), startClaim(t.Context(), s, "b")}
		close(release)
		for _, done := range waiting {
			mustClaim(t, done)
		}
		if got, want := f.sizes(), []int{1, 1, 1}; !slices.Equal(got, want) {
			t.Errorf("commands came in %v, want %v", got, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
