package health

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"path"
	"strconv"
	"time"
)

// Paths that end in these are served by [Handler.ServeHTTP].
const (
	LivePath  = "livez"
	ReadyPath = "readyz"
)

// Handler answers probes. It is safe for concurrent use, and starts nothing that outlives
// the checks.
type Handler struct {
	live, ready *prober
}

var _ http.Handler = (*Handler)(nil)

// New makes a Handler. The error has all faults of the configuration.
func New(cfg Config) (*Handler, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return &Handler{live: newProber(cfg, cfg.Live), ready: newProber(cfg, cfg.Ready)}, nil
}

// Live answers with 200 while the process is worth keeping: always, unless there are
// checks in Config.Live.
func (h *Handler) Live() http.Handler { return h.live }

// Ready answers with 200 if all checks in Config.Ready pass, and else with 503. Both have
// an [Answer] as JSON for a body.
func (h *Handler) Ready() http.Handler { return h.ready }

// ServeHTTP serves both, by the last part of the path: livez and readyz. So one line
// brings them below any prefix:
//
//	mux.Handle("/health/", probes)
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path.Base(r.URL.Path) {
	case LivePath:
		h.live.ServeHTTP(w, r)
	case ReadyPath:
		h.ready.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// Values of Answer.Status and Result.Status.
const (
	StatusOK     = "ok"
	StatusFailed = "failed"
)

// Answer is the body of an answer.
type Answer struct {
	// Status is failed if one of the checks is.
	Status string `json:"status"`
	// CheckedAt is when the checks were done, by the clock of this machine.
	CheckedAt time.Time `json:"checked_at"`
	// Checks are in the order of the configuration.
	Checks []Result `json:"checks"`
}

// Result is what one check has said.
type Result struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	// Error says why it failed: passwords are left out, and what is longer than 1000 bytes.
	Error    string   `json:"error,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Milliseconds is how long it took.
	Milliseconds int64 `json:"ms"`
}

// ServeHTTP answers one probe. It is for GET and HEAD.
func (p *prober) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	answer, err := p.answer(r.Context())
	if err != nil {
		return // who asked has gone
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // it is no HTML, and says so
	if err := encoder.Encode(answer); err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(body.Len()))
	if answer.Status == StatusOK {
		w.WriteHeader(http.StatusOK)
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if r.Method == http.MethodGet {
		_, _ = w.Write(body.Bytes()) // who asked has gone, if it fails
	}
}

// answer gives the last answer while it is fresh, and else that of the run that is going
// on or begins now. The error is that of ctx.
func (p *prober) answer(ctx context.Context) (Answer, error) {
	for {
		run := p.current()
		select {
		case <-run.ended:
			return run.answer, nil
		case <-ctx.Done():
			return Answer{}, context.Cause(ctx)
		}
	}
}
