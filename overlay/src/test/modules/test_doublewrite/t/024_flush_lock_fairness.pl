# Copyright (c) 2025, PostgreSQL Global Development Group

# A process that waits for the flush lock gets it before those that come later: a
# read of a backup before the next batch, a batch before the next read.

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

my $node = dw_quiet_node('main');
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i;
	CREATE TABLE u AS SELECT i AS id FROM generate_series(1, 100) i;
	CHECKPOINT});

# --- A flusher that goes on with the next batch at once

$node->safe_psql(
	'postgres', q{
	SELECT dw_drain();
	SELECT injection_points_attach('doublewrite-home-sent', 'wait');
	DELETE FROM t WHERE id = 1; SELECT dw_evict('t')});
my $flusher = dw_start($node, 'flusher',
	'SELECT dw_flush_batch(), dw_flush_batch(), dw_flush_batch()');
ok(dw_waits_for($node, 'flusher', 'doublewrite-home-sent'),
	'first batch is going home');
my $reader = dw_start($node, 'reader', 'SELECT dw_hold_home_writes()');
ok( dw_waits_for($node, 'reader', 'DoubleWriteFlush'),
	'a process that reads files waits for it');
$node->safe_psql(
	'postgres', q{
	DELETE FROM u WHERE id = 1; SELECT dw_evict('u');
	SELECT injection_points_attach('test-doublewrite-holding', 'wait')});
dw_wake($node, 'doublewrite-home-sent');
ok(dw_waits_for($node, 'reader', 'test-doublewrite-holding'),
	'... and is the next one');
ok(dw_waits_for($node, 'flusher', 'DoubleWriteFlush'),
	'... before the next batch');
dw_wake($node, 'test-doublewrite-holding');
dw_finish($flusher, $reader);
$node->safe_psql('postgres', 'SELECT dw_drain()');

# --- Backups that hold up home writes, one after the other

$node->safe_psql(
	'postgres', q{
	SELECT injection_points_attach('test-doublewrite-holding', 'wait');
	DELETE FROM t WHERE id = 2; SELECT dw_evict('t')});
my $first = dw_start($node, 'first', 'SELECT dw_hold_home_writes()');
ok(dw_waits_for($node, 'first', 'test-doublewrite-holding'),
	'first one holds up home writes');
# (false: wait where the engine does, not where the test module looks after us)
$flusher = dw_start($node, 'flusher', 'SELECT dw_drain(false)');
ok(dw_waits_for($node, 'flusher', 'DoubleWriteFlush'),
	'a batch waits for it');
my $second = dw_start($node, 'second', 'SELECT dw_hold_home_writes()');
ok(dw_waits_for($node, 'second', 'DoubleWrite|holding'),
	'second one wants to hold them up');
is( $node->safe_psql(
		'postgres',
		"SELECT wait_event FROM pg_stat_activity WHERE application_name = 'second'"
	),
	'DoubleWriteTurn',
	'... and waits for the batch');
dw_wake($node, 'test-doublewrite-holding');
dw_finish($first, $flusher, $second);
is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
	0, 'all is home');
$node->stop;

done_testing();
