# Copyright (c) 2025, PostgreSQL Global Development Group

# A batch that finds the log full waits for a sync cycle that can help it; it is
# not given up before (R11).  All sessions that meet it wait for the same cycle.  If
# that hangs, the log grows.

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

# With wal_level = minimal each batch is logged, also pages that have a copy in
# the log already.
my $conf = q{
wal_level = minimal
max_wal_senders = 0
double_write_buffer_size = 16MB
double_write_stage_size = 8MB
};

# A server on which only the test writes pages back or frees space, and
# whose log cannot grow
sub full_node
{
	my ($name, %more) = @_;
	my $node = dw_quiet_node($name, conf => $conf . ($more{conf} // ''));

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 60) i;
		CREATE TABLE t2 (LIKE t INCLUDING STORAGE);
		CREATE TABLE enough ();
		INSERT INTO t2 SELECT * FROM t;
		CHECKPOINT;
		SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)});
	$node->{stopped} = [ dw_stop_processes($node, 'checkpointer') ];
	return $node;
}

# A session that writes more than the log holds, to a table of its own, unless table
# "enough" gets a row meanwhile
sub start_filling
{
	my ($node, $name, $table) = @_;

	return dw_start(
		$node, $name,
		join(
			";\n",
			(   "UPDATE $table SET v = v + 1 WHERE NOT EXISTS (SELECT FROM enough); SELECT dw_remember_truncated('$table'), dw_evict('$table'); SELECT dw_flush_batch()"
			) x 80));
}

sub finish
{
	my ($node, %sessions) = @_;

	foreach my $name (sort keys %sessions)
	{
		$sessions{$name}->query('SELECT 1');
		is($sessions{$name}->{stderr}, '', "\"$name\" meets no error");
		$sessions{$name}->quit;
	}
	kill('CONT', @{ $node->{stopped} });
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-create-segment')});
	$node->stop;
	return;
}

# --- A cycle that began before the log was full does not count

{
	my $node = full_node('earlier_cycle');

	$node->safe_psql(
		'postgres', q{
		SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')});
	my $cycle = dw_start($node, 'cycle', 'SELECT dw_sync_cycle()');
	dw_waits_for($node, 'cycle', '^doublewrite-sync-cycle$');
	my $filler = start_filling($node, 'filler', 't');
	dw_waits_for($node, 'filler', '^DoubleWriteSync$');
	dw_wake($node, 'doublewrite-sync-cycle');
	finish($node, cycle => $cycle, filler => $filler);
}

# --- A cycle counts for the batch that has waited for it, not for a later one

{
	my $node = full_node('later_batch');

	$node->safe_psql(
		'postgres', q{
		SELECT injection_points_attach('doublewrite-space-freed', 'wait')});
	my $first = start_filling($node, 'first', 't');
	dw_waits_for($node, 'first', '^doublewrite-space-freed$');
	$node->safe_psql(
		'postgres', q{
		SELECT injection_points_detach('doublewrite-space-freed');
		SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')});

	# another one writes that batch back, and fills the log again
	my $second = start_filling($node, 'second', 't2');
	dw_waits_for($node, 'second', '^doublewrite-sync-cycle$');
	$node->safe_psql('postgres',
		q{SELECT injection_points_wakeup('doublewrite-space-freed')});
	dw_waits_for($node, 'first', '^DoubleWriteSync$');
	dw_wake($node, 'doublewrite-sync-cycle');
	finish($node, first => $first, second => $second);
}

# --- Many sessions meet that batch: one of them runs a cycle, and no other follows

{
	my $node = full_node('many_sessions');
	my $cycles = q{SELECT sync_cycles FROM dw_stats()};

	$node->safe_psql(
		'postgres', q{
		SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')});
	my $filler = start_filling($node, 'filler', 't');
	dw_waits_for($node, 'filler', '^doublewrite-sync-cycle$');
	$node->safe_psql('postgres', 'INSERT INTO enough DEFAULT VALUES');
	my %sessions =
	  map { ($_ => dw_start($node, $_, 'SELECT dw_flush_batch()')) }
	  map { "session $_" } (1 .. 8);
	dw_waits_for($node, $_, '^DoubleWriteSync$') foreach keys %sessions;
	my $before = $node->safe_psql('postgres', $cycles);
	dw_wake($node, 'doublewrite-sync-cycle');
	$_->query('SELECT 1') foreach ($filler, values %sessions);
	is($node->safe_psql('postgres', $cycles) - $before,
		1, 'one sync cycle for all sessions that wait for space in the log');
	finish($node, filler => $filler, %sessions);
}

# --- A process that makes room runs a cycle, and the device of a file does not answer: others
# --- make room, and the log grows beyond its bound

{
	my $point = 'doublewrite-file-sync';
	my $node =
	  full_node('hanging_cycle', conf => 'double_write_stage_size = 16');
	my $segments = q{SELECT segno + 1 - first_segno FROM dw_state()};
	my %evict =
	  map { ($_ => "SELECT dw_remember_truncated('$_'), dw_evict('$_')") }
	  ('t', 't2');

	$node->safe_psql(
		'postgres', qq{
		SELECT points_clear('doublewrite-create-segment');
		SELECT injection_points_attach('$point', 'wait')});
	my $hanging = dw_start($node, 'hanging',
		join(";\n", ("UPDATE t SET v = v + 1; $evict{t}") x 80));
	ok(dw_waits_for($node, 'hanging', "^$point\$"), 'a cycle hangs');
	my $filler = dw_start($node, 'filler',
		join(";\n", ("UPDATE t2 SET v = v + 1; $evict{t2}") x 80));
	$filler->query('SELECT 1');
	cmp_ok($node->safe_psql('postgres', $segments),
		'>', 4, 'the log has grown beyond its bound');
	dw_wake($node, $point);
	$hanging->query('SELECT 1');
	$node->safe_psql('postgres', 'SELECT dw_drain(), dw_sync_cycle()');
	cmp_ok($node->safe_psql('postgres', $segments),
		'<=', 2, '... and is freed when the device answers');
	finish($node, hanging => $hanging, filler => $filler);
}

# --- A process exits in a cycle, by an error: that is none that hangs, and the log keeps its
# --- bound

{
	my $node = full_node('exits');

	$node->safe_psql(
		'postgres', q{
		UPDATE t SET v = v + 1;
		SELECT dw_evict('t'), dw_flush_batch();
		SELECT points_clear('doublewrite-create-segment');
		SELECT points_fail_at('doublewrite-file-sync', 'EMFILE')});
	my (undef, undef, $stderr) = $node->psql('postgres',
		'SET exit_on_error = on; SELECT dw_sync_cycle()');
	like(
		$stderr,
		qr/server closed the connection/,
		'an error ends a process that runs a cycle');

	# longer than a sync may take
	$node->safe_psql('postgres', 'SELECT pg_sleep(5.5)');
	my $filler = start_filling($node, 'filler', 't2');
	$filler->query('SELECT 1');
	cmp_ok(
		$node->safe_psql(
			'postgres', q{SELECT segno + 1 - first_segno FROM dw_state()}),
		'<=', 4,
		'... and the log does not grow beyond its bound');
	finish($node, filler => $filler);
}

done_testing();
