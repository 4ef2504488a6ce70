package dedupe_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// What package middleware does with a store: claim, work, record.
func ExampleNewMemory() {
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	ctx := context.Background()
	key := dedupe.Key{Namespace: "billing", Topic: "orders", Handler: "charge", Event: "pay:1001"}
	for range 2 {
		claim, err := store.Claim(ctx, key, dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: 30 * time.Second, Retention: 24 * time.Hour})
		if err != nil {
			panic(err)
		}
		fmt.Println(claim.State())
		if claim.State() == dedupe.StateClaimed {
			// Work, under claim.Context().
			if err := claim.Commit(ctx, nil); err != nil {
				panic(err)
			}
		}
	}
	// Output:
	// claimed
	// done
}

// A store behind Watermill's Deduplicator middleware, which asks a repository whether a
// key was seen. See Repository for what that interface can't promise.
func ExampleRepository() {
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	repository, err := dedupe.Repository(store, dedupe.RepositoryConfig{Namespace: "billing", Retention: time.Hour})
	if err != nil {
		panic(err)
	}
	for range 2 {
		seen, err := repository.IsDuplicate(context.Background(), "pay:1001")
		fmt.Println(seen, err)
	}
	// Output:
	// false <nil>
	// true <nil>
}
