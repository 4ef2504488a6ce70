package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Limits of requests.
const (
	maxBody = 64 << 10
	maxName = 200 // bytes of an order ID, a key, a customer
)

// api is what customers call.
type api struct {
	orders *orders
	logger *slog.Logger
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", a.place)
	mux.HandleFunc("GET /orders/{id}", a.get)
	return mux
}

// place answers 201 for a new order, and 200 with the same body for a request that was made
// before: with the same Idempotency-Key, or without one, with the same order_id.
func (a *api) place(w http.ResponseWriter, r *http.Request) {
	key, want, err := readOrder(w, r)
	if err != nil {
		a.fail(w, r, http.StatusBadRequest, err)
		return
	}
	placed, isNew, err := a.orders.place(r.Context(), key, want)
	switch {
	case errors.Is(err, errKeyReused):
		a.fail(w, r, http.StatusUnprocessableEntity, err)
		return
	case errors.Is(err, errOrderExists):
		a.fail(w, r, http.StatusConflict, err)
		return
	case err != nil:
		a.fail(w, r, http.StatusServiceUnavailable, err)
		return
	}
	a.logger.InfoContext(r.Context(), "order placed", "order_id", placed.ID, "new", isNew)
	status := http.StatusCreated
	if !isNew {
		status = http.StatusOK
		w.Header().Set("Idempotency-Replayed", "true")
	}
	a.answer(w, status, placed)
}

// readOrder reads the order of a request, and the key by which a retry of it is known. Where
// customers log in, the key is theirs, and belongs together with their name.
func readOrder(w http.ResponseWriter, r *http.Request) (key string, o order, err error) {
	var body struct {
		OrderID  string `json:"order_id"`
		Customer string `json:"customer"`
		Amount   int64  `json:"amount"`
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		return "", order{}, fmt.Errorf("the body is not an order: %w", err)
	}
	header := r.Header.Get("Idempotency-Key")
	switch {
	case body.Customer == "":
		err = errors.New("customer is missing")
	case body.Amount <= 0:
		err = errors.New("amount is missing, or not above 0; it is in cents")
	case header == "" && body.OrderID == "":
		err = errors.New("nothing says which order this is: send an Idempotency-Key, or an order_id")
	case max(len(header), len(body.OrderID), len(body.Customer)) > maxName:
		err = fmt.Errorf("Idempotency-Key, order_id and customer have %d bytes at most", maxName)
	}
	if err != nil {
		return "", order{}, err
	}
	key = "key/" + header
	if header == "" {
		key = "order/" + body.OrderID
	}
	return key, order{ID: body.OrderID, Customer: body.Customer, Amount: body.Amount, PlacedAt: time.Now().UTC()}, nil
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	found, bills, err := a.orders.get(r.Context(), r.PathValue("id"))
	switch {
	case errors.Is(err, errNoOrder):
		a.fail(w, r, http.StatusNotFound, err)
	case err != nil:
		a.fail(w, r, http.StatusServiceUnavailable, err)
	default:
		a.answer(w, http.StatusOK, struct {
			order
			Bills int `json:"bills"`
		}{found, bills})
	}
}

// fail says what was wrong with the request. What is wrong here is for the log, not for the
// customer, who may send the request again.
func (a *api) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	text := err.Error()
	if status >= http.StatusInternalServerError {
		a.logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		text = "not now; please send the request again"
		w.Header().Set("Retry-After", "1")
	}
	a.answer(w, status, struct {
		Error string `json:"error"`
	}{text})
}

func (a *api) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil { // the customer has gone
		a.logger.Debug("answer not sent", "err", err)
	}
}
