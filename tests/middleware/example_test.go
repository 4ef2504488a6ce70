package middleware_test

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	idempotent "github.com/onceward/watermill-idempotent/middleware"
)

// The chain of docs/handling.md, the outermost first.
func Example_order() {
	build := func(router *message.Router, pub message.Publisher) error {
		poisonQueue, err := middleware.PoisonQueue(pub, "poison")
		if err != nil {
			return err
		}
		retry := middleware.Retry{MaxRetries: 2, ShouldRetry: func(p middleware.RetryParams) bool { return !idempotent.IsPermanent(p.Err) }}
		router.AddMiddleware(
			middleware.Recoverer,     // a panic that got past everything
			middleware.CorrelationID, // also onto recorded messages that are published again
			poisonQueue,              // after the last retry
			retry.Middleware,         // not of what another try can't help
			middleware.Recoverer,     // makes an error of a panic, for Retry and PoisonQueue
		)
		return nil
	}
	_ = build
}
