# Copyright (c) 2025, PostgreSQL Global Development Group

# Pages to which a record refers before another rebuilds them: exempt in recovery if
# redo does not read them for it before it is consistent, not exempt if redo raises
# their LSN without an image, nor where recovery ends while they are read.

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
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $IMAGES = 'SET io_torn_pages_protection = full_pages';

# A primary with a standby in double_writes, on which nothing goes home unless
# the test says so
sub pair
{
	my ($name, $mode, %params) = @_;
	my $primary = dw_quiet_node(
		$name,
		mode => $mode,
		%params,
		init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new("${name}_standby");

	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
		'double_writes');
	$standby->start;
	return ($primary, $standby);
}

# ---------------------------------------------------------------------
# A record for an overflow page of a hash index makes redo lock the first page
# of the bucket, of which it carries no image.  Recovery reads that page only when
# it is consistent, so it may be torn until its image comes.
# ---------------------------------------------------------------------

foreach my $locked_first (1, 0)
{
	my ($primary, $standby) = pair("hash_$locked_first", 'full_pages');

	$primary->safe_psql(
		'postgres', q{
		CREATE TABLE h (k int, n int);
		CREATE INDEX h_k_idx ON h USING hash (k);
		INSERT INTO h SELECT 1, i FROM generate_series(1, 1000) i});
	dw_restartpoint($primary, $standby);
	$standby->safe_psql('postgres',
		'SELECT dw_evict_all(); SELECT dw_drain(); SELECT dw_sync_cycle()');
	my $old = dw_snapshot($standby);
	if ($locked_first)
	{
		$primary->safe_psql('postgres', 'DELETE FROM h WHERE n > 990');
		$primary->safe_psql('postgres', 'VACUUM h');
	}
	$primary->safe_psql('postgres', 'DELETE FROM h WHERE n < 10');
	$primary->safe_psql('postgres', 'VACUUM h');
	$primary->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres',
		q{SELECT dw_evict('h_k_idx'); SELECT dw_drain()});
	my $rel = $primary->safe_psql('postgres',
		q{SELECT pg_relation_filenode('h_k_idx')});
	is( scalar(
			grep { $_->{rel} == $rel }
			  values %{ dw_live_copies(dw_read_log($standby)) }),
		0,
		$locked_first
		? 'hash bucket that redo only locks first is exempt'
		: 'hash bucket that begins with an image is exempt');

	# with checksums, redo would fail on a torn page that it reads
	$standby->stop('immediate');
	my $torn = dw_tear($standby, $old, unlogged_too => 1, only => qr/^base/);
	cmp_ok($torn->{unlogged}, '>', 0, 'pages were torn');
	dw_start_after_crash($standby, $torn);
	$primary->wait_for_replay_catchup($standby);
	is( $standby->safe_psql(
			'postgres',
			'SET enable_seqscan = off; SELECT count(*) FROM h WHERE k = 1'),
		$locked_first ? 981 : 991,
		'index is whole');
	$standby->stop;
	$primary->stop;
}

# ---------------------------------------------------------------------
# The standby logs hints and its primary does not: redo of a record without an
# image raises the LSN of the page
# ---------------------------------------------------------------------

{
	my ($primary, $standby) = pair(
		'hints', 'full_pages',
		checksums => 0,
		conf => "wal_log_hints = off\n");

	$standby->append_conf('postgresql.conf', 'wal_log_hints = on');
	$standby->restart;
	$primary->safe_psql('postgres',
		'CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i');
	$primary->safe_psql('postgres', 'SELECT count(*) FROM t');
	dw_restartpoint($primary, $standby);
	$standby->safe_psql('postgres',
		'SELECT dw_evict_all(); SELECT dw_drain(); SELECT dw_sync_cycle()');
	$primary->safe_psql('postgres', 'VACUUM (FREEZE off) t');
	$primary->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres',
		q{SELECT dw_evict('t'); SELECT dw_drain()});
	my $rel =
	  $primary->safe_psql('postgres', q{SELECT pg_relation_filenode('t')});
	cmp_ok(
		scalar(
			grep { $_->{rel} == $rel && $_->{fork} == 0 }
			  values %{ dw_live_copies(dw_read_log($standby)) }),
		'>', 0,
		'page that was set all-visible without an image is logged');
	$standby->stop;
	$primary->stop;
}

# ---------------------------------------------------------------------
# A process reads a page while recovery ends: what redo has done to the page is
# not known to it
# ---------------------------------------------------------------------

{
	# If hints were logged, those that the reading session sets would raise the LSN
	# of the page, now and then above the redo pointer of the checkpoint: then the
	# first record after that would have no image.
	my ($primary, $standby) = pair(
		'preempted', 'double_writes',
		checksums => 0,
		conf => "wal_log_hints = off\n");

	$primary->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i});
	dw_restartpoint($primary, $standby);

	# a record that leaves the LSN of the page alone, and a commit after it
	$primary->safe_psql('postgres', 'VACUUM (FREEZE off) t');
	$primary->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	$primary->wait_for_replay_catchup($standby);

	# the checkpoint that follows would move the redo pointer
	$standby->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-checkpoint-drained', 'wait')}
	);

	# Whatever it is that is read first: it is the page of the table, as
	# this session has looked at all the others that it needs.
	my $session = $standby->background_psql('postgres');
	my $offset = -s $standby->logfile;
	$session->query_safe('SELECT count(*) FROM t');
	$session->query_safe(q{SELECT dw_evict('t')});
	$session->query_safe(
		q{SELECT points_await_end_of_recovery_at('doublewrite-forget-buffer')}
	);
	$session->query_until(qr/started/,
		"\\echo started\nSELECT count(*) FROM t;\n");
	$standby->wait_for_log(
		qr/waiting for the end of recovery at injection point/, $offset);
	$standby->promote;
	$session->query('SELECT 1');
	$session->quit;
	$standby->wait_for_event('checkpointer',
		'doublewrite-checkpoint-drained');

	my $counters = 'SELECT logged, exempt FROM dw_stats()';
	$standby->safe_psql('postgres', 'SELECT dw_drain()');
	my @before = split /\|/, $standby->safe_psql('postgres', $counters);
	$standby->safe_psql('postgres',
		"$IMAGES; UPDATE t SET v = 1 WHERE id = 1");
	$standby->safe_psql('postgres',
		q{SELECT dw_evict('t'); SELECT dw_drain()});
	my @after = split /\|/, $standby->safe_psql('postgres', $counters);
	cmp_ok($after[0], '>', $before[0], 'pages are written');
	is($after[1] - $before[1],
		0, 'page read while recovery ended is not exempt');
	dw_wake($standby, 'doublewrite-checkpoint-drained');
	$standby->stop;
	$primary->stop;
}

done_testing();
