package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// MigrateSlot moves a slot with all its keys from one node to another.
func (c *Cluster) MigrateSlot(ctx context.Context, slot, from, to int) error {
	m, err := c.BeginMigration(ctx, slot, from, to)
	if err != nil {
		return err
	}
	return m.Finish(ctx)
}

// Migration is a slot on its way. Until Finish the old node answers for keys that it
// still has and sends clients with ASK to the new one for others; a command or script
// with several keys of which some have moved gets TRYAGAIN.
type Migration struct {
	c              *Cluster
	slot, from, to int
}

// BeginMigration sets a slot migrating, and importing at its new node. No key moves yet.
func (c *Cluster) BeginMigration(ctx context.Context, slot, from, to int) (*Migration, error) {
	if from == to {
		return nil, errors.New("a slot migrates from one node to another")
	}
	source, sourceDone := c.direct(from)
	defer sourceDone()
	target, targetDone := c.direct(to)
	defer targetDone()
	sourceID, err := source.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return nil, err
	}
	targetID, err := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return nil, err
	}
	// Importing first: the other way round a redirected client would be sent back.
	if err := target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID).Err(); err != nil {
		return nil, fmt.Errorf("importing slot %d: %w", slot, err)
	}
	if err := source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID).Err(); err != nil {
		return nil, fmt.Errorf("migrating slot %d: %w", slot, err)
	}
	return &Migration{c: c, slot: slot, from: from, to: to}, nil
}

// Keys returns the keys of the slot that have not moved yet, up to a thousand.
func (m *Migration) Keys(ctx context.Context) ([]string, error) {
	source, done := m.c.direct(m.from)
	defer done()
	return source.ClusterGetKeysInSlot(ctx, m.slot, 1000).Result()
}

// Move moves these keys.
func (m *Migration) Move(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	source, done := m.c.direct(m.from)
	defer done()
	host, p, err := net.SplitHostPort(m.c.nodes[m.to].Addr())
	if err != nil {
		return err
	}
	args := []any{"MIGRATE", host, p, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	return source.Do(ctx, args...).Err()
}

// Finish moves what is left and gives the slot to its new node.
func (m *Migration) Finish(ctx context.Context) error {
	for {
		keys, err := m.Keys(ctx)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		if err := m.Move(ctx, keys...); err != nil {
			return err
		}
	}
	target, done := m.c.direct(m.to)
	defer done()
	targetID, err := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return err
	}
	// The new node first: were the old one to forget the slot first, nobody would serve it.
	others := []int{m.to, m.from}
	for i := range m.c.nodes {
		if i != m.to && i != m.from {
			others = append(others, i)
		}
	}
	for _, i := range others {
		client, done := m.c.direct(i)
		err := client.Do(ctx, "CLUSTER", "SETSLOT", m.slot, "NODE", targetID).Err()
		done()
		if err != nil {
			return fmt.Errorf("giving slot %d to node %d, told node %d: %w", m.slot, m.to, i, err)
		}
	}
	// Before a node knows the epoch that its new owner took the slot by, a late packet
	// of the old owner takes it back there, and the next migration starts from nowhere.
	return poll(startWithin, m.c.agree)
}
