package publisher

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// guardClient is a client whose XADD is the guard's.
type guardClient struct {
	redis.UniversalClient
	guard *Guard
}

func (c *guardClient) XAdd(ctx context.Context, a *redis.XAddArgs) *redis.StringCmd {
	cmd := redis.NewStringCmd(ctx, "xadd", a.Stream)
	id, err := c.guard.xadd(ctx, a)
	cmd.SetVal(id)
	cmd.SetErr(err)
	return cmd
}

func (c *guardClient) Do(ctx context.Context, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	_ = c.Process(ctx, cmd)
	return cmd
}

func (c *guardClient) Process(ctx context.Context, cmd redis.Cmder) error {
	if err := refuseXAdd(cmd); err != nil {
		return err
	}
	return c.UniversalClient.Process(ctx, cmd)
}

func (c *guardClient) Pipeline() redis.Pipeliner {
	return guardPipeline{c.UniversalClient.Pipeline()}
}

func (c *guardClient) TxPipeline() redis.Pipeliner {
	return guardPipeline{c.UniversalClient.TxPipeline()}
}

func (c *guardClient) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return c.UniversalClient.Pipelined(ctx, guarded(fn))
}

func (c *guardClient) TxPipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return c.UniversalClient.TxPipelined(ctx, guarded(fn))
}

// AutoPipeline and its variants return a concrete type, which can't be guarded.
func (c *guardClient) AutoPipeline() (*redis.AutoPipeliner, error) { return nil, errAutoPipeline }

func (c *guardClient) AutoPipelineWithOptions(*redis.AutoPipelineOptions) (*redis.AutoPipeliner, error) {
	return nil, errAutoPipeline
}

func (c *guardClient) AsyncAutoPipeline() (*redis.AutoPipeliner, error) { return nil, errAutoPipeline }

func (c *guardClient) AsyncAutoPipelineWithOptions(*redis.AutoPipelineOptions) (*redis.AutoPipeliner, error) {
	return nil, errAutoPipeline
}

var errAutoPipeline = fmt.Errorf("%w: a guarded client has no automatic pipeline", ErrUnguarded)

// Close closes the guard: the decorated publisher thinks that the client is its own.
func (c *guardClient) Close() error { return c.guard.Close() }

// guardPipeline is a pipeline without XADD.
type guardPipeline struct{ redis.Pipeliner }

func guarded(fn func(redis.Pipeliner) error) func(redis.Pipeliner) error {
	return func(pipe redis.Pipeliner) error { return fn(guardPipeline{pipe}) }
}

func (p guardPipeline) XAdd(ctx context.Context, a *redis.XAddArgs) *redis.StringCmd {
	cmd := redis.NewStringCmd(ctx, "xadd", a.Stream)
	_ = refuseXAdd(cmd)
	return cmd
}

func (p guardPipeline) Do(ctx context.Context, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	_ = p.Process(ctx, cmd)
	return cmd
}

func (p guardPipeline) Process(ctx context.Context, cmd redis.Cmder) error {
	if err := refuseXAdd(cmd); err != nil {
		return err
	}
	return p.Pipeliner.Process(ctx, cmd)
}

func refuseXAdd(cmd redis.Cmder) error {
	if !strings.EqualFold(cmd.Name(), "xadd") {
		return nil
	}
	err := permanent(fmt.Errorf("%w: XADD outside of a decorated publisher", ErrUnguarded))
	cmd.SetErr(err)
	return err
}
