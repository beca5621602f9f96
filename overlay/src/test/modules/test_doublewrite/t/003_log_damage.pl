
# Copyright (c) 2025, PostgreSQL Global Development Group

# A log that is damaged, foreign, stale or gone is never applied, nor is it
# taken for an empty one; once it is as it was, nothing is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# enough room that only checkpoints free any
my $node = dw_new_node('main', conf => 'double_write_buffer_size = 64MB');
my $dir = $node->data_dir . '/pg_doublewrite';

# Crash when the live range has reached so many more files.
sub run_until_crash
{
	my ($files) = @_;
	my $offset = -s $node->logfile;

	dw_workload_start($node);
	dw_wait_for_history($node, 100);
	# from the first segment on that the checkpoint leaves: each page is logged but once
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	$node->poll_query_until('postgres',
		"SELECT segno >= first_segno + $files FROM dw_state()")
	  or die "log does not grow";
	# which comes also when each page has been logged
	$node->psql(
		'postgres',
		"SELECT points_crash_at('doublewrite-home-run-written', 3)",
		on_error_die => 0);
	dw_wait_for_crash($node, $offset);
	dw_workload_finish($node);
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
	return $torn;
}

# The server refuses to start, says why, and changes neither pages nor log.
sub refuses
{
	my ($what, @messages) = @_;
	my $offset = -s $node->logfile;
	my $pages = dw_digest($node);
	my $log = -d $dir ? dw_log_digest($dir) : '';

	ok(!dw_poll_start($node), "$what: server does not start");
	my $text = slurp_file($node->logfile, $offset);
	like($text, $_, "$what: says why") foreach @messages;
	is(dw_digest($node), $pages, "$what: no page touched");
	is(-d $dir ? dw_log_digest($dir) : '', $log, "$what: log not touched");
	return;
}

# Change bytes of the log, have the server refuse, and change them back.
sub refuses_bytes
{
	my ($what, $segno, $offset, $bytes, @messages) = @_;
	my $path = sprintf('pg_doublewrite/%016X', $segno);
	my $was =
	  substr(slurp_file($node->data_dir . "/$path"), $offset, length($bytes));

	isnt($was, $bytes, "$what: bytes differ");
	write_block($node, $path, $offset, $bytes);
	refuses($what, @messages);
	write_block($node, $path, $offset, $was);
	return;
}

sub place
{
	my ($segno, $offset) = @_;
	my $name = sprintf('%016X', $segno);

	return qr/file "pg_doublewrite\/$name" at offset $offset\b/;
}

$node->start;
# more pages than a segment holds: the log holds each of them once
dw_workload_setup($node, accounts => 40000);
run_until_crash(2);

my $log = dw_read_log($node);
my @live = @{ $log->{live} };
my @with_copies =
  grep { $_->{npages} > 0 && $_->{entries}[0]{length} > 0 } @live;
my $first_page_batch = $with_copies[0];
# not the first one of a file: it might be missing at the end of the file before as well
my ($middle) = grep { $_->{blockno} > 0 }
  @with_copies[ @with_copies / 2 .. $#with_copies - 1 ];

cmp_ok(scalar(@live), '>=', 8, 'live range has several batches');
cmp_ok($live[-1]{segno}, '>', $live[0]{segno}, '... in several files');

# Damage in the middle
refuses_bytes(
	'header of a batch lost',
	$middle->{segno},
	$middle->{blockno} * BLCKSZ,
	"\0" x 512,
	qr/double-write log is damaged: batch $middle->{batchno} is missing/,
	place($middle->{segno}, $middle->{blockno} * BLCKSZ));
refuses_bytes(
	'entry of a batch changed',
	$middle->{segno},
	$middle->{blockno} * BLCKSZ + 100,
	"damage",
	qr/double-write log is damaged: batch $middle->{batchno} is missing/,
	place($middle->{segno}, $middle->{blockno} * BLCKSZ));
foreach my $batch ($middle, $first_page_batch)
{
	my $page = $batch->{entries}[0];

	refuses_bytes(
		'page copy changed',
		$page->{segno},
		$page->{offset} + 4000,
		"damage",
		qr/double-write log is damaged: wrong checksum of a page in batch $batch->{batchno}/,
		place($page->{segno}, $page->{offset}));
}

# A whole file that is missing, unreadable, or short
my $first_file = dw_segment_path($node, $live[0]{segno});

rename($first_file, "$first_file.away") or die "could not rename: $!";
refuses('file missing',
	qr/double-write log is damaged: batch \d+ is missing/);
rename("$first_file.away", $first_file) or die "could not rename: $!";

chmod(0, $first_file) or die "could not chmod: $!";
my $offset = -s $node->logfile;
ok(!dw_poll_start($node), 'file unreadable: server does not start');
like(
	slurp_file($node->logfile, $offset),
	qr/could not open double-write log segment .*: Permission denied/,
	'file unreadable: says why');
chmod(0600, $first_file) or die "could not chmod: $!";

my $contents = slurp_file($first_file);
truncate($first_file,
	  $middle->{segno} == $live[0]{segno}
	? $middle->{blockno} * BLCKSZ
	: 10 * BLCKSZ)
  or die "could not truncate: $!";
refuses('file short', qr/double-write log is damaged/);
unlink($first_file);
append_to_file($first_file, $contents);

# Not our log
my ($opens_file) = grep { $_->{blockno} == 0 } @live;
refuses_bytes(
	'another cluster',
	$middle->{segno},
	$middle->{blockno} * BLCKSZ,
	dw_forged_header($node, $middle, sysid => $middle->{sysid} + 1),
	qr/the double-write log in "pg_doublewrite" belongs to another database cluster/,
	qr/HINT/);
refuses_bytes(
	'unknown version',
	$opens_file->{segno},
	0,
	dw_forged_header($node, $opens_file, version => 999),
	qr/has format version 999 and block size 8192, but this server knows only version 5/,
	qr/HINT/);
refuses_bytes(
	'other block size',
	$opens_file->{segno},
	0,
	dw_forged_header($node, $opens_file, blcksz => 16384),
	qr/has format version 5 and block size 16384/);
refuses_bytes(
	'stale low-water mark and redo pointer',
	$live[-1]{segno},
	$live[-1]{blockno} * BLCKSZ,
	dw_forged_header($node, $live[-1], redo => 4711, redo_pending => 0),
	qr/the double-write log does not match the state of the cluster/,
	qr/HINT/);

# No log, though the marker says that there must be one
rename($dir, "$dir.away") or die "could not rename: $!";
refuses('directory gone',
	qr/could not access double-write log directory "pg_doublewrite"/,
	qr/HINT/);
mkdir($dir, 0700) or die "could not mkdir: $!";
refuses('files gone',
	qr/the double-write log in "pg_doublewrite" is missing or unreadable/,
	qr/HINT/);
rmdir($dir) or die "could not rmdir: $!";
symlink("$dir.nowhere", $dir) or die "could not symlink: $!";
refuses(
	'target gone',
	qr/could not access double-write log directory/,
	qr/HINT: .*symbolic link/);
unlink($dir);
append_to_file($dir, 'x');
refuses('not a directory', qr/is not a directory/, qr/HINT/);
unlink($dir);
rename("$dir.away", $dir) or die "could not rename: $!";

# A stale log: the cluster has moved on since.  Start from a copy, too, what
# has been put away for it.
PostgreSQL::Test::RecursiveCopy::copypath($dir, "$dir.stale");

# Now that all is as it was, nothing is lost.  What does no harm: damage below
# the low-water mark, files that are none of ours, a temporary file; another
# mode, even without the marker.
my ($dead) =
  grep { $_->{batchno} < $live[-1]{low_water} && $_->{npages} > 0 }
  @{ $log->{batches} };
SKIP:
{
	skip 'no batch below the low-water mark', 1 unless defined $dead;
	write_block(
		$node,
		sprintf('pg_doublewrite/%016X', $dead->{segno}),
		$dead->{blockno} * BLCKSZ,
		"\0" x 512);
	pass('damaged a batch below the low-water mark');
}
append_to_file("$dir/README", 'not ours');
append_to_file("$dir/new.12345", 'left behind');
unlink($node->data_dir . '/backup_label') or die "could not unlink: $!";
$node->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$offset = -s $node->logfile;
dw_start_after_crash($node);
my $line = dw_restore_line($node, $offset);
cmp_ok($line->{restored}, '>', 10, 'pages were restored');
ok(!-e "$dir/new.12345", 'temporary file is gone');
dw_check_history($node);
dw_check_amcheck($node);

# The newest batch may be torn; then it is ignored, and says so.
$node->append_conf('postgresql.conf',
	'io_torn_pages_protection = double_writes');
$node->restart;
my $old = dw_snapshot($node);
$offset = -s $node->logfile;
dw_workload_start($node);
$node->psql(
	'postgres',
	"SELECT points_crash_at('doublewrite-log-written', 5)",
	on_error_die => 0);
dw_wait_for_crash($node, $offset);
dw_workload_finish($node);
my $lost = dw_tear_log_tail($node, 'pages');
dw_tear($node, $old);
$offset = -s $node->logfile;
dw_start_after_crash($node);
# of a batch of notes nothing but the header can be lost
like(
	slurp_file($node->logfile, $offset),
	qr/ignoring batch $lost->{batchno} of the double-write log/,
	'torn batch is ignored'
) if grep { $_->{length} > 0 } @{ $lost->{entries} };
dw_check_history($node);

# Put the old log beside the new state.
my $torn = run_until_crash(0);
rename($dir, "$dir.away") or die "could not rename: $!";
rename("$dir.stale", $dir) or die "could not rename: $!";
refuses(
	'stale log',
	qr/the double-write log does not match the state of the cluster/,
	qr/It was written for redo location/);
rename($dir, "$dir.stale") or die "could not rename: $!";
rename("$dir.away", $dir) or die "could not rename: $!";
dw_start_after_crash($node, $torn);
dw_check($node);

# The end of the log is lost, and with it the mark of a checkpoint that is complete.
# What it freed would be put over newer pages.
{
	my $lost_mark = dw_quiet_node('lost_mark');
	my $point = 'doublewrite-checkpoint-drained';
	my $write = sub {
		my ($table, $value) = @_;
		return
		  "UPDATE $table SET v = $value; SELECT dw_evict('$table'), dw_drain()";
	};

	$lost_mark->safe_psql('postgres',
		"CREATE TABLE $_ AS SELECT 1 AS id, 0 AS v")
	  foreach ('t', 'u');
	$lost_mark->safe_psql('postgres', 'CHECKPOINT');
	$lost_mark->safe_psql('postgres', $write->('t', 1));
	$lost_mark->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $checkpoint = $lost_mark->background_psql('postgres');
	$checkpoint->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
	$lost_mark->wait_for_event('checkpointer', $point);
	$lost_mark->safe_psql('postgres', $write->('u', 1));
	dw_wake($lost_mark, $point);
	$checkpoint->query('SELECT 1');
	$checkpoint->quit;
	$lost_mark->stop('immediate');

	my ($before, $mark) = @{ dw_read_log($lost_mark)->{batches} }[ -2, -1 ];
	is($mark->{npages}, 0, 'lost mark: it is the newest batch');
	is($before->{redo_pending},
		$mark->{redo_pending},
		'... and names no redo pointer that others lack');
	write_block(
		$lost_mark,
		sprintf('pg_doublewrite/%016X', $mark->{segno}),
		$mark->{blockno} * BLCKSZ,
		"\0" x BLCKSZ);
	ok(!dw_poll_start($lost_mark), 'lost mark: server does not start');
	like(
		slurp_file($lost_mark->logfile),
		qr/FATAL:  the double-write log does not match the state of the cluster/,
		'... and says why');
}

done_testing();
