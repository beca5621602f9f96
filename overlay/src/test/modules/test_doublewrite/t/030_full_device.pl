# Copyright (c) 2025, PostgreSQL Global Development Group

# The device of the log is full, and pages that cannot be written home keep all of
# it in use.  Once their files are well again, or gone, work goes on (R11).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $turns;

# Change some pages, and have them written home; returns whether that worked
sub turn
{
	my ($node, $npages) = @_;
	my $first = ($turns++ % 99) * 60 + 1;
	my $last = $first + ($npages // 60) - 1;

	return $node->psql('postgres',
		"UPDATE t SET v = v + 1 WHERE id BETWEEN $first AND $last; SELECT dw_evict('t'); SELECT dw_flush_batch(false)"
	) == 0;
}

# Blocks behind the newest batch, in the segment that is being written
sub blocks_left
{
	my ($node) = @_;

	return 512 -
	  $node->safe_psql('postgres', 'SELECT blockno FROM dw_state()');
}

foreach my $case ('well again', 'dropped')
{
	my $node = dw_quiet_node(
		$case =~ s/ /_/gr, conf => q{
double_write_buffer_size = 64MB
bgwriter_delay = 200ms
test_doublewrite.quiet = off
});
	my $dir = PostgreSQL::Test::Utils::tempdir();

	$turns = 0;
	my @stopped = dw_stop_processes($node, 'background writer');
	$node->safe_psql('postgres', $_)
	  foreach (
		q{SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)},
		"CREATE TABLESPACE bad LOCATION '$dir'",
		q{CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 6000) i;
		CREATE TABLE bad (LIKE t INCLUDING STORAGE) TABLESPACE bad;
		INSERT INTO bad SELECT * FROM t WHERE id < 4},
		'CHECKPOINT',
		q{UPDATE bad SET v = 1;
		SELECT dw_drain(), dw_evict('bad'),
			dw_fail_homes_in((SELECT oid FROM pg_tablespace WHERE spcname = 'bad'), 'EIO')}
	  );
	isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
		0, "$case: home write failed");

	# until the last segment there is has been entered, or there is no room in it
	while (
		turn($node)
		&& $node->safe_psql('postgres',
			'SELECT segno < last_segno FROM dw_state()') eq 't')
	{
		BAIL_OUT('the log does not get full') if $turns > 10000;
	}

	# ... and then the rest of it, with batches that need no more blocks than the
	# copies of failed pages: else these would be renewed, and segments freed
	for (my $left = 1; $left > 0;)
	{
		my $before = blocks_left($node);

		turn($node, max(1, min(60, int(($before - 60) / 4))));
		$left = blocks_left($node);
		last if $left == $before;
	}
	is(blocks_left($node), 1,
		"$case: the last block is kept for a mark that frees something");

	$node->safe_psql('postgres', 'DROP TABLE bad') if $case eq 'dropped';
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-home-write')});
	kill('CONT', @stopped);

	# each turn works in the end: what held the log is tried again, or let go
	my $worked = 0;
	foreach my $i (1 .. 50)
	{
		watchdog_until("$case: a turn to work", sub { turn($node) });
		$worked++;
	}
	is($worked, 50, "$case: pages are written again");
	is($node->psql('postgres', 'CHECKPOINT'),
		0, "$case: checkpoint completes");
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-create-segment')});
	$node->stop;
}

# A checkpoint is about to raise the mark when others fill the log, up to the block that is
# kept for a mark: its own would free nothing with that.
{
	my $node = dw_quiet_node(
		'mark', conf => q{
double_write_buffer_size = 64MB
double_write_compression = off
});
	my $point = 'doublewrite-checkpoint-drained';

	$turns = 0;
	my @stopped = dw_stop_processes($node, 'background writer');
	$node->safe_psql('postgres', $_)
	  foreach (
		q{SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)},
		q{CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 6000) i},
		'CHECKPOINT');
	turn($node);
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', $point);
	is( $node->safe_psql(
			'postgres', 'SELECT segno - first_segno FROM dw_state()'),
		0,
		'mark: all that the checkpoint frees is in the first segment');

	# batches have a block more than pages
	while (
		$node->safe_psql('postgres',
			'SELECT segno < last_segno FROM dw_state()') eq 't')
	{
		turn($node);
	}
	while ((my $left = blocks_left($node)) > 1)
	{
		turn($node, $left > 65 ? 60 : $left % 2 == 0 ? 2 : 1);
	}
	is(blocks_left($node), 1, '... and the log is full');
	dw_wake($node, $point);
	$checkpoint->quit;

	my $worked = 0;
	$worked += turn($node) ? 1 : 0 foreach (1 .. 50);
	is($worked, 50, '... and pages are written after it');
	is($node->psql('postgres', 'CHECKPOINT'), 0, '... and checkpoints made');
	kill('CONT', @stopped);
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-create-segment')});
	$node->stop;
}

done_testing();
