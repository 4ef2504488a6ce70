-- +goose Up
-- Records as psql shows them. What is not UTF-8 is escaped: \377 is a byte, \\ a backslash.
-- An empty namespace is the row of the store that purges, and no record.
CREATE OR REPLACE VIEW {table}_readable AS
SELECT
  CASE WHEN encode(r.namespace, 'hex') ~ text.valid THEN convert_from(r.namespace, 'UTF8') ELSE encode(r.namespace, 'escape') END AS namespace,
  CASE WHEN encode(r.topic, 'hex') ~ text.valid THEN convert_from(r.topic, 'UTF8') ELSE encode(r.topic, 'escape') END AS topic,
  CASE WHEN encode(r.handler, 'hex') ~ text.valid THEN convert_from(r.handler, 'UTF8') ELSE encode(r.handler, 'escape') END AS handler,
  CASE WHEN encode(r.event, 'hex') ~ text.valid THEN convert_from(r.event, 'UTF8') ELSE encode(r.event, 'escape') END AS event,
  to_timestamp(r.committed_at / 1000.0) AS committed_at,
  to_timestamp(r.expires_at / 1000.0) AS expires_at,
  CASE
    WHEN r.consumer_group IS NULL THEN NULL
    WHEN encode(coalesce(nullif(r.consumer_group, ''), r.namespace), 'hex') ~ text.valid THEN convert_from(coalesce(nullif(r.consumer_group, ''), r.namespace), 'UTF8')
    ELSE encode(coalesce(nullif(r.consumer_group, ''), r.namespace), 'escape')
  END AS consumer_group,
  encode(r.fingerprint, 'hex') AS fingerprint,
  coalesce(length(r.outputs), 0) AS output_bytes,
  r.id
FROM {table} AS r
-- Bytes of valid UTF-8 without NUL, in hex; of ASCII where the database has another encoding.
CROSS JOIN (SELECT CASE WHEN getdatabaseencoding() = 'UTF8' THEN
  '^(0[1-9a-f]|[1-7].|(c[2-9a-f]|d.)[89ab].|e0[ab].[89ab].|(e[1-9a-c]|e[ef])([89ab].){2}|ed[89].[89ab].|f0[9ab].([89ab].){2}|f[123]([89ab].){3}|f48.([89ab].){2})*$'
  ELSE '^(0[1-9a-f]|[1-7].)*$' END AS valid) AS text
WHERE length(r.namespace) > 0;
CREATE TABLE IF NOT EXISTS {table}_version (
  version    integer     PRIMARY KEY, -- the number of a file
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {table}_version (version) VALUES (1), (2) ON CONFLICT DO NOTHING;
