# Copyright (c) 2025, PostgreSQL Global Development Group

# Found by trying to break the reading of live segments only: what stands in the
# log is found where the first blocks do not tell, numbers never repeat, and a copy
# of a running server is refused whatever it was copied from first (R9).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node(
	'main',
	init => { allows_streaming => 1, has_archiving => 1 },
	conf => "double_write_buffer_size = 64MB\n");
my $data = $node->data_dir;
my $dir = "$data/pg_doublewrite";
my $v = 0;

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v, repeat('x', 1000) AS filler
		FROM generate_series(1, 7000) i;
	CREATE TABLE small AS SELECT * FROM t LIMIT 300});

sub tear_home
{
	my ($copy) = @_;
	my ($path, $offset) = dw_home_path($node, $copy);

	return 0
	  unless $path =~ /^base/ && defined read_block($node, $path, $offset);
	write_block($node, $path, $offset + BLCKSZ / 2, "\xA5" x (BLCKSZ / 2));
	return 1;
}

# Change a table, write it home by way of the log, crash, and tear what is live
sub crash_torn
{
	my ($table) = @_;
	my $torn = 0;

	$v++;
	$node->safe_psql('postgres',
		"CHECKPOINT; SELECT dw_sync_cycle(); UPDATE $table SET v = $v");
	$node->safe_psql('postgres',
		"SELECT dw_evict('$table'); SELECT dw_drain()");
	$node->stop('immediate');
	$torn += tear_home($_)
	  foreach values %{ dw_live_copies(dw_read_log($node)) };
	cmp_ok($torn, '>', 0, "$table: pages were torn");
	return;
}

sub segment
{
	return sprintf('pg_doublewrite/%016X', $_[0]);
}

sub is_whole
{
	my ($table, $what) = @_;

	ok(dw_poll_start($node), "$what: server starts")
	  or BAIL_OUT('the server does not start');
	is( $node->safe_psql(
			'postgres',
			"SELECT count(*) = (SELECT count(*) FROM $table WHERE v = $v) FROM $table"
		),
		't',
		"$what: nothing lost");
	return;
}

# --- The only first block that tells the random number is damaged; nothing in
#     it is live

crash_torn('small');
{
	my $newest = dw_read_log($node)->{live}[-1];

	write_block($node, segment($newest->{segno}), 0, "\0" x BLCKSZ);
	is_whole('small', 'first block damaged');
}

# --- A mark whose sync has failed, and its number once more in the next segment,
#     torn: the first of them does not say how far down the log is live

$node->poll_query_until('postgres',
	'SELECT last_segno - segno >= 4 FROM dw_state()')
  or die 'no segments are prepared';
crash_torn('t');
{
	my $live = dw_read_log($node)->{live};
	my $newest = $live->[-1];
	my $next = $newest->{batchno} + 1;
	my $end = $newest->{blockno} + $newest->{nblocks};
	my ($pages) = grep { $_->{npages} > 0 } @$live;

	isnt($live->[0]{segno}, $newest->{segno}, 'several segments are live');
	write_block(
		$node,
		segment($newest->{segno}),
		$end * BLCKSZ,
		dw_forged_header(
			$node, $newest,
			batchno => $next,
			low_water => $next,
			segno => $newest->{segno},
			blockno => $end,
			npages => 0,
			entries => []));
	write_block(
		$node,
		segment($newest->{segno} + 1),
		0,
		dw_forged_header(
			$node, $pages,
			batchno => $next,
			low_water => $next,
			segno => $newest->{segno} + 1,
			blockno => 0));
	is_whole('t', 'number written twice');
}

# --- Crash recovery on its way to archive recovery crashes: not a backup

$node->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
	'full_pages');
$node->restart;
$node->safe_psql('postgres', 'UPDATE small SET v = v');
$node->stop('immediate');
$node->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = double_writes
restore_command = 'false'
test_points.crash_at = 'doublewrite-armed'
});
append_to_file("$data/recovery.signal", '');
{
	my $offset = -s $node->logfile;

	$node->start(fail_ok => 1);
	dw_wait_for_crash($node, $offset);
	ok(-e "$data/backup_label",
		'crash recovery has armed the log, and crashed');
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''\n");
	command_ok([ 'pg_doublewrite', 'check', $data ],
		'the tool sees no backup');
	ok(dw_poll_start($node), 'neither does the server');

	# it lets readers in before the end of recovery
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'recovery does not end';
}

# --- Segments that the start could not see, since their directory was not there.
#     The one written last has a number that a log which began anew would not
#     reach soon, so nothing would replace it, and batches with higher numbers
#     than those of such a log.

$node->safe_psql('postgres',
	'UPDATE t SET v = v; CHECKPOINT; SELECT dw_sync_cycle()')
  foreach (1 .. 4);

# a stop that is cut short before it removes segments
my $offset = -s $node->logfile;
$node->safe_psql('postgres',
	q{SELECT points_crash_at('doublewrite-remove-segment', 1)});
kill('INT', $node->{_pid});
dw_wait_for_crash($node, $offset);
{
	my ($left) = reverse @{ dw_read_log($node)->{batches} };

	cmp_ok($left->{segno}, '>', 10,
		'newest segment left is far from the first');
	cmp_ok($left->{batchno}, '>', 10, '... and has many batches before it');
}
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = full_pages\n");
rename($dir, "$dir.mount") or die "could not rename: $!";
symlink("$dir.missing", $dir) or die "could not link: $!";
$node->start;
unlink($dir) or die "could not unlink: $!";
symlink("$dir.mount", $dir) or die "could not link: $!";
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = double_writes\n");
$node->reload;
$node->poll_query_until('postgres', 'SELECT armed FROM dw_state()')
  or die 'the log is not armed';
$v++;
$node->safe_psql('postgres', "UPDATE small SET v = $v");
$node->safe_psql('postgres', "SELECT dw_evict('small'); SELECT dw_drain()");
$node->stop('immediate');
{
	my $torn = 0;

	foreach my $batch (@{ dw_read_log($node)->{batches} })
	{
		$torn += tear_home($_)
		  foreach grep { $_->{length} > 0 } @{ $batch->{entries} };
	}
	cmp_ok($torn, '>', 0, 'pages were torn');
	is_whole('small', 'old segments in the directory');
}
unlink($dir) or die "could not unlink: $!";
$node->stop('immediate');
rename("$dir.mount", $dir) or die "could not rename: $!";
$node->start;

# --- A copy of the running server without its marker, in which pg_control is newer
#     than the log

{
	my $copy = PostgreSQL::Test::Cluster->new('copy');
	my $backup = $node->backup_dir . '/copy';

	$node->safe_psql('postgres',
		"CHECKPOINT; SELECT dw_sync_cycle(); UPDATE small SET v = v; SELECT dw_evict('small'); SELECT dw_drain()"
	);
	mkdir($node->backup_dir);
	PostgreSQL::Test::RecursiveCopy::copypath($data, $backup,
		filterfn => sub { return $_[0] !~ /^(postmaster\.|backup_label)/ });
	$node->safe_psql('postgres', 'CHECKPOINT');
	system_or_bail('cp', "$data/global/pg_control",
		"$backup/global/pg_control");
	system_or_bail('cp', '-a', "$data/pg_wal/.", "$backup/pg_wal/");

	$copy->init_from_backup($node, 'copy');
	isnt($copy->start(fail_ok => 1),
		1, 'copy without marker: server does not start');
	like(
		slurp_file($copy->logfile),
		qr/this data directory is a copy of one whose double-write log was in use/,
		'copy without marker: says why');
}

$node->stop;
done_testing();
