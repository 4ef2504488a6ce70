package sqloutbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// batch is how many rows are read at a time. They are published one by one, and removed
// together; a forwarder that dies in between publishes up to that many again.
const batch = 20

// table tells watermill-sql how the table is written and read. It has an adapter for
// PostgreSQL of its own, and none for SQLite; this one is for both.
type table struct{ postgres bool }

var _ wsql.SchemaAdapter = table{}

// schema makes the table. An id must never be used twice, also after its row was removed, or a
// forwarder that was held up would remove the new row unread: AUTOINCREMENT sees to that.
func (t table) schema(name string) string {
	id := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if t.postgres {
		id = "BIGSERIAL PRIMARY KEY"
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %q (id %s, uuid TEXT NOT NULL, payload TEXT NOT NULL, metadata TEXT NOT NULL, created_at BIGINT NOT NULL)", name, id)
}

// SchemaInitializingQueries implements wsql.SchemaAdapter.
func (t table) SchemaInitializingQueries(p wsql.SchemaInitializingQueriesParams) ([]wsql.Query, error) {
	return []wsql.Query{{Query: t.schema(p.Topic)}}, nil
}

// InsertQuery implements wsql.SchemaAdapter. The payload is an envelope in JSON, so text.
func (t table) InsertQuery(p wsql.InsertQueryParams) (wsql.Query, error) {
	var rows []string
	var args []any
	for _, msg := range p.Msgs {
		metadata, err := json.Marshal(msg.Metadata)
		if err != nil {
			return wsql.Query{}, err
		}
		n := len(args)
		rows = append(rows, fmt.Sprintf("($%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4))
		args = append(args, msg.UUID, string(msg.Payload), string(metadata), time.Now().UnixMilli())
	}
	return wsql.Query{
		Query: fmt.Sprintf("INSERT INTO %q (uuid, payload, metadata, created_at) VALUES %s", p.Topic, strings.Join(rows, ", ")),
		Args:  args,
	}, nil
}

// SelectQuery implements wsql.SchemaAdapter. In PostgreSQL the rows are locked until they are
// removed: of several forwarders one works, and the others wait for it.
func (t table) SelectQuery(p wsql.SelectQueryParams) (wsql.Query, error) {
	query := fmt.Sprintf("SELECT id, uuid, payload, metadata FROM %q ORDER BY id LIMIT %d", p.Topic, batch)
	if t.postgres {
		query += " FOR UPDATE"
	}
	return wsql.Query{Query: query}, nil
}

// UnmarshalMessage implements wsql.SchemaAdapter.
func (t table) UnmarshalMessage(p wsql.UnmarshalMessageParams) (wsql.Row, error) {
	var r wsql.Row
	if err := p.Row.Scan(&r.Offset, &r.UUID, &r.Payload, &r.Metadata); err != nil {
		return wsql.Row{}, err
	}
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	if err := json.Unmarshal(r.Metadata, &r.Msg.Metadata); err != nil {
		return wsql.Row{}, fmt.Errorf("metadata of row %d: %w", r.Offset, err)
	}
	return r, nil
}

// SubscribeIsolationLevel implements wsql.SchemaAdapter. READ COMMITTED goes on with what is left
// when another forwarder has removed the rows that this one has waited for; under REPEATABLE READ
// that is an error.
func (t table) SubscribeIsolationLevel() sql.IsolationLevel {
	if t.postgres {
		return sql.LevelReadCommitted
	}
	return sql.LevelDefault
}

// acknowledge removes what was published.
type acknowledge struct{}

var _ wsql.OffsetsAdapter = acknowledge{}

// AckMessageQuery implements wsql.OffsetsAdapter. Rows has all that were read; those behind
// LastRow were not published, because the first of them could not be within AckDeadline. They
// are named one by one: a transaction that has begun earlier may commit a row with a lower id
// at any time.
func (acknowledge) AckMessageQuery(p wsql.AckMessageQueryParams) (wsql.Query, error) {
	var places []string
	var args []any
	for _, row := range p.Rows {
		args = append(args, row.Offset)
		places = append(places, fmt.Sprintf("$%d", len(args)))
		if row.Offset == p.LastRow.Offset {
			break
		}
	}
	return wsql.Query{Query: fmt.Sprintf("DELETE FROM %q WHERE id IN (%s)", p.Topic, strings.Join(places, ", ")), Args: args}, nil
}

// The rows themselves say what is next: there are no offsets to keep.

// NextOffsetQuery implements wsql.OffsetsAdapter.
func (acknowledge) NextOffsetQuery(wsql.NextOffsetQueryParams) (q wsql.Query, err error) { return }

// ConsumedMessageQuery implements wsql.OffsetsAdapter.
func (acknowledge) ConsumedMessageQuery(wsql.ConsumedMessageQueryParams) (q wsql.Query, err error) {
	return
}

// SchemaInitializingQueries implements wsql.OffsetsAdapter.
func (acknowledge) SchemaInitializingQueries(wsql.OffsetsSchemaInitializingQueriesParams) (q []wsql.Query, err error) {
	return
}

// BeforeSubscribingQueries implements wsql.OffsetsAdapter.
func (acknowledge) BeforeSubscribingQueries(wsql.BeforeSubscribingQueriesParams) (q []wsql.Query, err error) {
	return
}

// withoutTx runs the forwarder's statements one by one. In SQLite a transaction that reads and
// then writes is refused if anybody has written meanwhile, and one that is to write from its
// beginning keeps all others from writing: nobody could place an order while Redis is away. No
// lock is needed, since a second forwarder could only publish again what the publisher knows.
type withoutTx struct{ wsql.Beginner }

// BeginTx begins nothing.
func (d withoutTx) BeginTx(context.Context, *sql.TxOptions) (wsql.Tx, error) {
	return noTx{d.Beginner}, nil
}

type noTx struct{ wsql.ContextExecutor }

func (noTx) Commit() error   { return nil }
func (noTx) Rollback() error { return nil }
