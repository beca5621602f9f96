# Copyright (c) 2025, PostgreSQL Global Development Group

# Segments of the log that cannot be made, renamed, named durably or written: none of
# that is the end of it (R11).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

use constant ROWS => 60;

# A server on which only the test writes pages back, and on which each batch is
# logged, also pages that have a copy in the log already.
sub new_node
{
	my ($name, $conf) = @_;
	my $node = dw_quiet_node(
		$name, conf => q{
wal_level = minimal
max_wal_senders = 0
double_write_stage_size = 8MB
} . ($conf // ''));

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int, v int, filler text STORAGE PLAIN) WITH (fillfactor = 45);
		INSERT INTO t SELECT i, 0, repeat('x', 3500) FROM generate_series(1, }
		  . ROWS . q{) i;
		CHECKPOINT});
	return $node;
}

sub sql
{
	my ($node, $query) = @_;

	return $node->safe_psql('postgres', $query);
}

# Change all pages some times, and have them written home; returns what went wrong
sub turn
{
	my ($node, $n) = @_;
	my $stderr;

	$node->psql(
		'postgres',
		"UPDATE t SET v = v + 1; SELECT dw_remember_truncated('t'), dw_evict('t'); SELECT dw_flush_batch();\n"
		  x ($n // 1),
		stderr => \$stderr,
		on_error_stop => 0);
	return $stderr;
}

sub log_state
{
	my ($node) = @_;
	my %state;

	@state{qw(segno blockno first last)} = split /\|/,
	  sql($node,
		'SELECT segno, blockno, first_segno, last_segno FROM dw_state()');
	return \%state;
}

# Until the next batch of a turn does not fit into the segment
sub fill_segment
{
	my ($node) = @_;

	for (1 .. 20)
	{
		return if log_state($node)->{blockno} + ROWS + 1 > 511;
		turn($node);
	}
	BAIL_OUT('the segment does not get full');
}

sub fail_at
{
	my ($node, $point, $errno, $times) = @_;

	sql($node,
		"SELECT points_fail_at('doublewrite-$point', '$errno', 1, $times)");
	return;
}

sub clear
{
	my ($node, $point) = @_;

	sql($node, "SELECT points_clear('doublewrite-$point')");
	return;
}

sub hits
{
	my ($node, $point) = @_;

	return sql($node, "SELECT points_hits('doublewrite-$point')");
}

# The server crashes and starts
sub crash
{
	my ($node, $what) = @_;

	turn($node);
	my $value = sql($node, 'SELECT max(v) FROM t');
	$node->stop('immediate');
	$node->start;
	is(sql($node, 'SELECT min(v), max(v) FROM t'),
		"$value|$value", "$what, after a crash: rows are there");
	return;
}

# --- No segment can be made, for whatever reason

my $node = new_node('node', 'double_write_buffer_size = 64MB');
my @stopped = dw_stop_processes($node, 'checkpointer');
foreach my $errno ('ENOSPC', 'EIO', 'EDQUOT')
{
	my $offset = -s $node->logfile;
	my $cycles = sql($node, 'SELECT sync_cycles FROM dw_stats()');

	fail_at($node, 'create-segment', $errno, 1000000);
	is(turn($node, 100), '', "$errno: pages are written");
	cmp_ok(sql($node, 'SELECT sync_cycles FROM dw_stats()'),
		'>', $cycles, "$errno: sync cycles have freed space");
	like(
		slurp_file($node->logfile, $offset),
		qr/could not extend the double-write log: .*DETAIL:  Pages wait until a sync/s,
		"$errno: says why");
	clear($node, 'create-segment');
}

# --- Segments that cannot be renamed for a while

fail_at($node, 'create-segment', 'ENOSPC', 1000000);
my $before = log_state($node);
fail_at($node, 'rename-segment', 'ENOSPC', 3);
turn($node, 50);
cmp_ok(hits($node, 'rename-segment'),
	'>', 3, 'rename: segments could not be renamed');
clear($node, 'rename-segment');
is(turn($node, 50), '', '... pages are written when they can be');
sql($node, 'SELECT dw_sync_cycle()');
is( log_state($node)->{last} - log_state($node)->{first},
	$before->{last} - $before->{first},
	'... and none of them is lost');

# neither that nor another one: a cycle does not help
fail_at($node, 'rename-segment', 'EIO', 1000000);
clear($node, 'create-segment');
turn($node, 50);
my $busy = sql(
	$node,
	q{SELECT string_agg(pid::text, '|') FROM pg_stat_activity
		WHERE backend_type IN ('checkpointer', 'background writer')});
is( join(' ',
		grep { !/new\.(?:$busy)$/ }
		  glob($node->data_dir . '/pg_doublewrite/new.*')),
	'',
	'rename: files that got no name do not stay');
fail_at($node, 'create-segment', 'EDQUOT', 1000000);
my $stderr = turn($node, 50);
like(
	$stderr,
	qr/could not extend the double-write log: Disk quota exceeded/,
	'no segment at all: the error is that of the segment that could not be made'
);
clear($node, 'create-segment');
clear($node, 'rename-segment');
is(turn($node, 50), '', '... and work goes on when it can be made');

# --- A place that cannot be written

$before = log_state($node);
turn($node) if log_state($node)->{blockno} > 200;
my $bad = log_state($node)->{segno};
my $offset = -s $node->logfile;
fail_at($node, 'log-write', 'EIO', 1);
is(turn($node), '', 'bad place: the batch is written');
is(log_state($node)->{segno}, $bad + 1, '... to the next segment');
like(
	slurp_file($node->logfile, $offset),
	qr/LOG:  could not write to double-write log segment "pg_doublewrite\/[0-9A-F]{16}" at offset \d+: Input\/output error/,
	'... says why');
kill('CONT', @stopped);
crash($node, 'bad place');

@stopped = dw_stop_processes($node, 'checkpointer');
turn($node);
my $path = $node->data_dir
  . sprintf('/pg_doublewrite/%016X', log_state($node)->{segno});
my $inode = (stat($path))[1];
fail_at($node, 'log-write', 'EIO', 1);
turn($node);
sql($node, 'SELECT dw_sync_cycle()');
ok(!-e $path, 'a segment with a bad place is freed');
is( (   grep { (stat($_))[1] == $inode }
		  glob($node->data_dir . '/pg_doublewrite/*')),
	0,
	'... and not used again');

# the first block of a segment: another file takes its place
fill_segment($node);
$before = log_state($node);
cmp_ok(
	$before->{last}, '>',
	$before->{segno} + 1,
	'there are two more segments');
fail_at($node, 'log-write', 'EIO', 1);
is(turn($node), '', 'bad first block: the batch is written');
is_deeply(
	[ @{ log_state($node) }{qw(segno blockno last)} ],
	[ $before->{segno} + 1, ROWS + 1, $before->{last} - 1 ],
	'... to the last file, which has taken the place');
kill('CONT', @stopped);
crash($node, 'bad first block');
@stopped = dw_stop_processes($node, 'checkpointer');

# ... and if there is none, the batch waits, and the segment is not entered
fail_at($node, 'create-segment', 'ENOSPC', 1000000);
for (1 .. 200)
{
	last if log_state($node)->{segno} + 1 == log_state($node)->{last};
	turn($node);
}
fill_segment($node);
$before = log_state($node);
my $cycles = sql($node, 'SELECT sync_cycles FROM dw_stats()');
fail_at($node, 'log-write', 'EIO', 1);
is(turn($node), '',
	'bad first block of the last segment: the batch is written');
cmp_ok(sql($node, 'SELECT sync_cycles FROM dw_stats()'),
	'>', $cycles, '... after a sync cycle');
clear($node, 'create-segment');
kill('CONT', @stopped);
crash($node, 'bad first block of the last segment');

# --- Nothing can be written for a while

@stopped = dw_stop_processes($node, 'checkpointer');
turn($node);
$before = log_state($node);
fail_at($node, 'log-write', 'EIO', 1000000);
like(
	turn($node),
	qr/could not write to double-write log segment .*Input\/output error/,
	'nothing can be written: that is an error');
$node->psql('postgres', 'SELECT dw_flush_batch()') foreach 1 .. 40;
clear($node, 'log-write');
cmp_ok(log_state($node)->{last} - log_state($node)->{first},
	'<', 16, '... the log does not grow by that');
is(turn($node, 30), '', '... and work goes on when it can');
kill('CONT', @stopped);
crash($node, 'nothing can be written');
$node->stop;

# --- Names that are not durable

$node =
  new_node('names', "double_write_buffer_size = 16MB\ndata_sync_retry = on");
@stopped = dw_stop_processes($node, 'checkpointer');
turn($node, 20);
fail_at($node, 'names-sync', 'EIO', 1);
sql($node, 'SELECT dw_sync_cycle()');
is(hits($node, 'names-sync'), 1, 'names of segments could not be synced');
is(turn($node), '', '... a batch is written');
is(hits($node, 'names-sync'), 2, '... after that has been repeated');

# a sync of the log that fails leaves its place, too
turn($node) if log_state($node)->{blockno} == 0;
$before = log_state($node);
fail_at($node, 'log-sync', 'EIO', 1);
is(turn($node), '', 'failed sync: the batch is written');
is(log_state($node)->{segno}, $before->{segno} + 1,
	'... to the next segment');
kill('CONT', @stopped);
$node->stop;

# without a descriptor nothing has been lost
$node->append_conf('postgresql.conf', 'data_sync_retry = off');
$node->start;
@stopped = dw_stop_processes($node, 'checkpointer');
turn($node, 20);
fail_at($node, 'names-sync', 'EMFILE', 1);
sql($node, 'SELECT dw_sync_cycle()');
is(hits($node, 'names-sync'), 1, 'no descriptor: names could not be synced');
is(turn($node), '', '... and a batch is written later');
is(hits($node, 'names-sync'), 2, '... after that has been repeated');

# a sync that fails is a PANIC, as any other
$offset = -s $node->logfile;
fail_at($node, 'names-sync', 'EIO', 1);
eval { turn($node, 20) };    # may find the log full, and run the cycle
dw_psql_until_crash($node, 'SELECT dw_sync_cycle()');
$node->wait_for_log(qr/PANIC:  could not fsync file "pg_doublewrite"/,
	$offset);
kill('CONT', @stopped);
$node->stop('immediate', fail_ok => 1);

done_testing();
