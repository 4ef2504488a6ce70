// Package middleware handles each event once, with any Watermill subscriber.
//
//	once, err := middleware.New(middleware.Config{
//		Store: store, Namespace: "payments", Retention: 24 * time.Hour,
//	}, logger)
//	router.AddConsumerHandler("charge", "orders", subscriber, once.Consumer(charge))
//
// A message is claimed by its idempotency key, the handler runs, its success is recorded
// together with the messages that it returned, and only then does the Router publish
// them and acknowledge. So a failure leaves nothing behind and the handler runs again;
// and after a success it does not run again, whatever happens to the publish, the
// acknowledgement or the process: a redelivery gets the recorded messages.
//
//	claim ─► run ─► record ─► return ─► Router publishes ─► Router acks ─► settle
//
// Wrap the function, by [Once.Consumer] or [Once.Handler]: that is innermost whatever
// middlewares the Router has or gets. PoisonQueue, Retry and others belong around it.
//
// A message that can't be handled now (another process handles it, the store is out
// of reach) is not acknowledged and not an error either, so that Retry, PoisonQueue and
// counters of failures don't see it. It comes again, after a delay.
package middleware
