CREATE EXTENSION pg_doublewrite_stats;

-- every page that goes home passes through the stage
SELECT pages_staged AS before FROM pg_stat_double_writes \gset
CREATE TABLE dw_stats AS SELECT generate_series(1, 1000) AS a;
CHECKPOINT;
SELECT pages_staged > :before AS staged, home_pages >= home_writes AS combined
  FROM pg_stat_double_writes;

-- all counters have a column, beside two ratios and a time
SELECT count(*) + 3 - (SELECT count(*) FROM information_schema.columns
                       WHERE table_name = 'pg_stat_double_writes') AS missing
  FROM pg_double_write_counters();

SELECT used_bytes <= limit_bytes AS bounded, stage_slots >= 16 AS has_stage,
       limit_bytes <= max_limit_bytes AS bound_bounded,
       armed = (current_setting('io_torn_pages_protection') IN ('double_writes', 'atomic_writes')) AS as_set
  FROM pg_double_write_log;

-- the mode in force is that of the server, whatever a session has chosen
SELECT in_force = current_setting('io_torn_pages_protection') AS as_set,
       requested = in_force AS as_requested, switching, checkpoint_after,
       armed = (in_force IN ('double_writes', 'atomic_writes')) AS armed, images = (in_force = 'full_pages') AS images,
       since <= now() AS since
  FROM pg_double_write_mode;
SELECT in_force FROM pg_double_write_mode \gset
SET io_torn_pages_protection = full_pages;
SELECT in_force = :'in_force' AS servers FROM pg_double_write_mode;
RESET io_torn_pages_protection;

-- this server was not started after a crash
SELECT count(*) FROM pg_double_write_restore;

-- what a start would have to do if the server crashed now
SELECT redo_lsn <= pg_current_wal_insert_lsn() AS redo_lsn, wal_bytes > 0 AS has_wal,
       pages_to_redo >= 0 AS pages_to_redo, pages_to_restore >= 0 AS pages_to_restore,
       log_bytes >= 0 AS log_bytes, files >= 0 AS files
  FROM pg_double_write_recovery;

-- verdicts
SELECT setting, verdict IS NOT NULL AS verdict, explanation <> '' AS explained
  FROM pg_double_write_sizing ORDER BY 1;

-- the whole at one glance
SELECT mode = current_setting('io_torn_pages_protection') AS mode, protected,
       (log_in_use = 'not in use') = (mode NOT IN ('double_writes', 'atomic_writes')) AS log_in_use,
       last_restore, verdict <> '' AS judged
  FROM pg_double_write_summary;

-- reset
SELECT pages_staged AS staged, stats_reset AS was FROM pg_stat_double_writes \gset
SELECT pg_stat_reset_double_writes();
SELECT pages_staged < :staged AS reset, stats_reset > :'was' AS later
  FROM pg_stat_double_writes;

-- privileges
CREATE ROLE regress_dw_nobody;
CREATE ROLE regress_dw_monitor;
GRANT pg_monitor TO regress_dw_monitor;
SET ROLE regress_dw_nobody;
SELECT count(*) FROM pg_stat_double_writes;
SELECT count(*) FROM pg_double_write_summary;
SELECT pg_stat_reset_double_writes();
SET ROLE regress_dw_monitor;
SELECT count(*) FROM pg_double_write_restore;
SELECT pg_stat_reset_double_writes();
RESET ROLE;
DROP ROLE regress_dw_nobody;
DROP ROLE regress_dw_monitor;

DROP TABLE dw_stats;
DROP EXTENSION pg_doublewrite_stats;

-- Nothing in the schema of the extension is used instead of what pg_catalog has,
-- however well it fits: operators for all pairs of types that pg_catalog has none
-- for, and functions with the names of those that are called.
CREATE SCHEMA regress_dw_trap;
SET search_path = regress_dw_trap;
DO $$
DECLARE
	types text[] = '{boolean,integer,bigint,numeric,double precision,text,pg_lsn,timestamp with time zone}';
	fname text;
	op text;
	l text;
	r text;
BEGIN
	FOREACH l IN ARRAY types LOOP
		FOREACH r IN ARRAY types LOOP
			EXECUTE pg_catalog.format('CREATE FUNCTION trap(%s, %s) RETURNS numeric LANGUAGE sql RETURN 42', l, r);
			EXECUTE pg_catalog.format('CREATE FUNCTION trapped(%s, %s) RETURNS boolean LANGUAGE sql RETURN true', l, r);
			FOREACH op IN ARRAY '{+,-,*,/,%,||}'::text[] LOOP
				EXECUTE pg_catalog.format('CREATE OPERATOR %s (FUNCTION = trap, LEFTARG = %s, RIGHTARG = %s)', op, l, r);
			END LOOP;
			FOREACH op IN ARRAY '{=,<>,<,>,<=,>=}'::text[] LOOP
				EXECUTE pg_catalog.format('CREATE OPERATOR %s (FUNCTION = trapped, LEFTARG = %s, RIGHTARG = %s)', op, l, r);
			END LOOP;
			EXECUTE pg_catalog.format('CREATE FUNCTION round(%s, %s) RETURNS numeric LANGUAGE sql RETURN 42', l, r);
			EXECUTE pg_catalog.format('CREATE FUNCTION format(text, %s, %s) RETURNS text LANGUAGE sql RETURN 42::text', l, r);
		END LOOP;
		FOREACH fname IN ARRAY '{round,ceil,sum,max,pg_size_pretty,current_setting}'::text[] LOOP
			EXECUTE pg_catalog.format('CREATE FUNCTION %s(%s) RETURNS %2$s LANGUAGE sql RETURN NULL::%2$s', fname, l);
		END LOOP;
	END LOOP;
END $$;
CREATE EXTENSION pg_doublewrite_stats SCHEMA regress_dw_trap;
SELECT DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0) AS trapped
  FROM pg_rewrite w JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
 WHERE d.refclassid IN ('pg_operator'::regclass, 'pg_proc'::regclass)
   AND NOT EXISTS (SELECT FROM pg_depend e
                   WHERE e.classid OPERATOR(pg_catalog.=) d.refclassid AND e.objid OPERATOR(pg_catalog.=) d.refobjid
                     AND e.deptype OPERATOR(pg_catalog.=) 'e')
   AND w.ev_class IN (SELECT objid FROM pg_depend
                      WHERE classid OPERATOR(pg_catalog.=) 'pg_class'::regclass AND deptype OPERATOR(pg_catalog.=) 'e');
RESET search_path;
SELECT count(*) FROM regress_dw_trap.pg_double_write_sizing;
\set VERBOSITY terse
SET client_min_messages = warning;
DROP SCHEMA regress_dw_trap CASCADE;
