-- +goose Up
-- One row for each event and handler. A row that nobody else sees yet is a claim.
-- Names and keys are bytes: the default collations take pay:A, pay:a and 'pay:A ' for
-- one key.
CREATE TABLE IF NOT EXISTS {table} (
  id           BINARY(32)      NOT NULL PRIMARY KEY, -- SHA-256 of the key
  namespace    VARBINARY(2048) NOT NULL,
  topic        VARBINARY(2048) NOT NULL,
  handler      VARBINARY(2048) NOT NULL,
  event        VARBINARY(2048) NOT NULL,
  token        VARBINARY(128)  NOT NULL,
  committed_at BIGINT          NOT NULL,             -- milliseconds since 1970
  expires_at   BIGINT          NOT NULL,
  fingerprint  VARBINARY(16),
  outputs      LONGBLOB,                             -- messages that are not settled
  consumer_group VARBINARY(2048),                    -- of who made the record; NULL: not known, empty: as the namespace
  INDEX {index} (expires_at)
) ENGINE=InnoDB;
