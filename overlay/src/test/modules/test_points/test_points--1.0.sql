/* src/test/modules/test_points/test_points--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION test_points" to load this file. \quit

CREATE FUNCTION points_crash_at(point text, nth int DEFAULT 1)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION points_kill_at(point text, nth int DEFAULT 1)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION points_fail_at(point text, errcode text, nth int DEFAULT 1,
	times int DEFAULT 1, object oid DEFAULT 0)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- No process leaves the point until it is cleared, or each takes 1.2 seconds
CREATE FUNCTION points_block_at(point text, slow bool DEFAULT false,
	object oid DEFAULT 0)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION points_await_end_of_recovery_at(point text)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION points_hits(point text)
RETURNS int STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

CREATE FUNCTION points_clear(point text)
RETURNS void STRICT
AS 'MODULE_PATHNAME' LANGUAGE C;

-- A record of an extension, which names no block
CREATE FUNCTION points_log_record()
RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C;
