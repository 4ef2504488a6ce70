package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/examples/internal/sqloutbox"
)

// topic is where events of orders go.
const topic = "orders"

// order is what a customer has ordered, and the event of it.
type order struct {
	ID       string    `json:"order_id"`
	Customer string    `json:"customer"`
	Amount   int64     `json:"amount"` // in cents
	PlacedAt time.Time `json:"placed_at"`
}

// Errors of orders that can't be placed.
var (
	errKeyReused   = errors.New("the same request was made with another order")
	errOrderExists = errors.New("there is another order with this order_id")
	errNoOrder     = errors.New("there is no such order")
)

// orders places orders.
type orders struct {
	db     *database
	outbox *sqloutbox.Outbox
}

// place writes the order and its event in one transaction, under a new ID if it has none. If the
// request was made before, under the same key, it returns the order of then, and isNew is false.
func (o *orders) place(ctx context.Context, key string, want order) (placed order, isNew bool, err error) {
	wantID := want.ID
	if want.ID == "" {
		want.ID = uuid.NewString()
	}
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return order{}, false, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit

	// The first one wins; one that comes at the same time waits here for its end.
	result, err := tx.ExecContext(ctx, "INSERT INTO orders (id, request_key, customer, amount, placed_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
		want.ID, key, want.Customer, want.Amount, want.PlacedAt.Format(time.RFC3339Nano))
	if err != nil {
		return order{}, false, err
	}
	inserted, err := result.RowsAffected()
	if err != nil {
		return order{}, false, err
	}
	if inserted == 0 {
		placed, err = find(ctx, tx, "request_key", key)
		switch {
		case errors.Is(err, errNoOrder):
			return order{}, false, errOrderExists
		case err != nil:
			return order{}, false, err
		case placed.Customer != want.Customer || placed.Amount != want.Amount || wantID != "" && wantID != placed.ID:
			return order{}, false, errKeyReused
		}
		return placed, false, nil
	}
	msg, err := placedEvent(want)
	if err != nil {
		return order{}, false, err
	}
	if err := o.outbox.Publish(ctx, tx, topic, msg); err != nil {
		return order{}, false, err
	}
	if err := tx.Commit(); err != nil { // it may be there even so: the customer asks again
		return order{}, false, err
	}
	return want, true, nil
}

// placedEvent is the event of an order. Its key says which one it is, however often it is
// published and read.
func placedEvent(o order) (*message.Message, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata.Set(eventkey.MetadataKey, eventkey.Join("order-placed", o.ID))
	return msg, nil
}

// get returns an order, and how often it was billed: once, or not yet.
func (o *orders) get(ctx context.Context, id string) (found order, bills int, err error) {
	if found, err = find(ctx, o.db, "id", id); err != nil {
		return order{}, 0, err
	}
	err = o.db.QueryRowContext(ctx, "SELECT count(*) FROM bills WHERE order_id = $1", id).Scan(&bills)
	return found, bills, err
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// find looks for an order by one of its unique columns.
func find(ctx context.Context, q querier, column, value string) (o order, err error) {
	var placedAt string
	err = q.QueryRowContext(ctx, "SELECT id, customer, amount, placed_at FROM orders WHERE "+column+" = $1", value).
		Scan(&o.ID, &o.Customer, &o.Amount, &placedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return order{}, errNoOrder
	}
	if err != nil {
		return order{}, err
	}
	if o.PlacedAt, err = time.Parse(time.RFC3339Nano, placedAt); err != nil {
		return order{}, fmt.Errorf("placed_at of order %q: %w", o.ID, err)
	}
	return o, nil
}
