package window_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/window"
)

func ExampleAdvise() {
	advice := window.Advise(window.Observation{
		Mode:   publisher.ModeIDMP,
		Shards: 1,
		Window: publisher.Window{Duration: 10 * time.Minute, Entries: 10_000},
		Lasted: time.Hour, Added: 72_000, Peak: 40, Tracked: 10_000,
		Caught: window.DistributionOf(time.Second, 2*time.Second, 30*time.Second, 3*time.Minute),
	})
	fmt.Println(advice.Verdict, advice.FullAfter, advice.Outage)
	for _, change := range advice.Changes {
		fmt.Printf("%s: %s → %s\n", change.Field, change.Now, change.Want)
	}
	fmt.Println(advice.Reasons[0])
	// Output:
	// tight 4m10s 1m10s
	// Duration: 10 * time.Minute → 45 * time.Minute
	// Entries: 10_000 → 170_000
	// Of 4 retries the oldest came after 3m, and 99 of 100 within 3m; the window remembers for 4m10s.
}

// A service shows how late its retries come.
func ExampleAges() {
	var ages window.Ages
	cfg := publisher.Config{ProducerID: "payment-service"}
	cfg.Hooks = append(cfg.Hooks, ages.Hooks())
	http.Handle("/retry-ages", &ages)

	ages.OnPublish(publisher.Receipt{Verdict: publisher.VerdictDuplicate, Age: 3 * time.Second})
	fmt.Println(ages.Distribution().Quantile(0.99))
	// Output: 3s
}
