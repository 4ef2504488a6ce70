package publisher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

type capturingLogger struct {
	*observe.Logger
	lines *observe.Events[string]
}

func (l capturingLogger) Error(msg string, err error, f watermill.LogFields) {
	l.lines.Add(msg)
	l.Logger.Error(msg, err, f)
}

func (l capturingLogger) Info(msg string, f watermill.LogFields) {
	l.lines.Add(msg)
	l.Logger.Info(msg, f)
}

func (l capturingLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// An outage is logged once, when it begins and when it is over, however many
// callers there are; a reply that was lost is none.
func TestOutageIsLoggedOnce(t *testing.T) {
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr())
	logger, topic := capturingLogger{observe.NewLogger(t), &observe.Events[string]{}}, testserver.Topic(t)
	p, err := publisher.New(publisher.Config{Client: link.Client(), ProducerID: "payment-service", Key: payKey}, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	mustPublish(t, p, topic, payment(1))
	link.LoseNext(1, "XADD")
	mustPublish(t, p, topic, payment(2))
	outages := func() (begun, over int) {
		for _, line := range logger.lines.All() {
			switch line {
			case "Redis is unavailable or refuses commands; publishing is tried again until RetryFor":
				begun++
			case "Publishing works again":
				over++
			}
		}
		return begun, over
	}
	if begun, _ := outages(); begun != 0 {
		t.Errorf("a lost reply is logged as an outage")
	}
	link.Refuse()
	link.Cut()
	published := make(chan error, 4)
	for n := range cap(published) {
		go func() { published <- p.Publish(topic, payment(10+n)) }()
	}
	testserver.Eventually(t, 10*time.Second, func() error {
		if begun, _ := outages(); begun == 0 {
			return errors.New("no outage is logged")
		}
		return nil
	})
	link.Accept()
	for range cap(published) {
		if err := <-published; err != nil {
			t.Error(err)
		}
	}
	if begun, over := outages(); begun != 1 || over != 1 {
		t.Errorf("logged %d times that an outage began, and %d times that it is over", begun, over)
	}
}
