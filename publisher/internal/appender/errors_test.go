package appender

import (
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

func TestClassify(t *testing.T) {
	reply := func(text string) error { return fmt.Errorf("wrapped: %w", replyError(text)) }
	for _, tt := range []struct {
		err  error
		want batch.Class
	}{
		{errStale, batch.Stale}, {ErrLayout, batch.Final}, {Final(io.EOF), batch.Final}, {ErrModeUnsupported, batch.Final}, {ErrLatchUnconfirmed, batch.Final},
		{reply("READONLY You can't write"), batch.Refused}, {reply("LOADING"), batch.Refused}, {reply("TRYAGAIN x"), batch.Refused},
		{reply("CLUSTERDOWN"), batch.Refused}, {reply("MASTERDOWN"), batch.Refused}, {reply("NOSCRIPT"), batch.Refused},
		{reply("WRONGTYPE"), batch.Final}, {reply("OOM command not allowed"), batch.Refused}, {reply("MISCONF Redis is"), batch.Refused}, {reply("BUSYGROUP Consumer Group name already exists"), batch.Final}, {reply("NOPERM x"), batch.Final},
		{io.EOF, batch.Ambiguous}, {redis.ErrPoolTimeout, batch.Refused}, {redis.ErrClosed, batch.Final},
	} {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("Classify(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// replyError is an error reply of a batch.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

var _ redis.Error = replyError("")
