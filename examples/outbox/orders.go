package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// orderPlaced is the event.
type orderPlaced struct {
	OrderID string `json:"order_id"`
	Amount  int    `json:"amount"`
}

// written is what became of the transactions.
type written struct {
	committed, rolledBack int
}

// order writes an order and its event in one transaction.
func (d *database) order(ctx context.Context, topic string, e orderPlaced, commit bool) error {
	payload, err := json.Marshal(e)
	if err != nil {
		return err
	}
	// The key says which event it is, however often it is published.
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata.Set(eventkey.MetadataKey, eventkey.Join("order-placed", e.OrderID))

	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, "INSERT INTO "+d.orders()+" (id, amount) VALUES ($1, $2)", e.OrderID, e.Amount); err != nil {
		return err
	}
	if err := d.outbox().Publish(ctx, tx, topic, msg); err != nil {
		return err
	}
	if !commit {
		return tx.Rollback()
	}
	return tx.Commit()
}

// whileOrdersAreWritten runs work while orders are written, one after the other.
func whileOrdersAreWritten(ctx context.Context, w *world, work func(context.Context) error) (sum written, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for n := 1; ; n++ {
		commit := rand.IntN(5) > 0
		if err := w.db.order(ctx, w.topic, orderPlaced{OrderID: strconv.Itoa(n), Amount: 100 + n}, commit); err != nil {
			cancel()
			return sum, errors.Join(fmt.Errorf("order %d: %w", n, err), <-done)
		}
		if commit {
			sum.committed++
		} else {
			sum.rolledBack++
		}
		select {
		case err := <-done:
			return sum, err
		case <-pace.C:
		}
	}
}

// committed are the orders that are in the database.
func (d *database) committed(ctx context.Context) (map[string]bool, error) {
	rows, err := d.db.QueryContext(ctx, "SELECT id FROM "+d.orders())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	all := make(map[string]bool)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		all[id] = true
	}
	return all, rows.Err()
}

// found is what is in the stream.
type found struct {
	entries, duplicates, missing, rolledBack, orders int
}

// count compares the stream with the database.
func (w *world) count(ctx context.Context) (f found, err error) {
	orders, err := w.db.committed(ctx)
	if err != nil {
		return f, err
	}
	entries, err := w.client.XRange(ctx, w.topic, "-", "+").Result()
	if err != nil {
		return f, err
	}
	seen := make(map[string]bool)
	for _, entry := range entries {
		var e orderPlaced
		payload, _ := entry.Values["payload"].(string)
		if err := json.Unmarshal([]byte(payload), &e); err != nil {
			return f, fmt.Errorf("entry %s: %w", entry.ID, err)
		}
		switch {
		case seen[e.OrderID]:
			f.duplicates++
		case !orders[e.OrderID]:
			f.rolledBack++
		}
		seen[e.OrderID] = true
	}
	for id := range orders {
		if !seen[id] {
			f.missing++
		}
	}
	f.entries, f.orders = len(entries), len(orders)
	return f, nil
}

// failure says what is wrong, if anything is.
func (f found) failure(w written) error {
	if f.duplicates+f.missing+f.rolledBack == 0 && f.entries == w.committed && f.orders == w.committed {
		return nil
	}
	return fmt.Errorf("%d orders were committed, %d are in the database; the stream has %d entries: %d duplicates, %d of orders that were rolled back, and %d are missing",
		w.committed, f.orders, f.entries, f.duplicates, f.rolledBack, f.missing)
}
