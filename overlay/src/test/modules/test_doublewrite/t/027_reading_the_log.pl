
# Copyright (c) 2025, PostgreSQL Global Development Group

# Reading the log at a start: only what is live is read; sectors that cannot be
# read do not stop the start where nothing is lost; a log of another time, a
# label that is none, and a tablespace that is not mounted do.  It can be
# interrupted, says how far it is, and leaves no file open.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

dw_require_injection_points();

my $SEGMENT = 4 * 1024 * 1024;
my $node = dw_quiet_node('main',
	conf =>
	  "double_write_buffer_size = 128MB\nlog_startup_progress_interval = 1ms\n"
);
my $data = $node->data_dir;
my $dir = "$data/pg_doublewrite";
my $marker = "$data/backup_label";
my $space = PostgreSQL::Test::Utils::tempdir();
my $v = 0;

sub settings
{
	my (%points) = @_;

	foreach my $action ('fail_at', 'pause_at')
	{
		$node->adjust_conf('postgresql.conf', "test_points.$action",
			"'" . ($points{$action} // '') . "'");
	}
	return;
}

# Change tables, write them back, crash, and tear what has a copy.
sub crash
{
	my (@tables) = @_;

	$v++;
	$node->safe_psql(
		'postgres',
		join(';',
			'CHECKPOINT',
			'SELECT dw_sync_cycle()',
			map { "UPDATE $_ SET v = $v" } @tables));
	$node->safe_psql(
		'postgres',
		join(';',
			(map { "SELECT dw_evict('$_')" } @tables),
			'SELECT dw_drain()'));
	$node->stop('immediate');
	my $torn = dw_tear_copied($node);
	cmp_ok($torn, '>', 10, 'pages are torn');
	return $torn;
}

sub restores
{
	my ($what, $torn, @tables) = @_;
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), "$what: server starts") or BAIL_OUT('no start');
	my $line = dw_restore_line($node, $offset);
	cmp_ok($line ? $line->{restored} : 0,
		'>=', $torn, "$what: torn pages are restored");
	foreach my $table (@tables)
	{
		is( $node->safe_psql(
				'postgres',
				"SELECT count(*) - count(*) FILTER (WHERE v = $v) FROM $table"
			),
			0,
			"$what: nothing is lost, $table");
	}
	return slurp_file($node->logfile, $offset);
}

sub refuses
{
	my ($what, @messages) = @_;
	my $offset = -s $node->logfile;
	my $log = dw_log_digest($dir);

	ok(!dw_poll_start($node), "$what: server does not start");
	my $text = slurp_file($node->logfile, $offset);
	like($text, $_, "$what: says why") foreach @messages;
	is(dw_log_digest($dir), $log, "$what: log not touched");
	return;
}

# Wait until a line stands in the server log, and return what it captures.
sub wait_for_line
{
	my ($offset, $re) = @_;

	for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $text = slurp_file($node->logfile, $offset);
		my @found = $text =~ $re;

		return $found[0] if @found;
		last if $text =~ /database system is shut down/;
		usleep(10_000);
	}
	BAIL_OUT("no line $re in the server log");
}

$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$space'");
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v, repeat('x', 1000) AS filler
		FROM generate_series(1, 7000) i;
	CREATE TABLE small AS SELECT * FROM t LIMIT 300;
	CREATE TABLE far TABLESPACE elsewhere AS SELECT * FROM t LIMIT 300;
	CHECKPOINT});
$node->append_conf('postgresql.conf',
	"test_points.fail_at = ''\ntest_points.pause_at = ''\n");

# ---------------------------------------------------------------------
# How much is read
# ---------------------------------------------------------------------

my $ahead = 'SELECT last_segno - segno >= 8 FROM dw_state()';

$node->poll_query_until('postgres', $ahead) or die 'no segments are prepared';
$node->stop('immediate');
my $n = dw_segments($dir);
$node->start;
my $read =
  $node->safe_psql('postgres', 'SELECT bytes_read FROM dw_restore_stats()');
cmp_ok(
	$read, '>=',
	$n * BLCKSZ,
	'nothing live: the start of each segment is read');
cmp_ok(
	$read, '<=',
	$n * BLCKSZ + 2 * $SEGMENT,
	'... and two whole segments at most');
cmp_ok($n, '>=', 9, '... of many');

$node->poll_query_until('postgres', $ahead) or die 'no segments are prepared';
my $torn = crash('t');
my @live = @{ dw_read_log($node)->{live} };
my $live = $live[-1]{segno} - $live[0]{segno} + 1;
cmp_ok($live, '>=', 2, 'live range has several segments');
$n = dw_segments($dir);
restores('live range', $torn, 't');
$read =
  $node->safe_psql('postgres', 'SELECT bytes_read FROM dw_restore_stats()');
cmp_ok(
	$read, '<=',
	$n * BLCKSZ + ($live + 1) * $SEGMENT,
	'live range: it is read, and one segment more at most');

# ---------------------------------------------------------------------
# Sectors that cannot be read
# ---------------------------------------------------------------------

# The first reads are those of the starts of segments; then come the newest one,
# the one behind it, and those that the mark asks for.
$node->poll_query_until('postgres', $ahead) or die 'no segments are prepared';
$torn = crash('t');
$n = dw_segments($dir);
settings(fail_at => 'doublewrite-log-read:EIO:' . ($n + 3) . ':513');
refuses(
	'live segment cannot be read',
	qr/could not read double-write log segment .* at offset 0: Input\/output error/,
	qr/double-write log is damaged: batch \d+ is missing/);
settings(fail_at => 'doublewrite-log-read:EIO:' . ($n + 2) . ':513');
my $text = restores('segment behind the newest cannot be read', $torn, 't');
like($text, qr/Blocks that cannot be read: 512\./, '... which is said');

# an error of a read of many blocks says nothing of the first of them
$node->poll_query_until('postgres', $ahead) or die 'no segments are prepared';
$torn = crash('t');
$n = dw_segments($dir);
settings(fail_at => 'doublewrite-log-read:EIO:' . ($n + 3) . ':1');
$text = restores('live segment is read block by block', $torn, 't');
unlike($text, qr/cannot be read/, '... and nothing is missing');

# the last one is none of those that are live
$torn = crash('small');
$n = dw_segments($dir);
settings(fail_at => "doublewrite-log-read:EIO:$n:1");
$text = restores('start of a free segment cannot be read', $torn, 'small');
like($text, qr/Blocks that cannot be read: 1\./, '... which is said');

# The segment behind the newest, and then the place where the next batch would stand.  It may
# have been complete, and nothing but data checksums would find the pages that it protects.
$torn = crash('small');
settings(fail_at => 'doublewrite-log-read:EIO:'
	  . (dw_segments($dir) + 2)
	  . ':514');
$text =
  restores('end of the log cannot be read, with checksums', $torn, 'small');
like($text, qr/Blocks that cannot be read: 1\./, '... which is said');
settings();
$node->stop;
command_ok([ 'pg_checksums', '--disable', '--pgdata' => $data ],
	'checksums are taken away');
$node->start;
$torn = crash('small');
settings(fail_at => 'doublewrite-log-read:EIO:'
	  . (dw_segments($dir) + 2)
	  . ':515');
refuses(
	'end of the log cannot be read',
	qr/double-write log is damaged: batch \d+ cannot be read, and may have been complete/
);

# ... or a batch that looks as if the crash had cut it short
my $newest = dw_read_log($node)->{batches}[-1];
my ($copy) = grep { $_->{length} > 0 } @{ $newest->{entries} };
my $path = sprintf('pg_doublewrite/%016X', $newest->{segno});
my $bytes = substr($copy->{stored}, 0, 64);
write_block($node, $path, $copy->{offset}, "\0" x length($bytes));
refuses(
	'newest batch cannot be read',
	qr/double-write log is damaged: batch $newest->{batchno} cannot be read, and may have been complete/
);
write_block($node, $path, $copy->{offset}, $bytes);
settings();

# a segment that dd has copied takes the place of one with places that cannot be read
system_or_bail(
	'dd', "if=$data/$path",
	"of=$data/new", 'bs=8192',
	'conv=noerror,sync', 'status=none');
rename("$data/new", "$data/$path") or die "could not rename: $!";
restores('copy of the end of the log', $torn, 'small');
$node->stop;
command_ok([ 'pg_checksums', '--enable', '--pgdata' => $data ],
	'checksums are back');
$node->start;

$torn = crash('small');
settings(fail_at => 'doublewrite-restore-read-home:EIO:1:1000000');
$text = restores('homes cannot be read', $torn, 'small');
like(
	$text,
	qr/could not read block \d+ of relation .*: Input\/output error/,
	'... which is said');
settings();

# ---------------------------------------------------------------------
# An empty log of another time
# ---------------------------------------------------------------------

$node->safe_psql('postgres', 'CHECKPOINT; SELECT dw_sync_cycle()');
$node->stop('immediate');
is(scalar(grep { $_->{npages} > 0 } @{ dw_read_log($node)->{live} }),
	0, 'an empty log');
PostgreSQL::Test::RecursiveCopy::copypath($dir, "$dir.stale");
$node->start;
$torn = crash('small');
my $owner = slurp_file("$dir/owner");
rename($dir, "$dir.away") or die "could not rename: $!";
rename("$dir.stale", $dir) or die "could not rename: $!";
unlink("$dir/owner");
refuses(
	'empty log of another time',
	qr/the double-write log does not match the state of the cluster/,
	qr/HINT: .*Bring together/);
rename($dir, "$dir.stale") or die "could not rename: $!";
rename("$dir.away", $dir) or die "could not rename: $!";

# ---------------------------------------------------------------------
# A directory that cannot be looked at for a moment
# ---------------------------------------------------------------------

# when the log is armed, it can
settings(fail_at => 'doublewrite-check-mode:EIO');
refuses('directory not reachable',
	qr/could not access double-write log directory "pg_doublewrite": Input/);
settings();

# ---------------------------------------------------------------------
# A label that is none
# ---------------------------------------------------------------------

rename($marker, "$marker.away") or die "could not rename: $!";
foreach
  my $contents ('', "garbage\n", "START WAL LOCATION: 0/2000028 (file \n")
{
	append_to_file($marker, $contents);
	command_checks_all(
		[ 'pg_doublewrite', 'check', $data ], 2,
		[qr/neither the label of a backup/], [qr/^$/],
		'no label: the tool says so');
	refuses(
		'no label',
		qr/invalid data in file "backup_label"/,
		qr/The log is left alone/);
	unlink($marker) or die "could not unlink: $!";
}
rename("$marker.away", $marker) or die "could not rename: $!";

# ---------------------------------------------------------------------
# Interrupts, progress, open files
# ---------------------------------------------------------------------


# Start without waiting, and return where the server log began.
sub start_no_wait
{
	my $offset = -s $node->logfile;

	PostgreSQL::Test::Utils::system_or_bail(
		'pg_ctl', 'start', '--no-wait',
		'--pgdata' => $data,
		'--log' => $node->logfile,
		'--options' => '--cluster-name=main');
	return $offset;
}

sub wait_for_pause
{
	my ($offset, $point) = @_;

	return wait_for_line($offset,
		qr/\[(\d+)\] .*paused at injection point "$point"/);
}

sub resume
{
	append_to_file("$data/test_points.resume", '');
	return;
}

settings(pause_at => 'doublewrite-read-segment:1:2');
my $offset = start_no_wait();
my $pid = wait_for_pause($offset, 'doublewrite-read-segment');
PostgreSQL::Test::Utils::system_or_bail(
	'pg_ctl', 'stop', '--no-wait',
	'--mode' => 'fast',
	'--pgdata' => $data);
wait_for_line($offset, qr/(received fast shutdown request)/);
kill('TERM', $pid);
resume();
wait_for_line($offset,
	qr/(paused at .*paused at|database system is shut down)/s);
my @pauses = slurp_file($node->logfile, $offset) =~ /(paused at)/g;
is(scalar(@pauses), 1, 'a start can be stopped while the log is being read');
resume() if @pauses > 1;
dw_wait_for_exit($node);
unlink("$data/test_points.resume");
ok(-e $marker, '... and the log is still in use');

# Progress is reported at the next opportunity.  When the log is armed again,
# nothing of it is open but the segment being written.
settings(pause_at =>
	  'doublewrite-read-segment,doublewrite-restore-run,doublewrite-marker-written'
);
$offset = start_no_wait();
foreach my $point ('doublewrite-read-segment', 'doublewrite-restore-run')
{
	wait_for_pause($offset, $point);
	resume();
}
$pid = wait_for_pause($offset, 'doublewrite-marker-written');
$text = slurp_file($node->logfile, $offset);
like(
	$text,
	qr/reading the double-write log, elapsed time: .*, current segment: [0-9A-F]{16}/,
	'progress of reading is reported');
like(
	$text,
	qr/restoring pages from the double-write log, elapsed time: .*, pages done: \d+/,
	'progress of restoring is reported');
SKIP:
{
	skip 'no /proc', 1 unless -d "/proc/$pid/fd";
	my @open = grep { /pg_doublewrite/ }
	  map { readlink($_) // () } glob("/proc/$pid/fd/*");

	cmp_ok(scalar(@open), '<=', 1, "open files of the log: @open");
}
resume();
wait_for_line($offset, qr/(database system is ready to accept connections)/);
settings();
$node->_update_pid(1);
is($node->safe_psql('postgres', "SELECT count(*) FROM small WHERE v = $v"),
	300, 'nothing is lost');

# ---------------------------------------------------------------------
# A tablespace that is not mounted
# ---------------------------------------------------------------------

$torn = crash('far', 'small');
rename($space, "$space.away") or die "could not rename: $!";
refuses('tablespace gone',
	qr/could not access tablespace directory "pg_tblspc\/\d+"/);
mkdir($space, 0700) or die "could not mkdir: $!";
command_checks_all(
	[ 'pg_doublewrite', $_, $data ], 2,
	[qr/has no subdirectory "PG_/], [qr/^$/],
	"tablespace not mounted: $_ says so"
) foreach qw(state list check dry-run);
refuses(
	'tablespace not mounted',
	qr/tablespace directory "pg_tblspc\/\d+" has no subdirectory "PG_18/,
	qr/HINT: .*Make sure that it is mounted/);
rmdir($space) or die "could not rmdir: $!";
rename("$space.away", $space) or die "could not rename: $!";
restores('tablespace mounted', $torn, 'far', 'small');

# Where it has been dropped, there is no link.
$node->safe_psql('postgres', 'DROP TABLE far');
$node->safe_psql('postgres', 'DROP TABLESPACE elsewhere');
$torn = crash('small');
restores('tablespace dropped', $torn, 'small');

# ---------------------------------------------------------------------
# A marker that the start has not seen
# ---------------------------------------------------------------------

$text = slurp_file($marker);
$node->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
	'full_pages');
$node->restart;
append_to_file($marker, $text);
my $digest = dw_log_digest($dir);
$offset = -s $node->logfile;
$node->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
	'double_writes');
$node->reload;
$node->wait_for_log(
	qr/could not empty the double-write log because file "backup_label" says/,
	$offset);
is(dw_log_digest($dir), $digest,
	'a log with a marker that the start has not seen is left alone');
unlink($marker) or die "could not unlink: $!";
$node->restart;

# ---------------------------------------------------------------------
# The sync that fsync_writethrough asks for
# ---------------------------------------------------------------------

# So few pages do not wake up the background writer, which does not have that
# setting; but it may come by.
my $stderr = '';

$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-log-writethrough', 'EIO')});
for (my $i = 0; $i < 50 && $stderr eq ''; $i++)
{
	$node->psql(
		'postgres', q{
		CHECKPOINT; SELECT dw_sync_cycle(); UPDATE small SET v = v + 1 WHERE id = 1;
		SELECT dw_evict('small'); SELECT dw_drain_writethrough()},
		stderr => \$stderr);
}
like(
	$stderr,
	qr/test error at injection point "doublewrite-log-writethrough"/,
	'the log is synced as data files are');
$node->safe_psql('postgres', 'SELECT dw_drain_writethrough()');
$node->stop;

done_testing();
