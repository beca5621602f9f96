# Copyright (c) 2025, PostgreSQL Global Development Group

# A checkpoint waits for removals under way, and makes durable what has been
# removed (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $redo = "Latest checkpoint's REDO location";

# A checkpoint completes between the dropping of a table's buffers and the
# removal of its files.  Its redo pointer is later than changes that were in
# those buffers only, and earlier than others, whose records redo would then
# apply to pages that lack the former.
foreach my $case (
	[ 'table', 'DROP TABLE d', 'relations' ],
	[ 'database', 'DROP DATABASE other', 'database' ])
{
	my ($what, $sql, $point) = @$case;
	my $discarded = "doublewrite-$point-discarded";
	my $node = dw_new_node(
		"half_dropped_$what", conf => qq{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
checkpoint_timeout = 1h
log_min_messages = notice
});

	$node->start;
	dw_extensions($node);
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	my $db = $what eq 'table' ? 'postgres' : 'other';
	$node->safe_psql(
		$db, q{
		CREATE TABLE d(i int PRIMARY KEY, filler text);
		INSERT INTO d SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i;
		CHECKPOINT;
		DELETE FROM d WHERE i % 3 = 0;
		INSERT INTO d SELECT i, repeat('y', 100) FROM generate_series(10001, 11000) i}
	);
	$node->safe_psql(
		'postgres', qq{
		SELECT injection_points_attach('$discarded', 'wait');
		SELECT injection_points_attach('doublewrite-wait-for-removals', 'notice')});
	my $before = dw_control($node, $redo);

	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\n$sql;\n");
	$node->wait_for_event('client backend', $discarded);

	my $offset = -s $node->logfile;
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_log(qr/injection point doublewrite-wait-for-removals/,
		$offset);
	is( dw_control($node, $redo),
		$before,
		"checkpoint does not complete while files of a $what are being removed"
	);
	dw_wake($node, $discarded);
	$checkpoint->quit;
	isnt(dw_control($node, $redo), $before, '... but then');
	$drop->quit;
	$node->stop('immediate');
	ok($node->start(fail_ok => 1), 'server starts');
	$node->stop;
}

# The same when an error has ended the wait of the checkpoint before.
{
	my $node = dw_quiet_node('wait_cut_short');
	my $point = 'doublewrite-wait-for-removals';

	$node->safe_psql('postgres', $_)
	  foreach (
		'CREATE TABLE d (i int)',
		'CHECKPOINT',
		'INSERT INTO d SELECT generate_series(1, 1000)',
		"SELECT injection_points_attach('doublewrite-relations-discarded', 'wait')"
	  );
	my $before = dw_control($node, $redo);
	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\nDROP TABLE d;\n");
	$node->wait_for_event('client backend',
		'doublewrite-relations-discarded');

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'error')");
	isnt($node->psql('postgres', 'CHECKPOINT'),
		0, 'checkpoint fails while it waits');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	ok( $node->poll_query_until(
			'postgres', q{
		SELECT wait_event = 'CheckpointDelayComplete' FROM pg_stat_activity
			WHERE backend_type = 'checkpointer'}),
		'the next one waits for the same removal');
	is(dw_control($node, $redo), $before, '... and is not complete');
	dw_wake($node, 'doublewrite-relations-discarded');
	$_->quit foreach ($checkpoint, $drop);
	isnt(dw_control($node, $redo), $before, '... but then');
	$node->stop;
}

# The same when one has completed between the two steps by which a removal begins.
{
	my $node = dw_quiet_node('begins_late');
	my ($begins, $discarded) =
	  ('doublewrite-removal-begins', 'doublewrite-relations-discarded');

	$node->safe_psql('postgres', $_)
	  foreach (
		'CREATE TABLE d AS SELECT generate_series(1, 1000) i',
		"SELECT injection_points_attach('$begins', 'wait')");
	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\nDROP TABLE d;\n");
	$node->wait_for_event('client backend', $begins);
	$node->safe_psql('postgres', $_)
	  foreach ('CHECKPOINT',
		"SELECT injection_points_attach('$discarded', 'wait')");
	my $before = dw_control($node, $redo);
	dw_wake($node, $begins);
	$node->wait_for_event('client backend', $discarded);

	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->poll_query_until(
		'postgres', qq{
		SELECT bool_or(wait_event = 'CheckpointDelayComplete') OR
				(SELECT redo_lsn FROM pg_control_checkpoint()) <> '$before'
			FROM pg_stat_activity WHERE backend_type = 'checkpointer'}
	) or die 'checkpointer does nothing';
	is(dw_control($node, $redo),
		$before,
		'checkpoint waits for a removal that began during the last one');
	dw_wake($node, $discarded);
	$_->quit foreach ($checkpoint, $drop);
	isnt(dw_control($node, $redo), $before, '... and then completes');
	$node->stop;
}

# A checkpoint makes removals durable: else what was truncated or dropped may
# come back, older than the checkpoint's redo pointer.
{
	my $node = dw_new_node(
		'removals_durable', conf => qq{
fsync = on
autovacuum = off
});

	$node->start;
	dw_extensions($node);

	# Files that a checkpoint syncs besides those that it has written
	my $synced = sub {
		my ($sql) = @_;
		my $query = 'SELECT sync_cycle_files FROM dw_stats()';
		my $before;

		$node->safe_psql('postgres', 'CHECKPOINT');
		$before = $node->safe_psql('postgres', $query);
		$node->safe_psql('postgres', $sql);
		$node->safe_psql('postgres', 'CHECKPOINT');
		return $node->safe_psql('postgres', $query) - $before;
	};

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE cut AS SELECT generate_series(1, 2000) i;
		CREATE TABLE gone AS SELECT generate_series(1, 2000) i});
	is($synced->('UPDATE cut SET i = i WHERE i = 1'),
		0, 'nothing removed: checkpoint syncs nothing of its own');
	cmp_ok($synced->('DELETE FROM cut; VACUUM cut'),
		'>=', 1, 'checkpoint syncs a file that was truncated');
	cmp_ok($synced->('DROP TABLE gone'),
		'>=', 1, 'checkpoint syncs a file that was dropped');

	# each sync by itself would commit one removal to the journal
	$node->safe_psql(
		'postgres', q{
		CREATE SCHEMA many;
		DO $$ BEGIN
			FOR i IN 1 .. 1500 LOOP
				EXECUTE format('CREATE TABLE many.t%s (i int)', i);
			END LOOP;
		END $$;
		CHECKPOINT});
	my $query = 'SELECT sync_cycle_files FROM dw_stats()';
	my $before = $node->safe_psql('postgres', $query);
	$node->safe_psql('postgres', 'DROP SCHEMA many CASCADE');
	is( $node->safe_psql('postgres', $query),
		$before,
		'a session that drops many tables leaves their syncs to the checkpoint'
	);
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok($node->safe_psql('postgres', $query) - $before,
		'>=', 1500, '... which makes them');
	$node->stop;
}

# The same goes for copies that leave the log in a sync cycle: a database whose
# files are gone is gone for good before.
{
	my $node = dw_quiet_node('dropped_in_cycle', conf => q{fsync = on});
	my $point = 'doublewrite-directory-synced';

	$node->safe_psql('postgres', 'CREATE DATABASE other');
	$node->safe_psql('other', $_)
	  foreach (
		'CREATE EXTENSION test_doublewrite CASCADE',
		'CREATE TABLE t AS SELECT generate_series(1, 2000) i',
		'CHECKPOINT',
		q{UPDATE t SET i = i + 1; SELECT dw_evict('t'); SELECT dw_drain()});
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('doublewrite-database-removed', 'wait')"
	);
	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\nDROP DATABASE other;\n");
	$node->wait_for_event('client backend', 'doublewrite-database-removed');

	# far more than there are: they are counted
	$node->safe_psql('postgres', "SELECT points_crash_at('$point', 1000000)");
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	cmp_ok($node->safe_psql('postgres', "SELECT points_hits('$point')"),
		'>', 0, 'a sync cycle makes the removal of a database durable');
	dw_wake($node, 'doublewrite-database-removed');
	$drop->quit;
	$node->stop;
}

# A checkpoint that fails to do that leaves it to the next one, and takes nothing
# for done that has been removed meanwhile.
{
	my $node = dw_quiet_node('removals_fail');
	my $point = 'doublewrite-sync-removals';
	my $synced = sub {
		return $node->safe_psql('postgres',
			'SELECT sync_cycle_files FROM dw_stats()');
	};

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE cut AS SELECT generate_series(1, 2000) i;
		CREATE TABLE gone AS SELECT generate_series(1, 2000) i;
		CHECKPOINT;
		SELECT injection_points_attach('$point', 'error')});
	$node->safe_psql('postgres', 'DELETE FROM cut; VACUUM cut');
	my ($ret) = $node->psql('postgres', 'CHECKPOINT');
	isnt($ret, 0, 'checkpoint fails if removals cannot be synced');
	my $before = $synced->();
	$node->safe_psql('postgres',
		"SELECT injection_points_detach('$point'); CHECKPOINT");
	cmp_ok($synced->(), '>', $before, 'the next one syncs them');

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', $point);
	$node->safe_psql('postgres', 'DROP TABLE gone');
	dw_wake($node, $point);
	$checkpoint->quit;
	$before = $synced->();
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok($synced->(), '>', $before,
		'file dropped during the sync is for the next checkpoint');

	# So is its directory, of which the sync may have come too early.
	$point = 'doublewrite-directory-synced';
	$node->safe_psql('postgres', $_)
	  foreach (
		'CREATE TABLE one AS SELECT 1 i; CREATE TABLE two AS SELECT 2 i',
		'CHECKPOINT',
		"SELECT injection_points_attach('$point', 'wait')",
		'DROP TABLE one');
	$checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', $point);
	$node->safe_psql('postgres', 'DROP TABLE two');
	dw_wake($node, $point);
	$checkpoint->quit;
	# far more than there are: they are counted
	$node->safe_psql('postgres', "SELECT points_crash_at('$point', 1000000)");
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok($node->safe_psql('postgres', "SELECT points_hits('$point')"),
		'>', 0, '... and the next one syncs its directory as well');

	# Nothing has been lost if a file could not even be opened.
	$node->append_conf('postgresql.conf', 'fsync = on');
	$node->reload;
	$node->safe_psql('postgres', $_)
	  foreach (
		'INSERT INTO cut SELECT generate_series(1, 2000)',
		'CHECKPOINT',
		'DELETE FROM cut',
		'VACUUM cut',
		q{SELECT points_fail_at('doublewrite-file-sync', 'EMFILE')});
	my $offset = -s $node->logfile;
	$before = $synced->();
	isnt($node->psql('postgres', 'CHECKPOINT'),
		0, 'checkpoint fails if there is no descriptor left');
	like(
		slurp_file($node->logfile, $offset),
		qr/ERROR:  could not fsync file/,
		'... and the server lives on');
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok($synced->(), '>', $before, '... and the next one syncs the file');
	$node->stop;
}

# A standby that is to use the log, as it replays WAL without images, does so from its
# first write on.  What is removed before that is made durable as well.
{
	my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$primary->safe_psql('postgres',
		'CREATE TABLE gone AS SELECT generate_series(1, 2000) i');
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->append_conf(
		'postgresql.conf', q{
io_torn_pages_protection = full_pages
fsync = on
});
	$standby->start;
	$primary->safe_psql('postgres', $_)
	  foreach ('DROP TABLE gone', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	my ($armed, $before) = split(
		/\|/,
		$standby->safe_psql(
			'postgres',
			'SELECT armed, sync_cycle_files FROM dw_state(), dw_stats()'));
	is($armed, 'f', 'standby does not use the log yet');
	$standby->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok(
		$standby->safe_psql(
			'postgres', 'SELECT sync_cycle_files FROM dw_stats()'),
		'>', $before,
		'... and its restartpoint syncs what was dropped');
	$_->stop foreach ($standby, $primary);
}

# A database is dropped whose map of relations is all that redo has to change there: it
# opens a file in a directory that does not exist any more.  In stock it does so on a
# standby only, as DROP DATABASE makes a checkpoint before it removes files.
{
	my $node = dw_quiet_node('mapped');

	$node->safe_psql('postgres', 'CREATE DATABASE other');
	my $session = $node->background_psql('other');
	$session->query_safe('BEGIN; REINDEX INDEX pg_class_relname_nsp_index');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$session->query_safe('COMMIT');
	$session->quit;
	$node->safe_psql('postgres',
		q{SELECT points_crash_at('doublewrite-database-removed')});
	isnt($node->psql('postgres', 'DROP DATABASE other'),
		0, 'mapped: crash when the database has been removed');
	$node->stop('immediate', fail_ok => 1);
	ok(dw_poll_start($node), '... and the server starts');
	$node->stop('fast', fail_ok => 1);
}

done_testing();
