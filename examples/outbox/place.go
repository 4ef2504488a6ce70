package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// place says where things are. Empty: in this process, and in a folder that is removed.
type place struct{ database, redis string }

// world is what a run works on, with a topic and tables that nobody else has.
type world struct {
	db        *database
	client    *redis.Client
	redisAddr string
	redisName string
	embedded  *miniredis.Miniredis
	topic     string
	published report
}

func (p place) open(ctx context.Context) (*world, error) {
	id := fmt.Sprintf("%08x", rand.Uint32())
	w := &world{topic: "orders-" + id, redisAddr: p.redis, redisName: "Redis"}
	if p.redis == "" {
		var err error
		if w.embedded, err = miniredis.Run(); err != nil {
			return nil, fmt.Errorf("start the embedded Redis: %w", err)
		}
		w.redisAddr, w.redisName = w.embedded.Addr(), "an embedded Redis"
	}
	options, err := redisOptions(w.redisAddr)
	if err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	w.client = redis.NewClient(options)
	if err = w.client.Ping(ctx).Err(); err == nil {
		w.db, err = openDatabase(ctx, p.database, id)
	}
	if err != nil {
		return nil, errors.Join(err, w.close(ctx))
	}
	return w, nil
}

func redisOptions(addr string) (*redis.Options, error) {
	if strings.Contains(addr, "://") {
		return redis.ParseURL(addr)
	}
	return &redis.Options{Addr: addr}, nil
}

// close removes what the run has made, also when it was interrupted.
func (w *world) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var errs []error
	if w.db != nil {
		errs = append(errs, w.db.close(ctx))
	}
	if w.embedded == nil {
		keys := w.client.Scan(ctx, 0, "*"+w.topic+"*", 1000).Iterator()
		for keys.Next(ctx) {
			errs = append(errs, w.client.Unlink(ctx, keys.Val()).Err())
		}
		errs = append(errs, keys.Err())
	}
	errs = append(errs, w.client.Close())
	if w.embedded != nil {
		w.embedded.Close()
	}
	return errors.Join(errs...)
}
