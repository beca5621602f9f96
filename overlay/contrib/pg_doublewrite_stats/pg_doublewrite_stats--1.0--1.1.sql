/* contrib/pg_doublewrite_stats/pg_doublewrite_stats--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_doublewrite_stats UPDATE TO '1.1'" to load this file. \quit

CREATE FUNCTION pg_doublewrite_batch_sizes(
	OUT pages_from integer,
	OUT pages_to integer,
	OUT batches bigint,
	OUT logged_batches bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_doublewrite_stats_since(
	OUT stats_reset timestamp with time zone,
	OUT wal_start pg_lsn)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_doublewrite_last_restore(
	OUT finished timestamp with time zone,
	OUT batches bigint,
	OUT pages_examined bigint,
	OUT pages_restored bigint,
	OUT pages_identical bigint,
	OUT pages_missing bigint,
	OUT pages_buffered bigint,
	OUT bytes_read bigint,
	OUT duration_ms double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_doublewrite_ledger(
	OUT reltablespace oid,
	OUT reldatabase oid,
	OUT relfilenode oid,
	OUT relforknumber smallint,
	OUT relblocknumber bigint,
	OUT log_segment text,
	OUT log_offset integer,
	OUT lsn_before pg_lsn,
	OUT lsn_after pg_lsn)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_stat_reset_double_writes()
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- Everything the engine has counted since recovery was over, or since the
-- statistics were reset.  What 1.0 had comes first.
CREATE OR REPLACE VIEW pg_stat_double_writes AS
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
	max(value) FILTER (WHERE name = 'log_full') AS log_full,
	max(value) FILTER (WHERE name = 'checkpoints') AS checkpoints,
	max(value) FILTER (WHERE name = 'would_log') AS pages_would_log,
	max(value) FILTER (WHERE name = 'would_log_batches') AS batches_would_log,
	max(value) FILTER (WHERE name = 'first_changes') AS first_changes,
	max(value) FILTER (WHERE name = 'first_change_bytes') AS first_change_bytes,
	max(value) FILTER (WHERE name = 'images') AS images,
	max(value) FILTER (WHERE name = 'image_bytes') AS image_bytes,
	max(value) FILTER (WHERE name = 'in_epoch') AS pages_in_epoch,
	max(value) FILTER (WHERE name = 'logged_bytes') AS log_page_bytes,
	round(max(value) FILTER (WHERE name = 'logged')::numeric * current_setting('block_size')::bigint /
		  nullif(max(value) FILTER (WHERE name = 'logged_bytes'), 0), 2) AS compression_ratio,
	round(max(value) FILTER (WHERE name = 'home_pages')::numeric /
		  nullif(max(value) FILTER (WHERE name = 'home_writes'), 0), 2) AS combining_ratio,
	(SELECT stats_reset FROM pg_doublewrite_stats_since()) AS stats_reset
FROM pg_doublewrite_counters();

-- How many batches had how many pages, and how many pages of a batch were
-- double-written: each such batch costs one sync of the log.
CREATE VIEW pg_stat_double_write_batches AS
SELECT * FROM pg_doublewrite_batch_sizes();

-- The last restore of this cluster, also if the server has been restarted
-- since, and the pages that it wrote home.
CREATE VIEW pg_double_write_last_restore AS
SELECT r.* FROM pg_doublewrite_last_restore() r
WHERE r.finished IS NOT NULL;

CREATE VIEW pg_double_write_ledger AS
SELECT * FROM pg_doublewrite_ledger();

-- What the sizes in force have meant for the work done so far, in words.
CREATE VIEW pg_double_write_sizing AS
WITH s AS (
	SELECT d.*, l.*,
		greatest(d.checkpoints, 1) AS checkpoints_1,
		d.stage_full::numeric / nullif(d.pages_staged, 0) AS full_ratio,
		d.log_syncs_by_backends::numeric / nullif(d.log_syncs, 0) AS backend_ratio,
		d.pages_logged::numeric / nullif(d.log_syncs, 0) AS pages_per_sync
	FROM pg_stat_double_writes d, pg_double_write_log l
)
SELECT 'double_write_stage_size'::text AS setting,
	pg_size_pretty(stage_slots * current_setting('block_size')::bigint) AS in_force,
	CASE WHEN stage_full = 0 THEN 'ok'
		 WHEN full_ratio < 0.001 THEN 'ok'
		 ELSE 'too small' END AS verdict,
	CASE WHEN pages_staged = 0 THEN 'Nothing has been written yet.'
		 WHEN stage_full = 0 THEN 'The stage has never been full.'
		 WHEN full_ratio < 0.001 THEN
			format('The stage was full for %s of %s pages, which is rare.', stage_full, pages_staged)
		 ELSE format('The stage was full for %s of %s pages (%s %%).  Try %s; if that does not help, storage is the limit.',
			stage_full, pages_staged, round(100 * full_ratio, 1),
			pg_size_pretty(2 * stage_slots * current_setting('block_size')::bigint))
	END AS explanation
FROM s
UNION ALL
SELECT 'double_write_buffer_size',
	pg_size_pretty(limit_bytes),
	CASE WHEN log_full > 0 THEN 'too small'
		 WHEN sync_cycles > 4 * checkpoints_1 THEN 'could be larger'
		 ELSE 'ok' END,
	CASE WHEN log_write_bytes = 0 THEN 'The log has not been used.'
		 WHEN log_full > 0 THEN
			format('Pages had to wait %s times for space in the log.  Try %s.', log_full,
				pg_size_pretty(least(2 * limit_bytes, 16384 * 1048576::bigint)))
		 WHEN sync_cycles > 4 * checkpoints_1 THEN
			format('Data files were synced %s times in %s checkpoints to free space in the log.  With %s there would be few of these.',
				sync_cycles, checkpoints,
				pg_size_pretty(least(limit_bytes * ceil(sync_cycles::numeric / checkpoints_1),
					16384 * 1048576::numeric)))
		 ELSE format('Data files were synced %s times in %s checkpoints to free space in the log, and nothing waited for it.',
				sync_cycles, checkpoints)
	END
FROM s
UNION ALL
SELECT 'shared_buffers, bgwriter_*',
	current_setting('shared_buffers'),
	CASE WHEN backend_ratio > 0.05 THEN 'background writer too slow' ELSE 'ok' END,
	CASE WHEN log_syncs = 0 THEN 'The log has not been synced.'
		 WHEN backend_ratio > 0.05 THEN
			format('Sessions of clients did %s of %s syncs of the log.  The background writer cannot follow: a larger stage helps with bursts, faster storage or more shared buffers with the rest.',
				log_syncs_by_backends, log_syncs)
		 ELSE format('Sessions of clients did %s of %s syncs of the log; one sync served %s pages.',
				log_syncs_by_backends, log_syncs, round(pages_per_sync, 1))
	END
FROM s;

-- What the work done so far would have cost in each mode.  Estimated from
-- counters; the documentation says how.
CREATE VIEW pg_double_write_what_if AS
WITH s AS (
	SELECT d.*, b.wal_start,
		CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END AS wal_now,
		current_setting('block_size')::bigint AS page,
		pages_logged + pages_would_log AS pages_to_log,
		-- what has been compressed so far says how well others would be
		coalesce(log_page_bytes::numeric / nullif(pages_logged, 0),
			current_setting('block_size')::numeric) AS stored_page,
		(SELECT sum(logged_batches) FROM pg_stat_double_write_batches)::bigint
			+ batches_would_log AS batches_to_log
	FROM pg_stat_double_writes d, pg_doublewrite_stats_since() b
), w AS (
	SELECT s.*,
		CASE WHEN wal_now >= wal_start THEN
			greatest((wal_now - wal_start)::bigint - image_bytes, 0) END AS wal_bare,
		-- if images have been compressed, more images would be as well
		(first_change_bytes *
			CASE WHEN images > 0 THEN least(1, image_bytes::numeric / images /
				(first_change_bytes::numeric / nullif(first_changes, 0))) ELSE 1 END)::bigint AS images_all
	FROM s
), m AS (
	SELECT w.*, v.mode,
		CASE v.mode WHEN 'full_pages' THEN wal_bare + images_all ELSE wal_bare END AS wal_mode
	FROM w, (VALUES ('off'), ('full_pages'), ('double_writes')) v(mode)
)
SELECT mode,
	CASE mode WHEN 'full_pages' THEN current_setting('io_torn_pages_protection') = mode AND current_setting('full_page_writes')::boolean
			  WHEN 'off' THEN current_setting('io_torn_pages_protection') = mode OR
				(current_setting('io_torn_pages_protection') = 'full_pages' AND NOT current_setting('full_page_writes')::boolean)
			  ELSE current_setting('io_torn_pages_protection') = mode END AS in_force,
	wal_mode AS wal_bytes,
	CASE mode WHEN 'full_pages' THEN first_changes ELSE 0 END AS page_images,
	CASE mode WHEN 'double_writes' THEN (pages_to_log * stored_page)::bigint + batches_to_log * page ELSE 0 END AS double_write_bytes,
	CASE mode WHEN 'double_writes' THEN batches_to_log + checkpoints ELSE 0 END AS double_write_syncs,
	(wal_mode / greatest(checkpoints, 1))::bigint AS redo_bytes_per_checkpoint
FROM m;

-- Figures about the whole cluster are for everybody, as those of
-- pg_stat_bgwriter and the like; what names relations of any database is for
-- roles that may read all statistics.
GRANT SELECT ON pg_stat_double_write_batches, pg_double_write_last_restore,
	pg_double_write_sizing, pg_double_write_what_if TO PUBLIC;

REVOKE ALL ON FUNCTION pg_doublewrite_ledger() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_doublewrite_ledger() TO pg_read_all_stats;
GRANT SELECT ON pg_double_write_ledger TO pg_read_all_stats;

REVOKE ALL ON FUNCTION pg_stat_reset_double_writes() FROM PUBLIC;
