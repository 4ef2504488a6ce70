package dedupe

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/watermill-idempotent/internal/invalid"
)

// RepositoryConfig configures a [KeyRepository].
type RepositoryConfig struct {
	// Namespace names the service or consumer group, as in [Key]; required.
	Namespace string
	// Topic and Handler keep the keys of several Deduplicators apart, where their
	// hashes don't.
	Topic, Handler string
	// Retention is how long a key is remembered; required.
	Retention time.Duration
	// Wait bounds how long a key that another process is just recording is waited
	// for; 0 means one second.
	Wait time.Duration
}

// KeyRepository implements ExpiringKeyRepository of Watermill's
// message/router/middleware on top of a [Store], so that Watermill's Deduplicator
// can share its keys between processes.
//
// That interface asks and records in one step, before the handler has run. Hence:
//
//   - When the handler fails, or the process dies, the message comes again, is taken
//     for a duplicate, and is lost.
//   - Nothing that a handler produced is kept.
//   - What the Deduplicator hashes is not an event: use SHA-256 rather than its default
//     Adler-32, which takes many distinct payloads for equal.
//
// It is for programs that use the Deduplicator now and know that. Package middleware
// has none of these limits.
type KeyRepository struct {
	store Store
	cfg   RepositoryConfig
}

// repositoryLease is how long a key may be between asked for and recorded.
const repositoryLease = 10 * time.Second

// Repository makes one.
func Repository(store Store, cfg RepositoryConfig) (*KeyRepository, error) {
	var faults invalid.Faults
	if store == nil {
		faults.Add("the store is nil")
	}
	if cfg.Namespace == "" {
		faults.Add("Namespace is empty: it names the service or consumer group")
	}
	if cfg.Retention <= 0 {
		faults.Add("Retention %v is not above zero: it says how long a key is remembered", cfg.Retention)
	}
	invalid.Negative(&faults, "Wait", cfg.Wait)
	if err := faults.Err("dedupe: invalid repository"); err != nil {
		return nil, err
	}
	if cfg.Wait == 0 {
		cfg.Wait = time.Second
	}
	return &KeyRepository{store: store, cfg: cfg}, nil
}

// IsDuplicate records the key and reports whether it was recorded before.
func (r *KeyRepository) IsDuplicate(ctx context.Context, key string) (bool, error) {
	k := Key{Namespace: r.cfg.Namespace, Topic: r.cfg.Topic, Handler: r.cfg.Handler, Event: asText(key)}
	claim, err := r.store.Claim(ctx, k, ClaimOptions{
		Token: NewToken(), Lease: min(repositoryLease, r.cfg.Retention), Retention: r.cfg.Retention, Wait: r.cfg.Wait,
	})
	if err != nil {
		return false, fmt.Errorf("key %s: %w", k, err)
	}
	switch claim.State() {
	case StateDone, StateConflict:
		return true, nil
	case StateInProgress:
		// Its owner may fail yet; "duplicate" would then lose the message.
		return false, fmt.Errorf("key %s: another process is recording it: %w", k, ErrRetryLater)
	}
	if err := claim.Commit(ctx, nil); err != nil {
		err = fmt.Errorf("key %s: %w", k, err)
		if rollback := claim.Rollback(context.WithoutCancel(ctx)); rollback != nil {
			err = errors.Join(err, rollback)
		}
		return false, err
	}
	return false, nil
}

// asText makes text of a key: Watermill's hashers give the bytes of a digest.
func asText(key string) string {
	const prefix = "hex:"
	if utf8.ValidString(key) && !strings.HasPrefix(key, prefix) {
		return key
	}
	return prefix + hex.EncodeToString([]byte(key))
}
