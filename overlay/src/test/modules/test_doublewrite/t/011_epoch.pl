# Copyright (c) 2025, PostgreSQL Global Development Group

# A page with a copy in the live log goes home without a second one.  A crash
# then puts the older version back, and redo does the rest.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# A quiet server with a table of one page
sub node_with_table
{
	my ($name, $conf) = @_;
	my $node = dw_quiet_node($name, conf => $conf);

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i});
	$node->safe_psql('postgres', 'CHECKPOINT');
	return $node;
}

# Change the table's only page, and write it back; returns how many pages
# were logged for that, and how many had a copy already.
sub change
{
	my ($node, $value) = @_;
	my $counters = q{SELECT logged, in_epoch FROM dw_stats()};
	my @before = split /\|/, $node->safe_psql('postgres', $counters);

	$node->safe_psql('postgres', "UPDATE t SET v = $value WHERE id = 1");
	$node->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	return ($after[0] - $before[0], $after[1] - $before[1]);
}

# Within an epoch the first version is logged, later ones are not
{
	my $node = node_with_table('one_copy');
	my $old = dw_snapshot($node);

	is_deeply([ change($node, 1) ], [ 1, 0 ], 'first version is logged');
	is_deeply([ change($node, $_) ], [ 0, 1 ], "version $_ is not")
	  foreach (2 .. 4);
	dw_check_torn($node, $old, 4, 'one copy');
}

# A checkpoint ends the epoch, and so does a sync cycle
{
	my $node = node_with_table('ends');

	foreach my $end ('CHECKPOINT', 'SELECT dw_sync_cycle()')
	{
		is_deeply([ change($node, 1) ], [ 1, 0 ], "$end: logged before it");
		is_deeply([ change($node, 2) ], [ 0, 1 ], '... once');
		$node->safe_psql('postgres', $end);
		is_deeply([ change($node, 3) ], [ 1, 0 ], '... and after it');
		$node->safe_psql('postgres', 'CHECKPOINT');
	}
	$node->stop;
}

# The end is announced before files are synced: a page that goes home while
# they are gets a copy that the mark does not free. (R3)
foreach my $end (
	[ 'sync cycle', 'doublewrite-sync-cycle', 'SELECT dw_sync_cycle()' ],
	[ 'checkpoint', 'doublewrite-checkpoint-drained', 'CHECKPOINT' ])
{
	my ($what, $point, $command) = @$end;
	my $node = node_with_table('during_' . $what =~ s/ /_/r);

	change($node, 1);
	my $session = $node->background_psql('postgres');
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	$session->query_until(qr/started/, "\\echo started\n$command;\n");
	$node->wait_for_event(
		$what eq 'checkpoint' ? 'checkpointer' : 'client backend', $point);
	is_deeply(
		[ change($node, 2) ],
		[ 1, 0 ],
		"$what: page is logged during it");
	my $old = dw_snapshot($node);
	is_deeply([ change($node, 3) ], [ 0, 1 ], '... once');
	dw_wake($node, $point);
	$session->query('SELECT 1');
	$session->quit;
	dw_check_torn($node, $old, 3, $what);
}

# A sync cycle that ends after a checkpoint does not bring back the mark that it has
# chosen before, and with it batches that lack what redo does not bring (R3, R5)
{
	my $node = node_with_table('late_cycle');
	my $point = 'doublewrite-sync-cycle';
	my $mark = 'SELECT low_water_logged FROM dw_state()';

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $cycle = dw_start($node, 'cycle', 'SELECT dw_sync_cycle()');
	ok( dw_waits_for($node, 'cycle', $point),
		'late cycle: has chosen its mark');
	is_deeply([ change($node, 1) ], [ 1, 0 ], '... then a page is logged');
	is_deeply([ change($node, 2) ], [ 0, 1 ], '... once');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $completed = $node->safe_psql('postgres', $mark);
	dw_wake($node, $point);
	dw_finish($cycle);
	cmp_ok($node->safe_psql('postgres', $mark),
		'>=', $completed, 'late cycle: the mark of a checkpoint stays');
	$node->stop('immediate');
	dw_start_after_crash($node);
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		2, 'late cycle: nothing lost');
	$node->stop;
}

# A version without a copy of its own cannot be written home: the copy it
# relies on is kept (R3)
{
	my $node = node_with_table('home_fails');
	my $old = dw_snapshot($node);

	is_deeply(
		[ change($node, 1) ],
		[ 1, 0 ],
		'home write fails: logged before');
	$node->safe_psql(
		'postgres', q{
		UPDATE t SET v = 2 WHERE id = 1; SELECT dw_evict('t');
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)});
	my ($ret) = $node->psql('postgres', 'SELECT dw_drain()');
	isnt($ret, 0, 'home write failed');
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	dw_check_torn($node, $old, 2, 'home write fails');
}

# A relation that is changed without WAL in the transaction that made it: a
# copy of it must not be put over what was synced at commit
{
	my $node = node_with_table(
		'minimal', q{
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
});
	my $session = $node->background_psql('postgres');

	$session->query_safe(
		q{
		BEGIN;
		DROP TABLE t;
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i});
	$session->query_safe(q{SELECT dw_evict('t'); SELECT dw_drain()});
	my $old = dw_snapshot($node);
	$session->query_safe(q{UPDATE t SET v = 1 WHERE id = 1});
	$session->query_safe(q{SELECT dw_evict('t'); SELECT dw_drain()});
	is($node->safe_psql('postgres', 'SELECT in_epoch FROM dw_stats()'),
		'0', 'wal_level = minimal: each version is logged');
	$session->query_safe('COMMIT');
	$session->quit;
	$node->stop('immediate');
	dw_start_after_crash($node, { logged => 0, unlogged => 0, pages => [] });
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		1, 'what was committed without WAL is there');
	$node->stop;
}

# Switching off and on again begins with no copies
{
	my $node = node_with_table('switched');

	is_deeply([ change($node, 1) ], [ 1, 0 ], 'switch: logged before it');
	foreach my $mode ('off', 'double_writes')
	{
		$node->safe_psql('postgres',
			"ALTER SYSTEM SET io_torn_pages_protection = $mode");
		$node->reload;
		$node->poll_query_until(
			'postgres',
			'SELECT armed FROM dw_state()',
			$mode eq 'off' ? 'f' : 't') or die 'mode was not switched';
		change($node, 2) if $mode eq 'off';
	}
	is_deeply([ change($node, 3) ], [ 1, 0 ], 'logged after it');
	$node->stop;
}

done_testing();
