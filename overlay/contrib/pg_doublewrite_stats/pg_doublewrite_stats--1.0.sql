/* contrib/pg_doublewrite_stats/pg_doublewrite_stats--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_doublewrite_stats" to load this file. \quit

CREATE FUNCTION pg_doublewrite_counters(OUT name text, OUT value bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_doublewrite_log(
	OUT armed boolean,
	OUT next_batch bigint,
	OUT low_water bigint,
	OUT used_bytes bigint,
	OUT limit_bytes bigint,
	OUT files_to_sync integer,
	OUT stage_slots integer)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_doublewrite_restore(
	OUT batches bigint,
	OUT pages_examined bigint,
	OUT pages_restored bigint,
	OUT pages_identical bigint,
	OUT pages_missing bigint,
	OUT bytes_read bigint,
	OUT duration_ms double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- Everything the engine has counted since the server was started.
CREATE VIEW pg_stat_double_writes AS
SELECT
	max(value) FILTER (WHERE name = 'staged') AS pages_staged,
	max(value) FILTER (WHERE name = 'replaced') AS pages_replaced,
	max(value) FILTER (WHERE name = 'stage_hits') AS stage_hits,
	max(value) FILTER (WHERE name = 'stage_full') AS stage_full,
	max(value) FILTER (WHERE name = 'discarded') AS pages_discarded,
	max(value) FILTER (WHERE name = 'batches') AS batches,
	max(value) FILTER (WHERE name = 'logged') AS pages_logged,
	max(value) FILTER (WHERE name = 'exempt') AS pages_exempt,
	max(value) FILTER (WHERE name = 'log_bytes') AS log_write_bytes,
	max(value) FILTER (WHERE name = 'log_writes') AS log_writes,
	max(value) FILTER (WHERE name = 'log_syncs') AS log_syncs,
	max(value) FILTER (WHERE name = 'log_sync_usec') / 1000.0 AS log_sync_time,
	max(value) FILTER (WHERE name = 'foreground_syncs') AS log_syncs_by_backends,
	max(value) FILTER (WHERE name = 'home_pages') AS home_pages,
	max(value) FILTER (WHERE name = 'home_writes') AS home_writes,
	max(value) FILTER (WHERE name = 'sync_cycles') AS sync_cycles,
	max(value) FILTER (WHERE name = 'sync_cycle_files') AS sync_cycle_files,
	max(value) FILTER (WHERE name = 'log_full') AS log_full
FROM pg_doublewrite_counters();

CREATE VIEW pg_double_write_log AS
SELECT * FROM pg_doublewrite_log();

-- No row if this server found nothing to restore when it was started.
CREATE VIEW pg_double_write_restore AS
SELECT r.* FROM pg_doublewrite_restore() r WHERE r.batches IS NOT NULL;

-- As for other statistics about the whole cluster, reading needs no privilege
-- but the use of the views.
GRANT SELECT ON pg_stat_double_writes, pg_double_write_log, pg_double_write_restore TO PUBLIC;
