package appender

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Mode says how keys are remembered.
type Mode = layout.Mode

// Layout says how the keys of a topic are remembered.
type Layout = layout.Layout

// Window is how long and how many keys are remembered.
type Window = layout.Window

// The modes; package publisher says what each is for.
const (
	Auto     = layout.Auto
	IDMP     = layout.IDMP
	IDMPAuto = layout.IDMPAuto
	Latch    = layout.Latch
)

// ReadLayout reads the layout record of a topic; it is zero where there is none.
func ReadLayout(ctx context.Context, p server.Processor, topic string) (Layout, error) {
	record := redis.NewMapStringStringCmd(ctx, "hgetall", rediskey.LayoutKey(topic))
	err := p.Process(ctx, record)
	if err == nil {
		err = unanswered(record)
	}
	if err != nil {
		return Layout{}, err
	}
	return layout.Parse(record.Val())
}
