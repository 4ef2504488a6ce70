module github.com/onceward/watermill-idempotent

go 1.25.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/ThreeDotsLabs/watermill-redisstream v1.4.5
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/google/uuid v1.6.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/vmihailenco/msgpack v4.0.4+incompatible
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)
