CREATE EXTENSION pg_doublewrite_stats;

-- every page that goes home passes through the stage
SELECT pages_staged AS before, batches FROM pg_stat_double_writes \gset
CREATE TABLE dw_stats AS SELECT generate_series(1, 1000) AS a;
CHECKPOINT;
SELECT pages_staged > :before AS staged, home_pages >= home_writes AS combined
  FROM pg_stat_double_writes;

-- all counters have a column, beside two ratios and a time
SELECT count(*) + 3 - (SELECT count(*) FROM information_schema.columns
                       WHERE table_name = 'pg_stat_double_writes') AS missing
  FROM pg_doublewrite_counters();

-- batches by size: each is counted in one class
SELECT pages_from, pages_to FROM pg_stat_double_write_batches ORDER BY 1;
SELECT sum(batches) >= :batches AS all_batches,
       sum(logged_batches) <= sum(batches) AS logged
  FROM pg_stat_double_write_batches;

SELECT used_bytes <= limit_bytes AS bounded, stage_slots >= 16 AS has_stage,
       armed = (current_setting('io_torn_pages_protection') = 'double_writes') AS as_set
  FROM pg_double_write_log;

-- this server was not started after a crash
SELECT count(*) FROM pg_double_write_restore;

-- verdicts
SELECT setting, verdict IS NOT NULL AS verdict, explanation <> '' AS explained
  FROM pg_double_write_sizing ORDER BY 1;

-- the mode in force is one of three; images cost WAL, double writes do not
SELECT count(*) FILTER (WHERE in_force) AS in_force,
       max(wal_bytes) FILTER (WHERE mode = 'full_pages') >=
         max(wal_bytes) FILTER (WHERE mode = 'off') AS images_cost,
       max(wal_bytes) FILTER (WHERE mode = 'double_writes') =
         max(wal_bytes) FILTER (WHERE mode = 'off') AS double_writes_do_not,
       sum(double_write_bytes) = max(double_write_bytes)
         FILTER (WHERE mode = 'double_writes') AS double_writes_only
  FROM pg_double_write_what_if;

-- first changes after a checkpoint are counted
CHECKPOINT;
SELECT first_changes AS changes FROM pg_stat_double_writes \gset
DELETE FROM dw_stats WHERE a % 10 = 0;
SELECT first_changes > :changes AS counted, first_changes >= images AS plausible,
       first_change_bytes <= first_changes * 8192 AS bounded
  FROM pg_stat_double_writes;

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
SELECT count(*) FROM pg_double_write_what_if;
SELECT count(*) FROM pg_double_write_ledger;
SELECT * FROM pg_doublewrite_ledger();
SELECT pg_stat_reset_double_writes();
SET ROLE regress_dw_monitor;
SELECT count(*) FROM pg_double_write_ledger;
SELECT count(*) FROM pg_double_write_last_restore;
SELECT pg_stat_reset_double_writes();
RESET ROLE;
DROP ROLE regress_dw_nobody;
DROP ROLE regress_dw_monitor;

DROP TABLE dw_stats;
DROP EXTENSION pg_doublewrite_stats;

-- coming from 1.0
CREATE EXTENSION pg_doublewrite_stats VERSION '1.0';
SELECT count(*) > 0 AS ok FROM pg_stat_double_writes;
ALTER EXTENSION pg_doublewrite_stats UPDATE TO '1.1';
SELECT stats_reset IS NOT NULL AS ok FROM pg_stat_double_writes;
DROP EXTENSION pg_doublewrite_stats;
