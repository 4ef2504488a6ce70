package storeutil_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// A claim of a leased store: the storage says that another has taken it over, and the handler's
// context ends.
func ExampleNewLease() {
	lease, ctx := storeutil.NewLease(context.Background(), storeutil.LeaseConfig{
		Duration: 300 * time.Millisecond,
		SentAt:   time.Now(), // before the claim was sent
		Renew:    func(context.Context) error { return storeutil.ErrLeaseLost },
	})
	<-ctx.Done() // where the handler runs
	fmt.Println(errors.Is(context.Cause(ctx), storeutil.ErrLeaseLost))
	fmt.Println(lease.Stop()) // before the commit: it must fail
	lease.Release(nil)
	// Output:
	// true
	// claim was lost
}

func ExampleJoinOutputs() {
	value := storeutil.JoinOutputs([][]byte{[]byte("receipt"), []byte("mail")})
	outputs, err := storeutil.SplitOutputs(value)
	fmt.Printf("%d bytes: %s, %v\n", len(value), outputs, err)
	_, err = storeutil.SplitOutputs(value[:5])
	fmt.Println(err)
	// Output:
	// 13 bytes: [receipt mail], <nil>
	// record can't be read: output 0 is cut off
}

func ExampleSameDigest() {
	stored := storeutil.Digest([]byte(`{"amount":"49.90"}`))
	fmt.Println(len(stored))
	fmt.Println(storeutil.SameDigest(stored, storeutil.Digest([]byte(`{"amount":"12.00"}`))))
	fmt.Println(storeutil.SameDigest(stored, storeutil.Digest(nil))) // a fingerprint that nobody gave
	// Output:
	// 16
	// false
	// true
}
