package server

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"
)

// fakeServer answers instead of a server.
type fakeServer func(cmd redis.Cmder) error

func (fakeServer) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f fakeServer) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		err := f(cmd)
		cmd.SetErr(err)
		return err
	}
}

func (fakeServer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f fakeServer) client(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "nowhere:1"})
	client.AddHook(f)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// versionOf is a server that takes XADD IDMP, or not, and has a version.
func versionOf(info string, xadd error) fakeServer {
	return func(cmd redis.Cmder) error {
		if cmd, ok := cmd.(*redis.StringCmd); ok && cmd.Name() == "info" {
			cmd.SetVal(info)
			return nil
		}
		return xadd
	}
}

// The first releases with IDMP have faults in it, and are not used for it.
func TestFaultyReleasesHaveNoIDMP(t *testing.T) {
	tooOld := ReplyError("ERR Invalid stream ID specified as stream command argument")
	for info, want := range map[string]bool{
		"redis_version:8.6.0\r\n": false, "redis_version:8.6.1\r\n": false, "redis_version:8.6.2\r\n": true,
		"redis_version:8.6.10\r\n": true, "redis_version:8.7.0\r\n": true, "redis_version:10.0.0\r\n": true,
		"redis_version:8.6\r\n": true, "": true,
		"redis_version:7.2.4\r\nvalkey_version:10.1.0\r\n": true, // should it learn it one day
	} {
		got, err := Probe(t.Context(), versionOf("# Server\r\n"+info, redis.Nil).client(t), "k")
		if err != nil || got.IDMP != want {
			t.Errorf("%q: %+v, %v; want IDMP %v", info, got, err, want)
		}
		got, err = Probe(t.Context(), versionOf("# Server\r\n"+info, tooOld).client(t), "k")
		if err != nil || got.IDMP {
			t.Errorf("%q that does not know the word: %+v, %v", info, got, err)
		}
	}
}

// A version that could not be asked for is none that is sound, but one that the user may not
// ask for is taken by what the server can do.
func TestVersionThatIsNotTold(t *testing.T) {
	probe := func(reason error) (Info, error) {
		return Probe(t.Context(), fakeServer(func(cmd redis.Cmder) error {
			if cmd.Name() == "info" {
				return reason
			}
			return redis.Nil
		}).client(t), "k")
	}
	if info, err := probe(ReplyError("NOPERM no")); err != nil || !info.IDMP {
		t.Errorf("%+v, %v", info, err)
	}
	for _, reason := range []error{io.EOF, ReplyError("BUSY Redis is busy running a script")} {
		if info, err := probe(reason); !errors.Is(err, reason) {
			t.Errorf("%+v, %v; want %v", info, err, reason)
		}
	}
	if info, err := Probe(t.Context(), fakeServer(func(redis.Cmder) error { return nil }).client(t), "k"); !errors.Is(err, ErrNoReply) {
		t.Errorf("without a reply: %+v, %v", info, err)
	}
}

// A script whose reply is missing has not returned nothing.
func TestScriptWithoutAReply(t *testing.T) {
	client := fakeServer(func(redis.Cmder) error { return nil }).client(t)
	if reply, err := NewScript("return 1").Run(t.Context(), client, []string{"k"}); !errors.Is(err, ErrNoReply) {
		t.Errorf("%v, %v", reply, err)
	}
}
