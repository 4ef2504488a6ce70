package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// payment is an event, with what its worker is told.
type payment struct {
	ID     string `json:"payment_id"`
	Amount int    `json:"amount"`
	Die    string `json:"die,omitempty"`
	URL    string `json:"url"`
	Suffix string `json:"suffix"`
}

func (p payment) encode(db *database) string {
	p.URL, p.Suffix = db.url, db.suffix
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// at kills this process, as kill -9 does, if the step is the one to die at.
func (p payment) at(step string) {
	if p.Die != step {
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// work handles one delivery.
func work(ctx context.Context, task string) (err error) {
	var p payment
	if err := json.Unmarshal([]byte(task), &p); err != nil {
		return err
	}
	db, err := connect(p.URL, p.Suffix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.db.Close()) }()
	store, err := db.store(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	once, err := middleware.New(middleware.Config{Store: dying{store, p}, Namespace: "ledger", Retention: 24 * time.Hour}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, once.Close(ctx)) }()

	book := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (payment, amount) VALUES ('%s', %d)", db.ledger(), p.ID, p.Amount))
		p.at("after the booking")
		return nil, err
	})

	p.at("before the claim")
	msg := message.NewMessage(p.ID, nil)
	msg.Metadata.Set(eventkey.MetadataKey, eventkey.Join("pay", p.ID))
	_, err = once.Run(ctx, msg, "book", func(context.Context) ([]*message.Message, error) { return book(msg) })
	p.at("before the acknowledgement")
	return err
}

// dying is the store with two places to die.
type dying struct {
	dedupe.Store
	p payment
}

func (d dying) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	o.Wait = 10 * time.Second // for the database to notice that the one before is dead
	c, err := d.Store.Claim(ctx, k, o)
	if err == nil && c.State() == dedupe.StateClaimed {
		d.p.at("after the claim")
		c = dyingClaim{c, d.p}
	}
	return c, err
}

type dyingClaim struct {
	dedupe.Claim
	p payment
}

func (c dyingClaim) Commit(ctx context.Context, outputs [][]byte) error {
	err := c.Claim.Commit(ctx, outputs)
	if err == nil {
		c.p.at("after the record")
	}
	return err
}
