package middleware_test

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	idempotent "github.com/onceward/watermill-idempotent/middleware"
)

// The chain of docs/handling.md, the outermost first.
func Example_order() {
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		panic(err)
	}
	poisonQueue, err := middleware.PoisonQueue(nil, "poison")
	if err != nil {
		panic(err)
	}
	retry := middleware.Retry{MaxRetries: 2, ShouldRetry: func(p middleware.RetryParams) bool { return !idempotent.IsPermanent(p.Err) }}
	router.AddMiddleware(
		middleware.Recoverer,     // a panic that got past everything
		middleware.CorrelationID, // also onto recorded messages that are published again
		poisonQueue,              // after the last retry
		retry.Middleware,         // with ShouldRetry: !idempotent.IsPermanent(p.Err)
		middleware.Recoverer,     // makes an error of a panic, for Retry and PoisonQueue
	)
}
