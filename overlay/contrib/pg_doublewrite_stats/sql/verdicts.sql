-- What pg_double_write_sizing says of given figures: the same view, on tables
CREATE EXTENSION pg_doublewrite_stats;
CREATE SCHEMA regress_dw_given;
CREATE TABLE regress_dw_given.pg_stat_double_writes AS SELECT * FROM pg_stat_double_writes;
CREATE TABLE regress_dw_given.pg_double_write_log AS SELECT * FROM pg_double_write_log;
SELECT pg_get_viewdef('pg_double_write_sizing'::regclass) AS definition \gset
SET search_path = regress_dw_given;
CREATE VIEW sizing AS :definition;

CREATE FUNCTION given(text) RETURNS TABLE (setting text, verdict text, explanation text)
LANGUAGE plpgsql AS $$
DECLARE
	names text := 'pages_staged, stage_full, pages_logged, log_syncs, log_syncs_by_backends,
		log_full, files_full, sync_cycles_for_space, sync_cycles_for_files, checkpoints';
BEGIN
	EXECUTE format('UPDATE pg_stat_double_writes SET (%s) = ROW(%s)', names,
				   regexp_replace(names, '\w+', '0', 'g'));
	UPDATE pg_double_write_log SET limit_bytes = 1::bigint << 30,
		max_limit_bytes = 1::bigint << 34, stage_slots = 4096;
	EXECUTE $1;
	RETURN QUERY SELECT s.setting, s.verdict, s.explanation FROM sizing s;
END $$;

-- a server that has hardly begun is not judged, by whatever has gone wrong
SELECT * FROM given('UPDATE pg_stat_double_writes SET pages_staged = 0');
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, stage_full,
	pages_logged, log_syncs, log_syncs_by_backends, log_full, sync_cycles_for_space, checkpoints)
	= (900, 90, 900, 9, 9, 1, 9, 1)');

-- what happened once is forgotten
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, stage_full,
	pages_logged, log_syncs, log_full, sync_cycles_for_space, checkpoints)
	= (10000000, 1, 10000000, 100000, 1, 50, 100)');

-- too small, and what to do; unless nothing can be done
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, stage_full,
	pages_logged, log_syncs, log_syncs_by_backends, log_full, sync_cycles_for_space, checkpoints)
	= (100000, 5000, 100000, 1000, 100, 20, 90, 10)');
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, stage_full,
	pages_logged, log_syncs, log_full, sync_cycles_for_space, checkpoints)
	= (100000, 5000, 100000, 1000, 20, 90, 10);
	UPDATE pg_double_write_log SET limit_bytes = max_limit_bytes,
		stage_slots = 8589934592 / current_setting(''block_size'')::int');
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, pages_logged,
	log_syncs, sync_cycles_for_space, checkpoints) = (100000, 100000, 1000, 90, 10)')
 WHERE setting = 'double_write_buffer_size';
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, pages_logged,
	log_syncs, sync_cycles_for_space, checkpoints) = (100000, 100000, 1000, 90, 10);
	UPDATE pg_double_write_log SET limit_bytes = max_limit_bytes')
 WHERE setting = 'double_write_buffer_size';

-- no advice is beyond the maximum
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, stage_full, pages_logged,
	log_syncs, log_full, sync_cycles_for_space, checkpoints)
	= (100000, 5000, 100000, 1000, 0, 9000, 10);
	UPDATE pg_double_write_log SET limit_bytes = max_limit_bytes - 1,
		stage_slots = 8589934592 / current_setting(''block_size'')::int - 1');

-- many files are no fault of the log's size
SELECT * FROM given('UPDATE pg_stat_double_writes SET (pages_staged, pages_logged,
	log_syncs, log_full, files_full, sync_cycles_for_files, checkpoints)
	= (100000, 100000, 1000, 20, 20, 90, 10)')
 WHERE setting = 'double_write_buffer_size';

-- the summary says what is wrong, or that nothing is
CREATE TABLE pg_double_write_mode AS SELECT * FROM public.pg_double_write_mode;
CREATE TABLE pg_double_write_restore AS SELECT * FROM public.pg_double_write_restore;
CREATE VIEW pg_double_write_sizing AS SELECT * FROM sizing;
SET search_path = public;
SELECT pg_get_viewdef('pg_double_write_summary'::regclass) AS definition \gset
SET search_path = regress_dw_given;
CREATE VIEW summary AS :definition;
UPDATE pg_double_write_mode SET in_force = 'double_writes', requested = 'double_writes',
	switching = false, checkpoint_after = NULL;
UPDATE pg_double_write_log SET armed = true, used_bytes = 3 << 20, limit_bytes = 512 << 20;
UPDATE pg_stat_double_writes SET (pages_staged, stage_full, pages_logged, log_syncs,
	log_syncs_by_backends, log_full, sync_cycles_for_files) = (10000000, 1, 10000000, 100000, 0, 0, 0);
SELECT * FROM summary;
UPDATE pg_stat_double_writes SET (stage_full, log_syncs_by_backends) = (5000000, 50000);
INSERT INTO pg_double_write_restore (finished, pages_restored, pages_examined)
	VALUES ('2026-01-02 03:04:05.678 PST8PDT', 3, 200);
SELECT verdict, last_restore FROM summary;
UPDATE pg_double_write_mode SET requested = 'full_pages', switching = true, checkpoint_after = '0/1';
SELECT mode, protected FROM summary;
UPDATE pg_double_write_mode SET (in_force, requested, checkpoint_after) = ('full_pages', 'double_writes', NULL);
SELECT mode, protected, verdict FROM summary;
UPDATE pg_double_write_mode SET (in_force, requested, switching) = ('off', 'off', false);
UPDATE pg_double_write_log SET armed = false;
SELECT mode, protected, log_in_use, verdict FROM summary;

RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA regress_dw_given CASCADE;
DROP EXTENSION pg_doublewrite_stats;
