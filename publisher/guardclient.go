package publisher

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
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
	return &guardPipeline{Pipeliner: c.UniversalClient.Pipeline()}
}

func (c *guardClient) TxPipeline() redis.Pipeliner {
	return &guardPipeline{Pipeliner: c.UniversalClient.TxPipeline()}
}

func (c *guardClient) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return pipelined(ctx, c.Pipeline(), fn)
}

func (c *guardClient) TxPipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return pipelined(ctx, c.TxPipeline(), fn)
}

func pipelined(ctx context.Context, pipe redis.Pipeliner, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	if err := fn(pipe); err != nil {
		return nil, err
	}
	return pipe.Exec(ctx)
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

// guardPipeline is a pipeline without XADD. One that was given an XADD sends nothing.
type guardPipeline struct {
	redis.Pipeliner
	refused error
}

func (p *guardPipeline) refuse(cmd redis.Cmder) error {
	err := refuseXAdd(cmd)
	if err != nil {
		p.refused = err
	}
	return err
}

func (p *guardPipeline) XAdd(ctx context.Context, a *redis.XAddArgs) *redis.StringCmd {
	cmd := redis.NewStringCmd(ctx, "xadd", a.Stream)
	_ = p.refuse(cmd)
	return cmd
}

func (p *guardPipeline) Do(ctx context.Context, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	_ = p.Process(ctx, cmd)
	return cmd
}

func (p *guardPipeline) Process(ctx context.Context, cmd redis.Cmder) error {
	return p.BatchProcess(ctx, cmd)
}

func (p *guardPipeline) BatchProcess(ctx context.Context, cmds ...redis.Cmder) error {
	for _, cmd := range cmds {
		if err := p.refuse(cmd); err != nil {
			return err
		}
	}
	return p.Pipeliner.BatchProcess(ctx, cmds...)
}

func (p *guardPipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	if p.refused != nil {
		p.Discard()
		return nil, p.refused
	}
	return p.Pipeliner.Exec(ctx)
}

// In go-redis a pipeline's own pipelines are the same one.
func (p *guardPipeline) Pipeline() redis.Pipeliner   { return p }
func (p *guardPipeline) TxPipeline() redis.Pipeliner { return p }

func (p *guardPipeline) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return pipelined(ctx, p, fn)
}

func (p *guardPipeline) TxPipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return pipelined(ctx, p, fn)
}

func refuseXAdd(cmd redis.Cmder) error {
	if !strings.EqualFold(cmd.Name(), "xadd") {
		return nil
	}
	err := appender.Final(fmt.Errorf("%w: XADD outside of a decorated publisher", ErrUnguarded))
	cmd.SetErr(err)
	return err
}
