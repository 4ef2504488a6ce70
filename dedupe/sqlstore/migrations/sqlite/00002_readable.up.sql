-- +goose Up
-- Records as sqlite3 shows them. What has a NUL in it is in hex, with 0x. An empty namespace
-- is the row of the store that purges, and no record.
CREATE VIEW IF NOT EXISTS {table}_readable AS
SELECT
  CASE WHEN instr(namespace, x'00') > 0 THEN '0x' || hex(namespace) ELSE CAST(namespace AS TEXT) END AS namespace,
  CASE WHEN instr(topic, x'00') > 0 THEN '0x' || hex(topic) ELSE CAST(topic AS TEXT) END AS topic,
  CASE WHEN instr(handler, x'00') > 0 THEN '0x' || hex(handler) ELSE CAST(handler AS TEXT) END AS handler,
  CASE WHEN instr(event, x'00') > 0 THEN '0x' || hex(event) ELSE CAST(event AS TEXT) END AS event,
  strftime('%Y-%m-%dT%H:%M:%fZ', committed_at / 1000.0, 'unixepoch') AS committed_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch') AS expires_at,
  CASE
    WHEN consumer_group IS NULL THEN NULL
    WHEN length(consumer_group) = 0 THEN CAST(namespace AS TEXT)
    WHEN instr(consumer_group, x'00') > 0 THEN '0x' || hex(consumer_group)
    ELSE CAST(consumer_group AS TEXT)
  END AS consumer_group,
  lower(hex(fingerprint)) AS fingerprint,
  coalesce(length(outputs), 0) AS output_bytes,
  id
FROM {plain}
WHERE length(namespace) > 0;
CREATE TABLE IF NOT EXISTS {table}_version (
  version    INTEGER NOT NULL PRIMARY KEY, -- the number of a file
  applied_at TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
);
INSERT OR IGNORE INTO {table}_version (version) VALUES (1), (2);
