package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
)

// billing writes bills.
type billing struct{ logger *slog.Logger }

// bill writes the bill of an order. It is called again for an event that comes again after a
// failure, or whose process died; tx has the bill together with the record that the event was
// handled, so there is one bill in the end.
func (b *billing) bill(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, fmt.Errorf("the event is not an order: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO bills (order_id, customer, amount) VALUES ($1, $2, $3)", o.ID, o.Customer, o.Amount); err != nil {
		return nil, err
	}
	b.logger.InfoContext(ctx, "order billed", "order_id", o.ID, "amount", o.Amount)
	return nil, nil
}
