/* contrib/pg_doublewrite_stats/pg_doublewrite_stats--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_doublewrite_stats" to load this file. \quit

-- The schema of the extension may belong to any role.  So that nothing in it is
-- used by accident, functions are named with their schema, and operators have
-- operands of the very types that pg_catalog has one for.

CREATE FUNCTION pg_double_write_counters(OUT name text, OUT value bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_stat_double_writes_since(OUT stats_reset timestamp with time zone)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_double_write_log(
	OUT armed boolean,
	OUT next_batch bigint,
	OUT low_water bigint,
	OUT used_bytes bigint,
	OUT limit_bytes bigint,
	OUT max_limit_bytes bigint,
	OUT files_to_sync integer,
	OUT stage_slots integer)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_double_write_mode(
	OUT in_force text,
	OUT requested text,
	OUT armed boolean,
	OUT images boolean,
	OUT since timestamp with time zone,
	OUT checkpoint_after pg_lsn)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_double_write_restore(
	OUT finished timestamp with time zone,
	OUT batches bigint,
	OUT pages_examined bigint,
	OUT pages_restored bigint,
	OUT pages_identical bigint,
	OUT pages_missing bigint,
	OUT bytes_read bigint,
	OUT duration_ms double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_double_write_recovery(
	OUT redo_lsn pg_lsn,
	OUT wal_bytes bigint,
	OUT pages_to_redo bigint,
	OUT pages_to_restore bigint,
	OUT log_bytes bigint,
	OUT files integer)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_instant_recovery_pages(
	OUT opened_at timestamp with time zone,
	OUT pages bigint,
	OUT records bigint,
	OUT pages_pending bigint,
	OUT pages_failed bigint,
	OUT pages_on_demand bigint,
	OUT workers integer)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_fetched_pages(
	OUT pages_damaged bigint,
	OUT pages_awaited bigint,
	OUT pages_replaced bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_instant_recovery_give_up(relation text, block bigint)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION pg_stat_reset_double_writes()
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_atomic_write_places(
	OUT tablespace oid,
	OUT file_system text,
	OUT device text,
	OUT unit_bytes bigint,
	OUT proof text,
	OUT looked_at timestamp with time zone,
	OUT pages_atomic bigint,
	OUT pages_logged bigint,
	OUT refusals bigint,
	OUT advice text)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- Everything the engine has counted since recovery was over, or since the
-- statistics were reset.
CREATE VIEW pg_stat_double_writes AS
WITH c AS (
	SELECT
		pg_catalog.max(value) FILTER (WHERE name = 'staged') AS pages_staged,
		pg_catalog.max(value) FILTER (WHERE name = 'replaced') AS pages_replaced,
		pg_catalog.max(value) FILTER (WHERE name = 'stage_hits') AS stage_hits,
		pg_catalog.max(value) FILTER (WHERE name = 'stage_full') AS stage_full,
		pg_catalog.max(value) FILTER (WHERE name = 'discarded') AS pages_discarded,
		pg_catalog.max(value) FILTER (WHERE name = 'batches') AS batches,
		pg_catalog.max(value) FILTER (WHERE name = 'logged') AS pages_logged,
		pg_catalog.max(value) FILTER (WHERE name = 'exempt') AS pages_exempt,
		pg_catalog.max(value) FILTER (WHERE name = 'in_epoch') AS pages_in_epoch,
		pg_catalog.max(value) FILTER (WHERE name = 'only_hints') AS pages_only_hints,
		pg_catalog.max(value) FILTER (WHERE name = 'log_bytes') AS log_write_bytes,
		pg_catalog.max(value) FILTER (WHERE name = 'logged_bytes') AS log_page_bytes,
		pg_catalog.max(value) FILTER (WHERE name = 'log_writes') AS log_writes,
		pg_catalog.max(value) FILTER (WHERE name = 'log_syncs') AS log_syncs,
		pg_catalog.max(value) FILTER (WHERE name = 'log_sync_usec') AS log_sync_usec,
		pg_catalog.max(value) FILTER (WHERE name = 'foreground_syncs') AS log_syncs_by_backends,
		pg_catalog.max(value) FILTER (WHERE name = 'home_pages') AS home_pages,
		pg_catalog.max(value) FILTER (WHERE name = 'home_writes') AS home_writes,
		pg_catalog.max(value) FILTER (WHERE name = 'atomic_pages') AS atomic_pages,
		pg_catalog.max(value) FILTER (WHERE name = 'atomic_writes') AS atomic_writes,
		pg_catalog.max(value) FILTER (WHERE name = 'sync_cycles') AS sync_cycles,
		pg_catalog.max(value) FILTER (WHERE name = 'space_cycles') AS sync_cycles_for_space,
		pg_catalog.max(value) FILTER (WHERE name = 'file_cycles') AS sync_cycles_for_files,
		pg_catalog.max(value) FILTER (WHERE name = 'sync_cycle_files') AS sync_cycle_files,
		pg_catalog.max(value) FILTER (WHERE name = 'log_full') AS log_full,
		pg_catalog.max(value) FILTER (WHERE name = 'files_full') AS files_full,
		pg_catalog.max(value) FILTER (WHERE name = 'checkpoints') AS checkpoints
	FROM pg_double_write_counters()
)
SELECT pages_staged, pages_replaced, stage_hits, stage_full, pages_discarded,
	batches, pages_logged, pages_exempt, pages_in_epoch, pages_only_hints,
	log_write_bytes, log_page_bytes,
	pg_catalog.round(pages_logged::numeric * pg_catalog.current_setting('block_size')::numeric /
		nullif(log_page_bytes::numeric, 0::numeric), 2) AS compression_ratio,
	log_writes, log_syncs,
	log_sync_usec::numeric / 1000::numeric AS log_sync_time,
	log_syncs_by_backends, home_pages, home_writes, atomic_pages, atomic_writes,
	pg_catalog.round(home_pages::numeric / nullif(home_writes::numeric, 0::numeric), 2) AS combining_ratio,
	sync_cycles, sync_cycles_for_space, sync_cycles_for_files, sync_cycle_files,
	log_full, files_full, checkpoints, s.stats_reset
FROM c, pg_stat_double_writes_since() s;

CREATE VIEW pg_double_write_log AS
SELECT * FROM pg_double_write_log();

-- The mode that protects pages now, and the one that the settings ask for.
CREATE VIEW pg_double_write_mode AS
SELECT in_force, requested, in_force <> requested AS switching,
	checkpoint_after, since, armed, images
FROM pg_double_write_mode();

-- How pages are written in each tablespace, as far as the server has looked since
-- its start: it looks when it writes the first page there that needs protection.
CREATE VIEW pg_atomic_write_status AS
SELECT t.spcname AS tablespace, p.file_system, p.device, p.unit_bytes,
	coalesce(p.proof, 'not looked at'::text) AS proof, p.looked_at,
	p.pages_atomic, p.pages_logged, p.refusals, p.advice
FROM pg_catalog.pg_tablespace t
	LEFT JOIN pg_atomic_write_places() p ON p.tablespace = t.oid;

-- What this server has restored when it was started.
CREATE VIEW pg_double_write_restore AS
SELECT r.* FROM pg_double_write_restore() r
WHERE r.finished IS NOT NULL;

-- What the sizes in force have meant for the work done so far, in words.
-- Nothing is said of a size before enough has been done that shares mean
-- something, nor because of what happens once in a thousand times.
CREATE VIEW pg_double_write_sizing AS
WITH n AS (
	SELECT d.*, l.armed, l.limit_bytes::numeric, l.max_limit_bytes::numeric,
		l.stage_slots::numeric * pg_catalog.current_setting('block_size')::numeric AS stage_bytes,
		(SELECT max_val::numeric * pg_catalog.current_setting('block_size')::numeric
			FROM pg_catalog.pg_settings
			WHERE name = 'double_write_stage_size') AS max_stage_bytes,
		d.log_full - d.files_full AS space_waits,
		greatest(d.checkpoints, 1::bigint)::numeric AS checkpoints_1,
		nullif(d.pages_staged::numeric, 0::numeric) AS staged_1,
		nullif(d.log_syncs::numeric, 0::numeric) AS syncs_1
	FROM pg_stat_double_writes d, pg_double_write_log l
), s AS (
	SELECT n.*,
		stage_full::numeric / staged_1 AS full_ratio,
		log_syncs_by_backends::numeric / syncs_1 AS backend_ratio,
		space_waits::numeric / syncs_1 AS wait_ratio,
		sync_cycles_for_space::numeric / checkpoints_1 AS space_cycle_ratio,
		sync_cycles_for_files::numeric / checkpoints_1 AS file_cycle_ratio,
		pages_logged::numeric / syncs_1 AS pages_per_sync
	FROM n
), v AS (
	SELECT s.*,
		CASE WHEN pages_staged < 1000::bigint THEN 'unknown'
			 WHEN full_ratio < 0.001 THEN 'ok'
			 WHEN stage_bytes >= max_stage_bytes THEN 'at its maximum'
			 ELSE 'too small' END AS stage_verdict,
		CASE WHEN log_syncs < 100::bigint THEN 'unknown'
			 WHEN wait_ratio >= 0.001 AND limit_bytes >= max_limit_bytes THEN 'at its maximum'
			 WHEN wait_ratio >= 0.001 THEN 'too small'
			 WHEN file_cycle_ratio > 4::numeric THEN 'many files'
			 WHEN space_cycle_ratio <= 4::numeric THEN 'ok'
			 WHEN limit_bytes >= max_limit_bytes THEN 'at its maximum'
			 ELSE 'could be larger' END AS log_verdict,
		CASE WHEN log_syncs < 100::bigint THEN 'unknown'
			 WHEN backend_ratio > 0.05 THEN 'background writer too slow'
			 ELSE 'ok' END AS writer_verdict
	FROM s
)
SELECT 'double_write_stage_size'::text AS setting,
	pg_catalog.pg_size_pretty(stage_bytes) AS in_force,
	stage_verdict AS verdict,
	CASE stage_verdict
		WHEN 'unknown' THEN
			pg_catalog.format('Only %s pages have been written, which is too few to judge.', pages_staged)
		WHEN 'ok' THEN
			pg_catalog.format('The stage was full for %s of %s pages.', stage_full, pages_staged)
		WHEN 'at its maximum' THEN
			pg_catalog.format('The stage was full for %s of %s pages (%s %%), and cannot be larger: storage is the limit.',
				stage_full, pages_staged, pg_catalog.round(100::numeric * full_ratio, 1))
		ELSE
			pg_catalog.format('The stage was full for %s of %s pages (%s %%).  Try %s; if that does not help, storage is the limit.',
				stage_full, pages_staged, pg_catalog.round(100::numeric * full_ratio, 1),
				pg_catalog.pg_size_pretty(least(2::numeric * stage_bytes, max_stage_bytes)))
	END AS explanation
FROM v
UNION ALL
SELECT 'double_write_buffer_size',
	pg_catalog.pg_size_pretty(limit_bytes),
	log_verdict,
	CASE
		WHEN log_verdict = 'unknown' THEN
			pg_catalog.format('The log has been synced only %s times, which is too few to judge.', log_syncs)
		WHEN log_verdict = 'too small' THEN
			pg_catalog.format('Pages had to wait %s times in %s syncs for space in the log.  Try %s.',
				space_waits, log_syncs,
				pg_catalog.pg_size_pretty(least(2::numeric * limit_bytes, max_limit_bytes)))
		WHEN log_verdict = 'could be larger' THEN
			pg_catalog.format('Data files were synced %s times in %s checkpoints to free space in the log.  With %s there would be few of these.',
				sync_cycles_for_space, checkpoints,
				pg_catalog.pg_size_pretty(least(limit_bytes * pg_catalog.ceil(space_cycle_ratio), max_limit_bytes)))
		WHEN log_verdict = 'at its maximum' THEN
			pg_catalog.format('Pages had to wait %s times for space in the log, data files were synced %s times in %s checkpoints to free some, and the log cannot be larger.  More frequent checkpoints or compression leave more room in it.',
				space_waits, sync_cycles_for_space, checkpoints)
		WHEN log_verdict = 'many files' THEN
			pg_catalog.format('Data files were synced %s times in %s checkpoints because more of them had been written than was foreseen when the server started.  A restart makes room for as many as the log could hold pages.',
				sync_cycles_for_files, checkpoints)
		ELSE
			pg_catalog.format('Data files were synced %s times in %s checkpoints to free space in the log, and pages had to wait for it %s times in %s syncs.',
				sync_cycles_for_space, checkpoints, space_waits, log_syncs)
	END
FROM v
UNION ALL
SELECT 'shared_buffers, bgwriter_*',
	pg_catalog.current_setting('shared_buffers'),
	writer_verdict,
	CASE writer_verdict
		WHEN 'unknown' THEN
			pg_catalog.format('The log has been synced only %s times, which is too few to judge.', log_syncs)
		WHEN 'ok' THEN
			pg_catalog.format('Sessions of clients did %s of %s syncs of the log; one sync served %s pages.',
				log_syncs_by_backends, log_syncs, pg_catalog.round(pages_per_sync, 1))
		ELSE
			pg_catalog.format('Sessions of clients did %s of %s syncs of the log.  The background writer cannot follow: a larger stage helps with bursts, faster storage or more shared buffers with the rest.',
				log_syncs_by_backends, log_syncs)
	END
FROM v;

-- The whole at one glance.
CREATE VIEW pg_double_write_summary AS
SELECT
	CASE WHEN m.switching THEN pg_catalog.format('%s, switching to %s', m.in_force, m.requested)
		ELSE m.in_force END AS mode,
	m.in_force <> 'off'::text AS protected,
	CASE WHEN l.armed THEN
		pg_catalog.format('%s of %s', pg_catalog.pg_size_pretty(l.used_bytes),
			pg_catalog.pg_size_pretty(l.limit_bytes))
		ELSE 'not in use' END AS log_in_use,
	coalesce((SELECT pg_catalog.format('%s of %s pages restored, %s',
			r.pages_restored, r.pages_examined, pg_catalog.date_trunc('second', r.finished))
		FROM pg_double_write_restore r), 'none') AS last_restore,
	CASE WHEN m.in_force = 'off'::text THEN 'pages are not protected'
		WHEN m.switching AND m.checkpoint_after IS NULL THEN
			pg_catalog.format('cannot switch to %s, see the server log', m.requested)
		ELSE coalesce((SELECT pg_catalog.string_agg(pg_catalog.format('%s: %s', s.setting, s.verdict), '; '
				ORDER BY s.setting)
			FROM pg_double_write_sizing s
			WHERE s.verdict <> 'ok'::text AND s.verdict <> 'unknown'::text), 'ok') END AS verdict
FROM pg_double_write_mode m, pg_double_write_log l;

-- What a start would have to do if the server crashed now.
CREATE VIEW pg_double_write_recovery AS
SELECT * FROM pg_double_write_recovery();

-- Instant recovery: pages that are redone after clients have got in, and which sessions wait for
-- one.  No row if the server has not been opened before redo.
CREATE VIEW pg_instant_recovery AS
SELECT p.opened_at, p.pages, p.records, p.pages_pending, p.pages_failed,
	p.pages_on_demand, p.workers,
	w.sessions AS sessions_waiting, w.since AS waiting_since
FROM pg_instant_recovery_pages() p,
	(SELECT count(*) AS sessions, min(a.query_start) AS since
		FROM pg_catalog.pg_stat_activity a
		WHERE a.wait_event = 'InstantRecoveryPage'::text) w
WHERE p.pages IS NOT NULL;

-- Pages that redo of a standby has found damaged since the server started, those of them
-- that it waits for, and those that have come from the primary.
CREATE VIEW pg_fetched_pages AS
SELECT * FROM pg_fetched_pages();

-- Figures about the whole cluster are for all roles, as those of
-- pg_stat_bgwriter and the like; what names relations of any database is for
-- roles that may read all statistics.
GRANT SELECT ON pg_stat_double_writes,
	pg_double_write_log, pg_double_write_mode, pg_double_write_restore,
	pg_double_write_sizing, pg_double_write_summary,
	pg_double_write_recovery, pg_instant_recovery, pg_fetched_pages,
	pg_atomic_write_status TO PUBLIC;

REVOKE ALL ON FUNCTION pg_stat_reset_double_writes() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_instant_recovery_give_up(text, bigint) FROM PUBLIC;
