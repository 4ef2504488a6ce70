package oncetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/middleware"
)

// process is a Router with a handle of its own on the store.
type process struct {
	world    *world
	store    *dedupe.Memory
	messages chan *message.Message
	// loseLease ends the claim as soon as the handler runs.
	loseLease bool
}

// play lets the fault happen.
func (w *world) play(ctx context.Context) error {
	first, err := w.start(ctx)
	if err != nil {
		return err
	}
	switch w.fault {
	case Duplicates:
		second, err := w.start(ctx)
		if err != nil {
			return err
		}
		for range 3 {
			if err := first.deliver(ctx); err != nil {
				return err
			}
		}
		failed := make(chan error, 1)
		go func() { failed <- second.deliver(ctx) }()
		return errors.Join(first.deliver(ctx), <-failed)
	case CrashBeforeAck:
		w.failAfter = 1
		if err := first.deliver(ctx); err != nil {
			return err
		}
	case PublishFails:
		w.failBefore = 2
		for range 3 {
			if err := first.deliver(ctx); err != nil {
				return err
			}
		}
		return nil
	case LeaseLost:
		first.loseLease = true
		if err := first.deliver(ctx); err != nil {
			return err
		}
	default:
		return fmt.Errorf("oncetest: unknown fault %q", w.fault)
	}
	second, err := w.start(ctx)
	if err != nil {
		return err
	}
	return second.deliver(ctx)
}

// lease is long enough for any handler here; a lost one ends at once.
const lease = time.Minute

func (w *world) start(ctx context.Context) (*process, error) {
	p := &process{world: w, store: w.store.Open(), messages: make(chan *message.Message)}
	once, err := middleware.New(middleware.Config{
		Store: p.store, Namespace: "oncetest", Retention: time.Hour, Lease: lease, Wait: w.cfg.Timeout, Delay: 10 * time.Millisecond,
		Key: w.cfg.Key, Fingerprint: w.cfg.Fingerprint, Hooks: []middleware.Hooks{w.hooks()},
	}, nil)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := h(msg)
			if err != nil {
				w.note(func(r *Report) { r.Errs = append(r.Errs, err) })
			}
			return out, err
		}
	})
	router.AddHandler(w.cfg.HandlerName, w.cfg.Topic, p, w.cfg.PublishTopic, w, once.Handler(p.handle))
	w.wg.Go(func() {
		err := router.Run(ctx)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Timeout)
		defer cancel()
		if err = errors.Join(err, once.Close(bounded), p.store.Close()); err != nil {
			w.note(func(r *Report) { r.Errs = append(r.Errs, err) })
		}
	})
	select {
	case <-router.Running():
		return p, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Subscribe and Close make a process the subscriber of its Router.
func (p *process) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	p.world.wg.Go(func() {
		defer close(out)
		for {
			select {
			case msg := <-p.messages:
				out <- msg
			case <-ctx.Done():
				return
			}
		}
	})
	return out, nil
}

// Close implements message.Subscriber.
func (p *process) Close() error { return nil }

// deliver gives the event to the process and waits until it is settled.
func (p *process) deliver(ctx context.Context) error {
	msg := p.world.cfg.Message()
	if msg == nil {
		return errors.New("oncetest: Config.Message gave none")
	}
	timer := time.NewTimer(2 * p.world.cfg.Timeout)
	defer timer.Stop()
	p.messages <- msg
	select {
	case <-msg.Acked():
		p.world.note(func(r *Report) { r.Acked++ })
	case <-msg.Nacked():
		p.world.note(func(r *Report) { r.Nacked++ })
	case <-timer.C:
		return fmt.Errorf("oncetest: %s: the handler did not return in %v", p.world.fault, 2*p.world.cfg.Timeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// handle calls the handler, and counts.
func (p *process) handle(msg *message.Message) ([]*message.Message, error) {
	w := p.world
	w.note(func(r *Report) { r.Runs++ })
	var ended sync.WaitGroup
	returned := make(chan struct{})
	if p.loseLease {
		ended.Go(func() {
			_ = p.store.Close() // the claim is lost
			<-msg.Context().Done()
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			select {
			case <-returned:
			case <-timer.C:
				w.note(func(r *Report) { r.IgnoresContext = true })
			}
		})
	}
	out, err := w.cfg.Handler(msg)
	close(returned)
	ended.Wait()
	if err == nil {
		w.note(func(r *Report) {
			r.Succeeded++
			r.Returned = append(r.Returned, out)
		})
	}
	return out, err
}
