module github.com/onceward/watermill-idempotent/tests

go 1.26

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/ThreeDotsLabs/watermill-redisstream v1.4.5
	github.com/onceward/watermill-idempotent v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	go.uber.org/goleak v1.3.0
)

replace github.com/onceward/watermill-idempotent => ../
