package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of requests.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 20 * time.Second
	idleTimeout  = 2 * time.Minute
)

// run serves until ctx ends, or until something fails, and then stops in order:
//
//  1. readiness says no, and DRAIN_DELAY passes, in which balancers notice it;
//  2. the API: requests that run are answered, and their orders are in the database;
//  3. the router: no further event is taken from outbox or stream, handlers end, and what they
//     have done is acknowledged. The rest stays in outbox and stream for another instance;
//  4. probes and metrics, so that all that can be watched;
//  5. what open has made, each part before those that it needs.
//
// A process that is killed instead leaves the same: nothing is lost, and nothing done twice.
func (s *service) run(ctx context.Context) (err error) {
	failed := make(chan error, 3) // room for the end of each that runs
	var running sync.WaitGroup
	defer func() {
		err = errors.Join(err, s.close())
		running.Wait()
	}()
	var stopping atomic.Bool
	if err := s.start(ctx, &stopping, &running, failed); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.logger.Info("stopping", "drain_delay", s.cfg.drainDelay.String())
	stopping.Store(true)
	<-time.After(s.cfg.drainDelay)
	return err
}

// start starts all that runs, in the reverse of the order in which it is to stop.
func (s *service) start(ctx context.Context, stopping *atomic.Bool, running *sync.WaitGroup, failed chan<- error) error {
	admin, err := s.adminHandler(stopping)
	if err != nil {
		return err
	}
	if err := s.serve(ctx, running, failed, "admin", s.cfg.adminAddr, admin); err != nil {
		return err
	}
	router, err := s.newRouter()
	if err != nil {
		return err
	}
	running.Go(func() {
		// Not under ctx: the handlers that run when it ends are to end by themselves.
		err := router.Run(context.WithoutCancel(ctx))
		failed <- errors.Join(errRouterEnded, err)
	})
	s.atClose("router", router.Close)
	api := &api{orders: &orders{db: s.db, outbox: s.outbox}, logger: s.logger}
	handler, err := measured(s.registry, api.handler())
	if err != nil {
		return err
	}
	return s.serve(ctx, running, failed, "api", s.cfg.httpAddr, handler)
}

var errRouterEnded = errors.New("the router has ended by itself")

// serve listens, and serves until the service is closed, which waits for the requests that run.
func (s *service) serve(ctx context.Context, running *sync.WaitGroup, failed chan<- error, part, addr string, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	s.logger.Info("listening", "part", part, "addr", listener.Addr().String())
	server := &http.Server{
		Handler:     handler,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("%s: %w", part, err)
		}
	})
	s.atClose(part, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.stopTimeout)
		defer cancel()
		return server.Shutdown(ctx)
	})
	return nil
}
