module github.com/onceward/watermill-idempotent/examples

go 1.25.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/ThreeDotsLabs/watermill-redisstream v1.4.5
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/onceward/watermill-idempotent v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
)

replace github.com/onceward/watermill-idempotent => ../
