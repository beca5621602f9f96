# Copyright (c) 2025, PostgreSQL Global Development Group

# Pages in a batch that is not home yet, as it is being put together, is left by
# an error, or given up: newer versions are staged meanwhile, writes fail, files
# are truncated and dropped.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# The home write of a page fails while a newer version of it is staged: the
# older copy stays live until the newer version is home (R3)
{
	my $node = dw_quiet_node('newer_version');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i;
		CHECKPOINT});
	my $path = dw_path_of($node, 't');
	my $old = dw_snapshot($node);
	dw_hold_flusher($node);
	$node->safe_psql('postgres',
		q{UPDATE t SET v = 1 WHERE id = 1; SELECT dw_evict('t')});
	my $flusher = $node->background_psql('postgres', on_error_stop => 0);
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch();\n");
	dw_wait_until_held($node);
	$node->safe_psql(
		'postgres', q{UPDATE t SET v = 2 WHERE id = 1; SELECT dw_evict('t');
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)});
	dw_release_flusher($node);
	$flusher->query('SELECT 1');
	$flusher->quit;
	cmp_ok(
		$node->safe_psql(
			'postgres', q{SELECT points_hits('doublewrite-home-write')}),
		'>', 0,
		'home write failed');
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	$node->stop('immediate');
	my ($rel) = $path =~ /(\d+)$/;
	cmp_ok(
		scalar(
			grep { $_->{rel} == $rel && $_->{fork} == 0 }
			  values %{ dw_live_copies(dw_read_log($node)) }),
		'>', 0,
		'copy of the page is still live');
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0,
		'pages that were not written are in the log');
	dw_start_after_crash($node, $torn);
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		2, 'nothing lost');
	$node->stop;
}

# A home write fails, and then the log write of the next attempt: the copy of
# the first attempt stays live (R3).  With wal_level = minimal, as otherwise the
# next attempt would need no copy of its own.
{
	my $node = dw_quiet_node(
		'log_fails_too', conf => q{
wal_level = minimal
max_wal_senders = 0
});

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i;
		CHECKPOINT});
	my ($rel) = dw_path_of($node, 't') =~ /(\d+)$/;
	my $old = dw_snapshot($node);
	$node->safe_psql(
		'postgres', q{
		UPDATE t SET v = 1 WHERE id = 1; SELECT dw_evict('t');
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)});
	my ($ret) = $node->psql('postgres', 'SELECT dw_flush_batch()');
	isnt($ret, 0, 'home write failed');
	$node->safe_psql('postgres',
		q{SELECT points_fail_at('doublewrite-log-write', 'EIO', 1, 2)});
	($ret) = $node->psql('postgres', 'SELECT dw_flush_batch()');
	isnt($ret, 0, 'log write failed');
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	$node->stop('immediate');
	cmp_ok(
		scalar(
			grep { $_->{rel} == $rel && $_->{fork} == 0 }
			  values %{ dw_live_copies(dw_read_log($node)) }),
		'>', 0,
		'copy of the first attempt is still live');
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0, 'page was torn');
	dw_start_after_crash($node, $torn);
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		1, 'nothing lost');
	$node->stop;
}

# Truncated and dropped while a batch that an error has left waits to be
# carried on: then its pages must not go home any more (R7)
{
	my $node = dw_quiet_node('left_batch');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE dropped (a int, f text);
		INSERT INTO dropped SELECT i, repeat('d', 500) FROM generate_series(1, 60) i;
		CREATE TABLE truncated (LIKE dropped);
		INSERT INTO truncated SELECT * FROM dropped;
		CHECKPOINT;
		UPDATE dropped SET a = a + 1;
		DELETE FROM truncated});
	my %path = map { $_ => dw_path_of($node, $_) } qw(dropped truncated);
	$node->safe_psql(
		'postgres',
		q{SELECT dw_drain(); SELECT dw_evict('dropped'), dw_evict('truncated');
		SELECT points_fail_at('doublewrite-log-synced', 'EIO')});
	my ($ret) = $node->psql('postgres', 'SELECT dw_flush_batch()');
	isnt($ret, 0, 'batch is left by an error');
	is( $node->safe_psql(
			'postgres', 'SELECT staged, in_use >= 8 FROM dw_state()'),
		'0|t',
		'its pages wait');
	$node->safe_psql('postgres', 'VACUUM truncated');
	$node->safe_psql('postgres', 'DROP TABLE dropped');
	is(-s $node->data_dir . "/$path{truncated}", 0, 'file is truncated');
	$node->safe_psql('postgres', 'SELECT dw_drain()');
	is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
		0, 'batch is over');
	is(-s $node->data_dir . "/$path{truncated}",
		0, 'truncated file stays empty');
	ok(!-s $node->data_dir . "/$path{dropped}", 'dropped file stays dropped');
	$node->stop;
}

# Newer versions of pages are staged while a batch is being put together: they
# are left for the next one (R4)
{
	my $node =
	  dw_quiet_node('chunks', conf => 'double_write_stage_size = 8MB');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 60) i;
		CHECKPOINT});
	dw_hold_flusher($node, 'doublewrite-chunk-taken');
	$node->safe_psql('postgres', q{UPDATE t SET v = 1; SELECT dw_evict('t')});
	my $flusher = $node->background_psql('postgres', on_error_stop => 0);
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch();\n");
	dw_wait_until_held($node);
	$node->safe_psql('postgres', q{UPDATE t SET v = 2; SELECT dw_evict('t')});
	dw_release_flusher($node);
	$flusher->query('SELECT 1');
	$flusher->quit;
	cmp_ok($node->safe_psql('postgres', 'SELECT staged FROM dw_state()'),
		'>', 0, 'newer versions are left for the next batch');
	$node->safe_psql('postgres',
		q{SELECT dw_drain(), dw_evict('t'), dw_drain(), dw_evict('t')});
	is( $node->safe_psql(
			'postgres', 'SELECT min(v), max(v), count(*) FROM t'),
		'2|2|60',
		'newest versions are at home');
	$node->stop;
}

# A page comes back to the stage while a process drains it, behind younger ones:
# the drain does not end before it is home.  Nor if a newer version, which is
# younger than those, stands for it (R5)
foreach my $newer (0, 1)
{
	my $node = dw_quiet_node("drain_$newer");

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE older AS SELECT i AS id FROM generate_series(1, 100) i;
		CREATE TABLE younger AS SELECT i AS id FROM generate_series(1, 100) i;
		CHECKPOINT});
	my $path = dw_path_of($node, 'older');
	my $before = read_block($node, $path, 0);
	dw_hold_flusher($node);
	$node->safe_psql('postgres',
		q{DELETE FROM older WHERE id = 1; SELECT dw_evict('older')});
	my $flusher = $node->background_psql('postgres', on_error_stop => 0);
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch();\n");
	dw_wait_until_held($node);
	my $drain = $node->background_psql('postgres', on_error_stop => 0);
	$drain->query_until(qr/started/,
		"\\echo started\nSELECT dw_drain(patient => false);\n");
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%dw_drain%' AND wait_event IN ('DoubleWriteFlush', 'DoubleWriteTurn')"
	) or die 'no process drains';
	$node->safe_psql(
		'postgres', q{
		DELETE FROM younger WHERE id = 1; SELECT dw_evict('younger');
		SELECT points_fail_at('doublewrite-home-write', 'EIO')});
	$node->safe_psql('postgres',
		q{DELETE FROM older WHERE id = 2; SELECT dw_evict('older')})
	  if $newer;
	dw_release_flusher($node);
	$drain->query('SELECT 1');
	isnt(read_block($node, $path, 0),
		$before, 'page is home after the drain');
	is( $node->safe_psql(
			'postgres', q{SELECT points_hits('doublewrite-home-write') > 1}),
		't',
		'... where the first write failed');
	$flusher->query('SELECT 1');
	$_->quit foreach ($drain, $flusher);
	$node->stop;
}

# A batch is given up, as pages that cannot be written home keep all of the
# log, and newer versions of its pages have been staged meanwhile: of each page
# only the newer one is written back (R4)
{
	my $node =
	  dw_quiet_node('given_up', conf => 'double_write_stage_size = 8MB');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE stuck AS SELECT i AS id FROM generate_series(1, 100) i;
		CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 60) i;
		CHECKPOINT;
		DELETE FROM stuck WHERE id < 10;
		SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000),
			points_fail_at('doublewrite-home-write', 'EIO')});

	# no process but ours runs a sync cycle while there is space to log them once more
	my @stopped = dw_stop_processes($node, 'checkpointer');
	$node->safe_psql('postgres', q{SELECT dw_evict('stuck')});
	isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
		0, 'home write failed');
	my $stderr = '';
	foreach (1 .. 100)
	{
		$node->safe_psql('postgres',
			q{UPDATE t SET v = 1; SELECT dw_remember_truncated('t'), dw_evict('t')}
		);
		$node->psql(
			'postgres',
			'SELECT dw_flush_batch(false)',
			stderr => \$stderr);
		last
		  if $stderr =~
		  /A sync of the data files has not freed space in the log/;
	}
	like(
		$stderr,
		qr/ERROR:  could not extend the double-write log: No space left on device.*A sync of the data files has not freed/s,
		'the log is full');

	# stop the next attempt while it waits for space
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')");
	my $flusher = $node->background_psql('postgres', on_error_stop => 0);
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch(false);\n");
	ok( $node->poll_query_until(
			'postgres',
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%dw_flush_batch%'
				AND wait_event IN ('doublewrite-sync-cycle', 'DoubleWriteSync')"),
		'a batch waits for space');
	$node->safe_psql('postgres', q{UPDATE t SET v = 2; SELECT dw_evict('t')});
	dw_wake($node, 'doublewrite-sync-cycle');
	$flusher->query('SELECT 1');
	$flusher->quit;

	$node->safe_psql(
		'postgres', q{
		SELECT points_clear('doublewrite-create-segment');
		SELECT dw_drain(), dw_evict('t'), dw_drain(), dw_evict('t')});
	is( $node->safe_psql(
			'postgres', 'SELECT min(v), max(v), count(*) FROM t'),
		'2|2|60',
		'newest versions are at home');
	kill('CONT', @stopped);
	$node->stop;
}

done_testing();
