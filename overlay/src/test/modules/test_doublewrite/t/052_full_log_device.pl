# Copyright (c) 2025, PostgreSQL Global Development Group

# A start after a crash needs no space on the device of the log: what was live there is
# free when its pages are restored (R8, R11).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $full = 'doublewrite-create-segment:ENOSPC:1:1000000';
my $node = dw_new_node(
	'main', conf => q{
wal_level = minimal
max_wal_senders = 0
double_write_stage_size = 8MB
double_write_buffer_size = 64MB
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
test_doublewrite.quiet = on
});
my $dir = $node->data_dir . '/pg_doublewrite';
my $v = 0;

# Change some pages, or all, and write them home
sub turn
{
	my ($npages) = @_;

	$v++ if $npages == 60;
	$node->safe_psql('postgres',
		"UPDATE t SET v = $v WHERE id <= $npages; SELECT dw_remember_truncated('t'), dw_evict('t'); SELECT dw_flush_batch()"
	);
	return;
}

# Write pages until that many segments are live behind the first
sub fill
{
	my ($nsegments) = @_;

	foreach (1 .. 200)
	{
		turn(60);
		return
		  if $node->safe_psql('postgres',
			"SELECT segno - first_segno >= $nsegments FROM dw_state()") eq
		  't';
	}
	BAIL_OUT('the log does not grow');
}

# ... and all but the last block of the segment
sub fill_segment
{
	foreach (1 .. 40)
	{
		my $left = 511 -
		  $node->safe_psql('postgres', 'SELECT blockno FROM dw_state()');

		return if $left == 0;
		turn($left > 122 ? 60 : $left > 61 ? 30 : $left - 1);
	}
	BAIL_OUT('the segment does not get full');
}

sub start_fails_not
{
	my ($what, @settings) = @_;
	my $before = dw_segments($dir);
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf', $_)
	  foreach ("test_points.fail_at = '$full'", @settings);
	ok($node->start(fail_ok => 1),
		"$what: the server starts on a full device");
	like(
		slurp_file($node->logfile, $offset),
		qr/double-write log: examined [1-9]/,
		"$what: pages are restored");
	is($node->safe_psql('postgres', 'SELECT min(v), max(v) FROM t'),
		"$v|$v", "$what: rows are there");
	cmp_ok(scalar(dw_segments($dir)),
		'<=', $before, "$what: no segment is made");
	return;
}

$node->start;
dw_extensions($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int, filler text STORAGE PLAIN) WITH (fillfactor = 45);
	INSERT INTO t SELECT i, 0, repeat('x', 3500) FROM generate_series(1, 60) i;
	CHECKPOINT});
my @stopped = dw_stop_processes($node, 'checkpointer');
fill(4);

# all segments there are hold something live
my $segno = $node->safe_psql('postgres', 'SELECT segno FROM dw_state()');
$node->stop('immediate');
unlink grep { hex((/([0-9A-F]{16})$/)[0]) > $segno }
  map { "$dir/$_" } dw_segments($dir);
is(scalar(dw_segments($dir)), 5, 'all segments are live');
start_fails_not('all live');

# the newest batch is a mark in the last block of its segment, after which the others
# have not been renamed yet
@stopped = dw_stop_processes($node, 'checkpointer');
fill(2);
fill_segment();
$node->safe_psql('postgres',
	q{SELECT points_crash_at('doublewrite-after-low-water')});
$node->psql('postgres', 'SELECT dw_sync_cycle()');
dw_wait_for_exit($node);
my $log = dw_read_log($node);
is($log->{batches}[-1]{blockno},
	511, 'the newest batch is a mark in the last block');
unlink grep { hex((/([0-9A-F]{16})$/)[0]) > $log->{batches}[-1]{segno} }
  map { "$dir/$_" } dw_segments($dir);
ok(dw_poll_start($node),
	'a log without room for another mark: the server starts on a full device'
);

# crashes in between
foreach
  my $point ('doublewrite-old-log-ended', 'doublewrite-before-low-water',
	'doublewrite-after-low-water')
{
	@stopped = dw_stop_processes($node, 'checkpointer');
	fill(2);
	$segno = $node->safe_psql('postgres', 'SELECT segno FROM dw_state()');
	$node->stop('immediate');
	unlink grep { hex((/([0-9A-F]{16})$/)[0]) > $segno }
	  map { "$dir/$_" } dw_segments($dir);
	$node->append_conf('postgresql.conf', "test_points.crash_at = '$point'");
	ok(!$node->start(fail_ok => 1), "$point: the start crashes");
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''");
	ok(dw_poll_start($node), "$point: the next one works");
	is($node->safe_psql('postgres', 'SELECT min(v), max(v) FROM t'),
		"$v|$v", "$point: rows are there");
}

# with full-page images from now on, too
@stopped = dw_stop_processes($node, 'checkpointer');
fill(2);
$segno = $node->safe_psql('postgres', 'SELECT segno FROM dw_state()');
$node->stop('immediate');
unlink grep { hex((/([0-9A-F]{16})$/)[0]) > $segno }
  map { "$dir/$_" } dw_segments($dir);
start_fails_not('full_pages', 'io_torn_pages_protection = full_pages');
$node->stop;

done_testing();
