# Copyright (c) 2025, PostgreSQL Global Development Group

# A backend that finds the stage full goes on with the first slots that are freed,
# while the rest of the batch is still on its way, and is not left alone if the
# flusher fails.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# Room for 15 pages, and one more for when the others can't be written.  Pages are
# written home one by one.
my $node = dw_quiet_node(
	'main', conf => q{
double_write_stage_size = 128kB
io_combine_limit = 1
});
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, filler text STORAGE PLAIN);
	CREATE TABLE u (LIKE t INCLUDING ALL);
	CREATE TABLE v (LIKE t INCLUDING ALL);
	INSERT INTO t SELECT i, repeat('x', 6000) FROM generate_series(1, 100) i;
	INSERT INTO u SELECT i, repeat('x', 6000) FROM generate_series(1, 100) i;
	INSERT INTO v SELECT i, repeat('x', 6000) FROM generate_series(1, 100) i});

# So that no later look at the tables makes other pages dirty
sub set_hints
{
	$node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM t; SELECT count(*) FROM u; SELECT count(*) FROM v;
		CHECKPOINT});
	return;
}

set_hints();

sub staged
{
	return $node->safe_psql('postgres', 'SELECT staged FROM dw_stats()');
}

# Change that many pages, so that dw_evict() stages them
my $next = 1;

sub change
{
	my ($rel, $npages) = @_;
	my $last = $next + $npages - 1;

	$node->safe_psql('postgres',
		"DELETE FROM $rel WHERE id BETWEEN $next AND $last");
	$next = $last + 1;
	return;
}

# Fill the stage, and have a flusher wait when its batch is in the log
sub fill_and_flush
{
	change('t', 15);
	$node->safe_psql(
		'postgres', q{
		SELECT dw_evict('t');
		SELECT injection_points_attach('doublewrite-log-synced', 'wait')});
	is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
		15, 'stage is full');
	my $flusher = dw_start($node, 'flusher', 'SELECT dw_flush_batch(false)');
	ok(dw_waits_for($node, 'flusher', 'doublewrite-log-synced'),
		'a batch is in the log');
	return $flusher;
}

sub begin_home_writes
{
	dw_wake($node, 'doublewrite-log-synced');
	return;
}

sub finish
{
	my @sessions = @_;

	dw_finish(@sessions);
	set_hints();
	is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
		0, 'all is home');
	return;
}

# --- Of those that find the stage full one waits for the flusher, to be the next one;
# --- the others for room.  Each goes on with what it needs as soon as pages can go home.

change('u', 4);
change('v', 4);
my $flusher = fill_and_flush();
my $one = dw_start($node, 'one', q{SELECT dw_evict('u')});
ok( dw_waits_for($node, 'one', 'DoubleWriteFlush'),
	'a backend that finds it full waits for the batch');
my $two = dw_start($node, 'two', q{SELECT dw_evict('v')});
ok(dw_waits_for($node, 'two', 'DoubleWriteHome'),
	'another one waits for room');
my $batches = $node->safe_psql('postgres', 'SELECT batches FROM dw_stats()');
$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-home-run-written', 'wait')}
);
begin_home_writes();
ok( $node->poll_query_until(
		'postgres', q{
		SELECT count(*) = 3 FROM pg_stat_activity WHERE wait_event = 'doublewrite-home-run-written'}
	),
	'each has written a page home');
is( $node->safe_psql('postgres', 'SELECT batches FROM dw_stats()'),
	$batches + 1,
	'... of the same batch');
dw_wake($node, 'doublewrite-home-run-written');
finish($flusher, $one, $two);

# --- The flusher fails: a process that waits takes the batch up where it was left

change('u', 4);
$flusher = fill_and_flush();
my $before = staged();
$one = dw_start($node, 'one', q{SELECT dw_evict('u')});
ok( dw_waits_for($node, 'one', 'DoubleWriteFlush'),
	'a backend that finds it full waits for the batch');
$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-home-sent', 'EIO', 1, 1)});
begin_home_writes();
$flusher->query('SELECT 1');
ok( $node->poll_query_until(
		'postgres', "SELECT staged = $before + 4 FROM dw_stats()"),
	'a flusher fails: processes that wait go on');
$node->safe_psql('postgres', q{SELECT points_clear('doublewrite-home-sent')});
finish($flusher, $one);
is( $node->safe_psql(
		'postgres', q{
		SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT count(*) FROM v)}
	),
	join('|', 70, 92, 96),
	'nothing is lost');
$node->stop;

done_testing();
