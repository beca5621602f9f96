# Copyright (c) 2025, PostgreSQL Global Development Group

# Whoever waits for the flush lock gets it before those who come later: a DROP
# before the next batch, home writes before the next read of a backup.

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
$node->safe_psql('postgres', q{
	CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i;
	CREATE TABLE u AS SELECT i AS id FROM generate_series(1, 100) i;
	CREATE TABLE dropped AS SELECT i AS id FROM generate_series(1, 100) i;
	CHECKPOINT});

sub wake_up
{
	my ($point) = @_;

	$node->safe_psql('postgres',
		"SELECT injection_points_detach('$point'); SELECT injection_points_wakeup('$point')");
	return;
}

# --- A flusher that goes on with the next batch at once

$node->safe_psql('postgres', q{
	SELECT dw_drain();
	SELECT injection_points_attach('doublewrite-home-written', 'wait'),
		injection_points_attach('doublewrite-home-run-written', 'wait');
	DELETE FROM t WHERE id = 1; DELETE FROM dropped WHERE id = 1;
	SELECT dw_evict('t'), dw_evict('dropped')});
my $flusher = dw_start($node, 'flusher', 'SELECT dw_flush_batch(), dw_flush_batch(), dw_flush_batch()');
ok(dw_waits_for($node, 'flusher', 'doublewrite-home-run-written'), 'first batch is going home');
my $drop = dw_start($node, 'drop', 'DROP TABLE dropped');
ok(dw_waits_for($node, 'drop', 'DoubleWriteFlush'), 'DROP waits for it');
$node->safe_psql('postgres', q{
	DELETE FROM u WHERE id = 1; SELECT dw_evict('u')});
wake_up('doublewrite-home-run-written');
ok(dw_waits_for($node, 'flusher', 'doublewrite-home-written'), 'first batch is home');

# let the flusher run into the next batch, and wait there
$node->safe_psql('postgres', q{
	SELECT injection_points_attach('doublewrite-log-synced', 'wait');
	SELECT injection_points_wakeup('doublewrite-home-written')});
ok(dw_waits_for($node, 'flusher', 'doublewrite-log-synced'), 'second batch is under way');
is($node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drop' AND wait_event ~ 'DoubleWrite'"),
	0, 'DROP does not wait any more');
$node->safe_psql('postgres', q{SELECT injection_points_detach('doublewrite-home-written')});
wake_up('doublewrite-log-synced');
dw_finish($flusher, $drop);

# --- Backups that hold up home writes, one after the other

$node->safe_psql('postgres', q{
	SELECT injection_points_attach('test-doublewrite-holding', 'wait');
	DELETE FROM t WHERE id = 2; SELECT dw_evict('t')});
my $first = dw_start($node, 'first', 'SELECT dw_hold_home_writes()');
ok(dw_waits_for($node, 'first', 'test-doublewrite-holding'), 'first one holds up home writes');
# (false: wait where the engine does, not where the test module looks after us)
$flusher = dw_start($node, 'flusher', 'SELECT dw_drain(false)');
ok(dw_waits_for($node, 'flusher', 'DoubleWriteFlush'), 'a batch waits for it');
my $second = dw_start($node, 'second', 'SELECT dw_hold_home_writes()');
ok(dw_waits_for($node, 'second', 'DoubleWrite|holding'), 'second one wants to hold them up');
is($node->safe_psql('postgres',
		"SELECT wait_event FROM pg_stat_activity WHERE application_name = 'second'"),
	'DoubleWriteTurn', '... and waits for the batch');
wake_up('test-doublewrite-holding');
dw_finish($first, $flusher, $second);
is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'), 0, 'all is home');
$node->stop;

done_testing();
