CREATE EXTENSION pg_doublewrite_stats;

-- every page that goes home passes through the stage
SELECT pages_staged AS before FROM pg_stat_double_writes \gset
CREATE TABLE dw_stats AS SELECT generate_series(1, 1000) AS a;
CHECKPOINT;
SELECT pages_staged > :before AS staged, home_pages >= home_writes AS combined
  FROM pg_stat_double_writes;

-- all counters have a column
SELECT count(*) - (SELECT count(*) FROM information_schema.columns
                   WHERE table_name = 'pg_stat_double_writes') AS missing
  FROM pg_doublewrite_counters();

SELECT used_bytes <= limit_bytes AS bounded, stage_slots >= 16 AS has_stage,
       armed = (current_setting('io_torn_pages_protection') = 'double_writes') AS as_set
  FROM pg_double_write_log;

-- this server was not started after a crash
SELECT count(*) FROM pg_double_write_restore;

DROP TABLE dw_stats;
DROP EXTENSION pg_doublewrite_stats;
