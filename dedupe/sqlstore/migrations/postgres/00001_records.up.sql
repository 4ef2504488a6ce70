-- +goose Up
-- One row for each event and handler. A row that nobody else sees yet is a claim.
-- Names and keys are bytes: text refuses NUL, and collations make different keys one.
CREATE TABLE IF NOT EXISTS {table} (
  id           bytea  PRIMARY KEY, -- SHA-256 of the key
  namespace    bytea  NOT NULL,
  topic        bytea  NOT NULL,
  handler      bytea  NOT NULL,
  event        bytea  NOT NULL,
  token        bytea  NOT NULL,
  committed_at bigint NOT NULL,    -- milliseconds since 1970
  expires_at   bigint NOT NULL,
  fingerprint  bytea,
  outputs      bytea,              -- messages that are not settled
  consumer_group bytea             -- of who made the record; NULL: not known, empty: as the namespace
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (expires_at);
