/* src/test/modules/test_doublewrite/test_doublewrite--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION test_doublewrite" to load this file. \quit

-- what happens where home writes begin

CREATE FUNCTION dw_tear_at(point text)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- ... of pages of one tablespace

CREATE FUNCTION dw_fail_homes_in(tablespace oid, errcode text)
RETURNS void STRICT LANGUAGE SQL
AS $$
	SELECT points_fail_at('doublewrite-home-write', errcode, 1, 2147483647, tablespace)
$$;

CREATE FUNCTION dw_block_homes_in(tablespace oid, slow bool DEFAULT false)
RETURNS void STRICT LANGUAGE SQL
AS $$
	SELECT points_block_at('doublewrite-home-write', slow, tablespace)
$$;

-- driving the engine

CREATE FUNCTION dw_drain(patient bool DEFAULT true)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_drain_writethrough()
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_flush_batch(retry_failed bool DEFAULT true)
RETURNS bool STRICT
AS 'MODULE_PATHNAME', 'dw_flush_batch_sql' LANGUAGE C;

CREATE FUNCTION dw_sync_cycle()
RETURNS void STRICT
AS 'MODULE_PATHNAME', 'dw_sync_cycle_sql' LANGUAGE C;

-- Returns how many copies are in the log only, after that
CREATE FUNCTION dw_bring()
RETURNS int STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_bring_in(tablespace oid)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_copies_left()
RETURNS int STRICT
AS 'MODULE_PATHNAME', 'dw_copies_left_sql' LANGUAGE C;

CREATE FUNCTION dw_hold_home_writes(path text DEFAULT '')
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_carry_runs()
	RETURNS void AS 'MODULE_PATHNAME', 'dw_carry_runs_sql' LANGUAGE C STRICT;

CREATE FUNCTION dw_panic()
RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_sync_directory_critical(rel regclass)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_evict(rel regclass)
RETURNS int STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_remember_truncated(rel regclass)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_evict_all()
RETURNS int STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_dirty(rel regclass)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;
CREATE FUNCTION dw_flush_one(rel regclass)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;
CREATE FUNCTION dw_log_page(rel regclass)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- looking at it

CREATE FUNCTION dw_stats(
	OUT staged int8,
	OUT replaced int8,
	OUT stage_hits int8,
	OUT stage_full int8,
	OUT discarded int8,
	OUT batches int8,
	OUT logged int8,
	OUT exempt int8,
	OUT log_bytes int8,
	OUT log_writes int8,
	OUT log_syncs int8,
	OUT home_pages int8,
	OUT home_writes int8,
	OUT sync_cycles int8,
	OUT sync_cycle_files int8,
	OUT log_full int8,
	OUT foreground_syncs int8,
	OUT in_epoch int8,
	OUT logged_bytes int8,
	OUT atomic_pages int8,
	OUT atomic_writes int8,
	OUT only_hints int8)
STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_state(
	OUT started bool,
	OUT armed bool,
	OUT disarm_after pg_lsn,
	OUT slots int,
	OUT in_use int,
	OUT staged int,
	OUT next_batch int8,
	OUT low_water int8,
	OUT low_water_logged int8,
	OUT segno int8,
	OUT blockno int,
	OUT first_segno int8,
	OUT last_segno int8,
	OUT redo pg_lsn,
	OUT redo_pending pg_lsn,
	OUT cycles_done int8)
STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- How many slots a removal of a relation looks at, if the stage is not empty
CREATE FUNCTION dw_slots_looked_at()
RETURNS int STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_setting()
RETURNS text STRICT
AS 'MODULE_PATHNAME', 'dw_setting_sql' LANGUAGE C;

CREATE FUNCTION dw_restore_stats(
	OUT done bool,
	OUT batches int8,
	OUT examined int8,
	OUT restored int8,
	OUT identical int8,
	OUT missing int8,
	OUT bytes_read int8)
STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION dw_fill_removed_directories()
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- Memory for chains that is resident, in kB
CREATE FUNCTION dw_instant_resident()
RETURNS int8 STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- A figure by its name, or NULL
CREATE FUNCTION dw_figure(name text)
RETURNS int8 STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- what a start would do that finds these facts

CREATE FUNCTION dw_judge_start(facts text)
RETURNS text STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;
