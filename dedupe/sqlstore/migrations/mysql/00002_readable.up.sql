-- +goose Up
-- Records as a client shows them. What is not UTF-8 is in hex, with 0x. An empty namespace
-- is the row of the store that purges, and no record.
CREATE OR REPLACE VIEW {table}_readable AS
SELECT
  CASE WHEN CAST(CONVERT(namespace USING utf8mb4) AS BINARY) = namespace THEN CONVERT(namespace USING utf8mb4) ELSE CONCAT('0x', HEX(namespace)) END AS namespace,
  CASE WHEN CAST(CONVERT(topic USING utf8mb4) AS BINARY) = topic THEN CONVERT(topic USING utf8mb4) ELSE CONCAT('0x', HEX(topic)) END AS topic,
  CASE WHEN CAST(CONVERT(handler USING utf8mb4) AS BINARY) = handler THEN CONVERT(handler USING utf8mb4) ELSE CONCAT('0x', HEX(handler)) END AS handler,
  CASE WHEN CAST(CONVERT(event USING utf8mb4) AS BINARY) = event THEN CONVERT(event USING utf8mb4) ELSE CONCAT('0x', HEX(event)) END AS event,
  FROM_UNIXTIME(committed_at / 1000) AS committed_at, -- in the session's time zone
  FROM_UNIXTIME(expires_at / 1000) AS expires_at,
  CASE
    WHEN consumer_group IS NULL THEN NULL
    WHEN CAST(CONVERT(COALESCE(NULLIF(consumer_group, ''), namespace) USING utf8mb4) AS BINARY) = COALESCE(NULLIF(consumer_group, ''), namespace)
      THEN CONVERT(COALESCE(NULLIF(consumer_group, ''), namespace) USING utf8mb4)
    ELSE CONCAT('0x', HEX(COALESCE(NULLIF(consumer_group, ''), namespace)))
  END AS consumer_group,
  LOWER(HEX(fingerprint)) AS fingerprint,
  COALESCE(LENGTH(outputs), 0) AS output_bytes,
  id
FROM {table}
WHERE LENGTH(namespace) > 0;
CREATE TABLE IF NOT EXISTS {table}_version (
  version    INT       NOT NULL PRIMARY KEY, -- the number of a file
  applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE=InnoDB;
INSERT IGNORE INTO {table}_version (version) VALUES (1), (2);
