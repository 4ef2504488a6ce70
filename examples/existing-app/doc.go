// Package existingapp has an app on watermill-redisstream (before) and the same app
// after its move (after). `make diff-existing-app` shows what changes; both run:
//
//	go run ./examples/existing-app/before
//	go run ./examples/existing-app/after
//
// They use an embedded server, or the one at REDIS_ADDR.
package existingapp
