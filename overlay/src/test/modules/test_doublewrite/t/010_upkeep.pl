
# Copyright (c) 2025, PostgreSQL Global Development Group

# What the engine does so that no process has to wait: room in the stage, segments
# of the log at hand, sync cycles beside the flusher.

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

my $node = dw_new_node('main');

# --- The automatic size of the stage

$node->append_conf('postgresql.conf', 'double_write_stage_size = -1');
foreach my $case (
	[ '128kB', 128 ],
	[ '512kB', 512 ],
	[ '1MB', 1024 ],
	[ '256MB', 1024 ],
	[ '384MB', 1536 ])
{
	my ($buffers, $slots) = @$case;

	$node->append_conf('postgresql.conf', "shared_buffers = $buffers");
	$node->start;
	dw_extensions($node);
	is($node->safe_psql('postgres', 'SELECT slots FROM dw_state()'),
		$slots, "slots with shared_buffers = $buffers");

	# -1 in the file is no change, whatever SHOW says.
	$node->reload;
	is( $node->safe_psql(
			'postgres', q{
			SELECT setting, pending_restart FROM pg_settings
			WHERE name = 'double_write_stage_size'}),
		"$slots|f",
		"SHOW with shared_buffers = $buffers");
	$node->stop;
}

# --- How many segments are ready goes by shared buffers, and by what is logged

my $sized = dw_new_node('sized', conf => 'double_write_buffer_size = -1');

sub ahead_is
{
	my ($ahead, $what, $then) = @_;
	my $query = 'SELECT last_segno - segno FROM dw_state()';

	ok($sized->poll_query_until('postgres', "SELECT ($query) >= $ahead"),
		"segments are ready $what");
	return unless defined $then;
	$sized->safe_psql('postgres', $then);
	is($sized->safe_psql('postgres', $query), $ahead, '... and no more');
	return;
}

$sized->append_conf('postgresql.conf', 'shared_buffers = 8MB');
$sized->start;
dw_extensions($sized);
ahead_is(8, 'with small shared buffers', 'CHECKPOINT');
$sized->safe_psql(
	'postgres', q{
	CREATE TABLE t (filler text STORAGE PLAIN);
	INSERT INTO t SELECT repeat('x', 6000) FROM generate_series(1, 15 * 512 - 60);
	CHECKPOINT});
ahead_is(8, 'when pages have been written home that need no copies',
	'CHECKPOINT');
$sized->stop;
$sized->append_conf('postgresql.conf', 'shared_buffers = 192MB');
$sized->start;
ahead_is(12, 'with larger shared buffers', 'CHECKPOINT');
$sized->safe_psql('postgres',
	'UPDATE t SET filler = filler; SELECT dw_evict_all(), dw_drain()');
# a checkpoint would make more, of those that it frees; what is asked for when the 15th
# segment has been filled counts 13 at least
ahead_is(13, 'when copies have been written');
$sized->stop;

# --- The automatic bound of the log, which follows reloads

# What SHOW says, in megabytes, and what the server goes by
sub bound_is
{
	my ($megabytes, $what) = @_;

	ok( $sized->poll_query_until(
			'postgres',
			q{SELECT setting = '}
			  . $megabytes
			  . q{' AND unit = 'MB'
				AND current_setting(name) = setting
			  FROM pg_settings WHERE name = 'double_write_buffer_size'}),
		"SHOW with $what");
	is( $sized->safe_psql(
			'postgres',
			'SELECT limit_bytes / 1048576 FROM pg_double_write_log()'),
		$megabytes,
		"bound with $what");
	return;
}

foreach my $case (
	[ '128kB', '32MB', 512 ],
	[ '640MB', '1GB', 640 ],
	[ '1100MB', '2GB', 1024 ])
{
	my ($buffers, $wal, $megabytes) = @$case;

	$sized->append_conf('postgresql.conf',
		"shared_buffers = $buffers\nmax_wal_size = $wal");
	$sized->start;
	$sized->safe_psql('postgres',
		'CREATE EXTENSION IF NOT EXISTS pg_doublewrite_stats');
	bound_is($megabytes, "shared_buffers = $buffers");
	$sized->stop unless $megabytes == 1024;
}
foreach my $case (
	[ 'max_wal_size = 6GB', 3072 ],
	[ 'max_wal_size = 64GB', 4096 ],
	[ 'double_write_buffer_size = 2GB', 2048 ],
	[ 'double_write_buffer_size = -1', 4096 ])
{
	my ($conf, $megabytes) = @$case;

	$sized->append_conf('postgresql.conf', $conf);
	$sized->reload;
	bound_is($megabytes, $conf);
}
$sized->stop;

# --- No segment outlives a clean stop

my $dir = $node->data_dir . '/pg_doublewrite';
my $value = 0;

sub inodes
{
	return join(' ', sort { $a <=> $b } map { (stat("$dir/$_"))[1] } @_);
}

# Fill more than two segments with batches
sub fill_log
{
	foreach (1 .. 6)
	{
		$value++;
		$node->safe_psql('postgres',
			"UPDATE t SET v = $value; SELECT dw_evict('t'), dw_drain();");
	}
	return;
}

# Wait until the checkpointer has made all segments that are wanted just now: a
# quarter of the bound of 16.
sub wait_for_segments
{
	my ($state) = @_;

	ok( $node->poll_query_until(
			'postgres',
			q{SELECT (last_segno - segno >= 4 OR last_segno + 1 - first_segno >= 16)
			AND NOT EXISTS
			(SELECT FROM pg_ls_dir('pg_doublewrite') f WHERE f LIKE 'new%')
			FROM dw_state()}),
		"segments are ready: $state");
	return;
}

sub table_ok
{
	my ($what) = @_;

	is($node->safe_psql('postgres', 'SELECT min(v), max(v) FROM t'),
		"$value|$value", "$what: nothing lost");
	return;
}

$node->append_conf(
	'postgresql.conf', q{
shared_buffers = 16MB
double_write_stage_size = 8MB
double_write_buffer_size = 64MB
bgwriter_lru_maxpages = 0
});
$node->start;
wait_for_segments('before anything is logged');
$node->safe_psql('postgres',
		'CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);'
	  . "INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 240) i;"
	  . 'VACUUM FREEZE t; CHECKPOINT');
fill_log();
wait_for_segments('while the log grows');
cmp_ok(scalar(dw_segments($dir)), '>=', 3, 'several segments are in use');
$node->stop;
is_deeply([ grep { !/^\./ } slurp_dir($dir) ],
	[], 'nothing is left of the log after a clean stop');

# what earlier versions have left there goes as well
foreach my $version (1, 5)
{
	append_to_file("$dir/000000000000000$version.spare$version", 'pages');
}
$node->start;
is(scalar(grep { /spare/ } slurp_dir($dir)),
	0, 'segments that earlier versions have kept are removed');
table_ok('start without segments');
my $offset;

# after a crash, segments are reused once the old log has been ended
fill_log();
wait_for_segments('after a crash');
my %known = map { $_ => 1 } split(/ /, inodes(dw_segments($dir)));
$node->stop('immediate');
dw_start_after_crash($node);
is(scalar(grep { !$known{$_} } split(/ /, inodes(dw_segments($dir)))),
	0, 'segments are reused after a crash');
cmp_ok(scalar(dw_segments($dir)), '>', 2,
	'... if there is anything to reuse');
table_ok('crash');

# --- A shutdown that is cut short while it removes its segments

# Crash before the nth segment is removed by a shutdown; returns those that are left
sub cut_shutdown_short
{
	my ($nth) = @_;

	fill_log();
	wait_for_segments('before a shutdown');
	my $before = dw_segments($dir);
	$offset = -s $node->logfile;
	$node->safe_psql('postgres',
		"SELECT points_crash_at('doublewrite-remove-segment', $nth)");
	kill('INT', $node->{_pid});
	dw_wait_for_crash($node, $offset);
	my @left = dw_segments($dir);
	is(scalar(@left), $before - ($nth - 1), 'some segments are left');
	return @left;
}

foreach my $nth (1 .. 3)
{
	%known = map { $_ => 1 } split(/ /, inodes(cut_shutdown_short($nth)));
	$offset = -s $node->logfile;
	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	ok( !$node->log_contains(
			qr/double-write log (?:is damaged|does not match|: examined)/,
			$offset),
		'what is left of the log is empty');
	is( join(' ', grep { $known{$_} } split(/ /, inodes(dw_segments($dir)))),
		join(' ', sort { $a <=> $b } keys %known),
		'what is left is used again');
	table_ok("crash at file $nth of a shutdown");
}

# --- Segments that cannot be used again

my (undef, $short) = cut_shutdown_short(1);
my $bad = inodes($short);
truncate("$dir/$short", 8192) or die $!;
$node->append_conf('postgresql.conf', 'double_write_buffer_size = 16MB');
ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
is(scalar(grep { $_ == $bad } split(/ /, inodes(dw_segments($dir)))),
	0, 'one of another size is removed');
is(scalar(dw_segments($dir)), 4,
	'no more are kept than the log may be large');
table_ok('after that');

$node->stop;
$node->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$node->start;
table_ok('full_pages');
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = double_writes");
$node->restart;
fill_log();
$node->append_conf('postgresql.conf', 'io_torn_pages_protection = off');
$node->reload;
$node->poll_query_until('postgres', 'SELECT NOT armed FROM dw_state()');
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_ls_dir('pg_doublewrite')");
is(scalar(slurp_dir($dir)) - 2, 0, 'switching off removes the segments');
$node->stop;

# --- The checkpointer looks after the log while flushers go on

# For its pages the background writer gives no hints: see the end.

$node = dw_new_node(
	'checkpointer', conf => q{
shared_buffers = 32MB
double_write_stage_size = 8MB
double_write_buffer_size = 32MB
bgwriter_lru_maxpages = 0
checkpoint_completion_target = 0.9
checkpoint_flush_after = 0
});
$dir = $node->data_dir . '/pg_doublewrite';
$value = 0;
$node->start;
dw_extensions($node);
$node->safe_psql('postgres',
		'CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);'
	  . "INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 240) i;"
	  . 'CREATE TABLE dirty (LIKE t INCLUDING ALL);'
	  . 'INSERT INTO dirty SELECT * FROM t; VACUUM FREEZE t; CHECKPOINT');

sub hold
{
	my ($point) = @_;

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	return;
}

sub release
{
	my ($point) = @_;

	dw_wake($node, $point);
	return;
}

# One more batch, written back by a client
sub one_batch
{
	$value++;
	$node->safe_psql('postgres',
		"UPDATE t SET v = $value; SELECT dw_remember_truncated('t'), dw_evict('t'), dw_drain();"
	);
	return;
}

# Fill the log until a sync cycle is due, and no further: with the checkpointer
# held in one, a full log would be a wait without end.  Of its eight segments,
# more than four are in use then.
sub fill_until_cycle
{
	for (1 .. 50)
	{
		last if stat_of('segno + 1 - first_segno > 4') eq 't';
		one_batch();
	}
	wait_for_checkpointer('doublewrite-sync-cycle-synced',
		'a sync cycle is under way');
	cmp_ok(stat_of('8 - (segno + 1 - first_segno)'),
		'>=', 2, '... and there is room in the log');
	return;
}

sub wait_for_checkpointer
{
	my ($event, $what) = @_;

	ok( $node->poll_query_until(
			'postgres', "SELECT count(*) = 1 FROM pg_stat_activity
			WHERE backend_type = 'checkpointer' AND wait_event = '$event'"),
		$what);
	return;
}

sub stat_of
{
	my ($column) = @_;

	return $node->safe_psql('postgres',
		"SELECT $column FROM dw_stats(), dw_state()");
}

# segments ahead; of those that are there no session needs to create any
$node->poll_query_until('postgres',
	'SELECT last_segno - segno >= 2 FROM dw_state()')
  or die 'no segments are ready';
hold('doublewrite-create-segment');
for (1 .. 50)
{
	last if stat_of('segno > first_segno') eq 't';
	$node->safe_psql('postgres',
		"UPDATE t SET filler = filler WHERE id <= 50; SELECT dw_remember_truncated('t'), dw_evict('t'), dw_drain()"
	);
}
wait_for_checkpointer('doublewrite-create-segment',
	'the checkpointer creates a segment when the log grows');
my $home = stat_of('home_pages');
$node->safe_psql('postgres',
	"UPDATE t SET filler = filler WHERE id <= 10; SELECT dw_evict('t'), dw_drain()"
);
cmp_ok(stat_of('home_pages'), '>', $home, 'pages are written back meanwhile');
release('doublewrite-create-segment');
ok( $node->poll_query_until(
		'postgres', 'SELECT last_segno - segno >= 2 FROM dw_state()'),
	'two segments are ready');
is(scalar(grep { /^new/ } slurp_dir($dir)), 0, 'no temporary files');

# one that the checkpointer could not create is no concern of anybody yet
$node->safe_psql(
	'postgres', q{CHECKPOINT;
	SELECT points_fail_at('doublewrite-create-segment', 'EIO', 1, 1000000)});
my $log_offset = -s $node->logfile;
my $last = stat_of('last_segno');
for (1 .. 50)
{
	last
	  if stat_of(
		q{last_segno - segno < 2 OR points_hits('doublewrite-create-segment') > 0}
	  ) eq 't';
	one_batch();
}
ok( $node->poll_query_until(
		'postgres', q{SELECT points_hits('doublewrite-create-segment') > 0}),
	'creation of a segment failed');
$node->safe_psql('postgres',
	"SELECT points_clear('doublewrite-create-segment')");
ok( !$node->log_contains(
		qr/could not write file "pg_doublewrite/, $log_offset),
	'no session was told');

# a sync cycle
hold('doublewrite-sync-cycle-synced');
fill_until_cycle();
wait_for_checkpointer('doublewrite-sync-cycle-synced',
	'the checkpointer runs a sync cycle');
my $cycles = stat_of('sync_cycles');
my $logged = stat_of('logged');
one_batch();
one_batch();
cmp_ok(stat_of('logged'), '>', $logged + 2 * 200, 'the flusher goes on');
is(stat_of('log_full'), 0, 'without waiting for space');
is(stat_of('sync_cycles'), $cycles, 'while the cycle is under way');
release('doublewrite-sync-cycle-synced');
ok( $node->poll_query_until(
		'postgres', "SELECT sync_cycles > $cycles FROM dw_stats()"),
	'it completes');

# during a spread checkpoint, too
$node->safe_psql('postgres', "CHECKPOINT; UPDATE dirty SET v = v + 1");
$cycles = stat_of('sync_cycles');
my $backup = $node->background_psql('postgres');
$backup->query_until(qr/started/,
	"\\echo started\nSELECT pg_backup_start('x', false);\n");
wait_for_checkpointer('CheckpointWriteDelay', 'a checkpoint is under way');
for (1 .. 50)
{
	last
	  if stat_of("segno + 1 - first_segno > 4 OR sync_cycles > $cycles") eq
	  't';
	one_batch();
}
ok( $node->poll_query_until(
		'postgres', "SELECT sync_cycles > $cycles FROM dw_stats()"),
	'sync cycle during a checkpoint');
is(stat_of('log_full'), 0, '... run by no process that found the log full');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_backup_start%' AND state = 'active'"
	),
	1,
	'... which goes on');

# it is ahead of its schedule, so it creates segments, too
sub set_bound
{
	my ($megabytes) = @_;

	$node->append_conf('postgresql.conf',
		"double_write_buffer_size = ${megabytes}MB");
	$node->reload;
	return;
}

set_bound(128);
my $segno = stat_of('segno');
for (1 .. 50)
{
	last if stat_of("segno > $segno") eq 't';
	one_batch();
}
ok( $node->poll_query_until(
		'postgres', 'SELECT last_segno - segno >= 8 FROM dw_state()'),
	'segments are created during a checkpoint that has time');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_backup_start%' AND state = 'active'"
	),
	1,
	'... which still goes on');
set_bound(32);
$node->safe_psql('postgres', 'CHECKPOINT');
$backup->quit;

# --- Write-back as the setting of the process says that staged a page, not the
# --- setting of the one that writes it

# A client evicts the table, the background writer writes it back; number of
# pages
sub carried_by_bgwriter
{
	my $staged = stat_of('dw_stats.staged');

	$value++;
	$node->safe_psql('postgres',
		"UPDATE t SET v = $value; SELECT dw_evict('t')");
	$node->poll_query_until('postgres', 'SELECT in_use = 0 FROM dw_state()');
	return stat_of('dw_stats.staged') - $staged;
}

sub hints
{
	return $node->safe_psql('postgres',
		"SELECT sum(writebacks) FROM pg_stat_io WHERE backend_type = 'background writer'"
	);
}

# Up to here there are none: it has staged no pages itself, and the setting of the other
# processes was 0.  So none are entered late, either.
$node->append_conf('postgresql.conf',
	"backend_flush_after = 0\nbgwriter_flush_after = 1");
$node->reload;
my $hints = hints();
carried_by_bgwriter() foreach (1 .. 3);
is($hints, 0, 'no hints without a setting that asks for them');
$node->append_conf('postgresql.conf',
	"backend_flush_after = 1\nbgwriter_flush_after = 0");
$node->reload;
my $pages = carried_by_bgwriter();
cmp_ok($pages, '>', 200, 'a client has evicted pages');
$node->poll_query_until('postgres',
	"SELECT sum(writebacks) > $hints FROM pg_stat_io WHERE backend_type = 'background writer'"
) or die 'no hints';
$hints = hints() - $hints;
ok( $hints > 0 && $hints <= $pages,
	'hints for pages of a client obey backend_flush_after, and nothing else');

# A crash with the cycle between sync and mark
hold('doublewrite-sync-cycle-synced');
fill_until_cycle();
my $snapshot = dw_snapshot($node);
one_batch();
$node->stop('immediate');
my $torn = dw_tear($node, $snapshot);
cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
dw_start_after_crash($node, $torn);
table_ok('crash in a sync cycle of the checkpointer');
$node->stop;

done_testing();
