package subscriber_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The universal suite runs on one server by default. `make matrix` sets these to all of
// them, and to both numbers in flight: UNIVERSAL_SERVERS is a list of kinds or "all",
// UNIVERSAL_IN_FLIGHT a list of numbers.
const (
	serversVariable  = "UNIVERSAL_SERVERS"
	inFlightVariable = "UNIVERSAL_IN_FLIGHT"
)

func universal(t *testing.T, run func(t *testing.T, s *testserver.Server, inFlight int)) {
	kinds := []testserver.Kind{testserver.Redis86}
	if names := os.Getenv(serversVariable); names == "all" {
		kinds = testserver.Kinds()
	} else if names != "" {
		kinds = nil
		for name := range strings.SplitSeq(names, ",") {
			if !slices.Contains(testserver.Kinds(), testserver.Kind(name)) {
				t.Fatalf("%s: no server is called %q", serversVariable, name)
			}
			kinds = append(kinds, testserver.Kind(name))
		}
	}
	inFlight := []int{1, 64}
	if list := os.Getenv(inFlightVariable); list != "" {
		inFlight = nil
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("%s: %v", inFlightVariable, err)
			}
			inFlight = append(inFlight, n)
		}
	}
	for _, kind := range kinds {
		for _, n := range inFlight {
			t.Run(fmt.Sprintf("%s/in-flight-%d", kind, n), func(t *testing.T) {
				// It is restarted in the middle, and must lose nothing by that.
				run(t, testserver.Start(t, kind, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always")), n)
			})
		}
	}
}

// constructors make publishers and subscribers as an application would, each pair with
// a client of its own.
func constructors(s *testserver.Server, inFlight int) (tests.PubSubConstructor, tests.ConsumerGroupPubSubConstructor) {
	withGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		client := s.As(t).Client(func(o *redis.Options) { o.PoolSize = 16 })
		pub, err := publisher.New(publisher.Config{
			Client: client, ProducerID: "universal", Key: eventkey.MessageUUID(),
		}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := quick(client)
		cfg.Group, cfg.MaxInFlight = group, inFlight
		cfg.MinIdle, cfg.CloseTimeout = 10*time.Second, 200*time.Millisecond
		if strings.Contains(t.Name(), "TestConcurrentSubscribe/") {
			// It closes fifty, one after the other, while each has messages in hand.
			cfg.CloseTimeout = 20 * time.Millisecond
		}
		cfg.RedeliverAfter, cfg.RedeliverMax = time.Millisecond, 10*time.Millisecond
		sub, err := subscriber.New(cfg, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = pub.Close()
			_ = sub.Close()
		})
		if strings.Contains(t.Name(), "TestReconnect") {
			return inTurn(pub, sub)
		}
		return pub, sub
	}
	return func(t *testing.T) (message.Publisher, message.Subscriber) {
		if strings.Contains(t.Name(), "TestNewSubscriberReceivesOldMessages/") {
			return withGroup(t, uuid.NewString())
		}
		// The same group each time: a subscriber made after another's end goes on where that stopped.
		return withGroup(t, "universal")
	}, withGroup
}

func features(inFlight int) tests.Features {
	return tests.Features{
		ConsumerGroups: true,
		Persistent:     true,
		// With more than one in flight the next message comes before the first is
		// acknowledged, which TestNoAck forbids under a guaranteed order.
		GuaranteedOrder:                     inFlight == 1,
		GuaranteedOrderWithSingleSubscriber: true,
		NewSubscriberReceivesOldMessages:    true,
	}
}

func TestUniversal(t *testing.T) {
	universal(t, func(t *testing.T, s *testserver.Server, inFlight int) {
		f := features(inFlight)
		if !raceEnabled {
			f.RestartServiceCommand = restartCommand(t, s)
		}
		newPubSub, newGroup := constructors(s, inFlight)
		tests.TestPubSub(t, f, newPubSub, newGroup)
	})
}

func TestUniversalStress(t *testing.T) {
	if os.Getenv(serversVariable) == "" {
		t.Skip("ten times the universal suite at once: `make matrix` runs it")
	}
	universal(t, func(t *testing.T, s *testserver.Server, inFlight int) {
		newPubSub, newGroup := constructors(s, inFlight)
		tests.TestPubSubStressTest(t, features(inFlight), newPubSub, newGroup)
	})
}
