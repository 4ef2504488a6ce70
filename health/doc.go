// Package health answers the probes of an orchestrator: an http.Handler over publisher,
// subscriber, middleware and stores, by their own Check and Health methods. It imports
// nothing of them.
//
//	probes, err := health.New(health.Config{Ready: []health.Check{
//		health.Topics("publisher", pub.Check, "payments"),
//		health.State("subscriber", sub.Health),
//		health.State("handlers", once.Health),
//		{Name: "store", Run: store.Check},
//	}})
//	mux.Handle("/livez", probes.Live())
//	mux.Handle("/readyz", probes.Ready())
//
// Readiness asks whether the process can do its work now: it fails while Redis or the
// database is away, and the process gets no requests. Liveness asks whether a restart
// would help: it does not fail for what is outside of the process, or an outage of Redis
// would have all instances restarted for nothing, and again when it is back.
package health
