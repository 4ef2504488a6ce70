package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
)

// What package middleware does with a store.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	ctx := context.Background()
	claim, err := store.Claim(ctx, dedupe.Key{Namespace: "payments", Topic: "orders", Handler: "charge", Event: "pay:1001"},
		dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: 30 * time.Second, Retention: 24 * time.Hour})
	if err != nil {
		fmt.Println("the store is unavailable:", err)
		return
	}
	if claim.State() == dedupe.StateClaimed {
		// Work, under claim.Context().
		err = claim.Commit(ctx, nil)
	}
	fmt.Println(claim.State(), err)
}

// What to look up by redis-cli, and to grant: ACL SETUSER payments ~idem:done:*.
func ExampleConfig_Name() {
	fmt.Println(redisstore.Config{}.Name(dedupe.Key{Namespace: "payments", Topic: "orders", Handler: "charge", Event: "pay:1001"}))
	// Output:
	// idem:done:payments:orders:charge:pay%3A1001
}
