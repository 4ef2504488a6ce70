package storetest_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
)

// The test of a store. Here the memory store stands for yours; it can't outlive its process.
func ExampleRun() {
	testStore := func(t *testing.T) { // func TestStore(t *testing.T)
		shared, err := dedupe.NewMemory(dedupe.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		storetest.Run(t, storetest.Config{
			Open: func(t testing.TB) dedupe.Store {
				store := shared.Open()
				t.Cleanup(func() { _ = store.Close() })
				return store
			},
			Features: storetest.Features{Forgetful: true},
		})
	}
	_ = testStore // run by go test
}
