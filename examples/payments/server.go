package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/publisher"
)

const producerID = "payment-service"

// server is the Redis in use, reached in two ways.
type server struct {
	name  string
	addr  string
	topic string
	link  *link
	// lossy goes over the link, direct does not.
	lossy, direct *redis.Client

	embedded *miniredis.Miniredis
	leftover []string // keys to delete
}

// connect starts an embedded server, or uses the one at addr, there with a topic
// that nobody else has.
func connect(ctx context.Context, addr string, o options) (*server, error) {
	s := &server{topic: "payments", link: newLink(o.loss, o.seed)}
	if addr == "" {
		var err error
		if s.embedded, err = miniredis.Run(); err != nil {
			return nil, fmt.Errorf("start the embedded server: %w", err)
		}
		addr, s.name = s.embedded.Addr(), "embedded miniredis"
	} else {
		s.topic = fmt.Sprintf("payments-example-%08x", rand.Uint32())
	}
	s.addr = addr
	direct, err := clientOptions(addr)
	if err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	if s.name == "" {
		s.name = "server at " + direct.Addr // without the password of a URL
	}
	lossy, _ := clientOptions(addr)
	lossy.Dialer = s.link.over(redis.NewDialer(lossy))
	s.direct, s.lossy = redis.NewClient(direct), redis.NewClient(lossy)

	if err := s.direct.Ping(ctx).Err(); err != nil {
		_ = s.close(ctx)
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	s.leftover = []string{s.topic, "{" + s.topic + "}:idem:layout"}
	return s, nil
}

func clientOptions(addr string) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			return nil, err
		}
	}
	o.DialTimeout = 5 * time.Second
	return o, nil
}

// addEvent notes what may be written for an event: the latch of mode latch, and the
// record that it was handled.
func (s *server) addEvent(r publisher.Receipt) {
	latch := "{" + s.topic + "}:idem:latch:" + producerID + ":" + r.IdempotentID
	s.leftover = append(s.leftover, latch, redisstore.Config{}.Name(record(s.topic, r.Key)))
}

// close deletes what this run has written, also when it was interrupted.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var err error
	if s.embedded == nil && len(s.leftover) > 0 {
		if err = s.direct.Unlink(ctx, s.leftover...).Err(); err != nil {
			err = fmt.Errorf("delete the keys of this run, %s and {%s}:idem:*: %w", s.topic, s.topic, err)
		}
	}
	_ = s.direct.Close()
	_ = s.lossy.Close()
	if s.embedded != nil {
		s.embedded.Close()
	}
	return err
}
