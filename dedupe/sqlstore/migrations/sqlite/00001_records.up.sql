-- +goose Up
-- One row for each event and handler. A row that nobody else sees yet is a claim.
CREATE TABLE IF NOT EXISTS {table} (
  id           BLOB    NOT NULL PRIMARY KEY, -- SHA-256 of the key
  namespace    BLOB    NOT NULL,
  topic        BLOB    NOT NULL,
  handler      BLOB    NOT NULL,
  event        BLOB    NOT NULL,
  token        BLOB    NOT NULL,
  committed_at INTEGER NOT NULL,             -- milliseconds since 1970
  expires_at   INTEGER NOT NULL,
  fingerprint  BLOB,
  outputs      BLOB,                         -- messages that are not settled
  consumer_group BLOB                        -- of who made the record; NULL: not known, empty: as the namespace
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {index} ON {plain} (expires_at);
