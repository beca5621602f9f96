
# Copyright (c) 2025, PostgreSQL Global Development Group

# A log is used by the data directory that has written it, and by no other: not
# by a copy that a backup tool has made of a running server, nor by a cluster
# whose link leads to the log of another one.  Others cannot put anything there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use File::Copy;
use File::Spec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use POSIX qw(mkfifo);
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node(
	'main',
	init => { allows_streaming => 1, has_archiving => 1 },
	conf => "double_write_buffer_size = 64MB\n");
my $data = $node->data_dir;
my $dir = "$data/pg_doublewrite";
my $owner = "$dir/owner";
my $marker = "$data/backup_label";

# The server and the tool refuse, say why, and touch no file of the log.
sub refuses
{
	my ($what, $on, $tool, @messages) = @_;
	my $log = log_digest($on);
	my $pages = dw_digest($on);
	my $offset = -s $on->logfile // 0;

	command_checks_all([ 'pg_doublewrite', 'check', $on->data_dir ],
		2, [$tool], [qr/^$/], "$what: the tool says so")
	  if defined $tool;
	ok(!dw_poll_start($on), "$what: server does not start");
	my $text = slurp_file($on->logfile, $offset);
	like($text, $_, "$what: says why") foreach @messages;
	is(log_digest($on), $log, "$what: log not touched");
	is(dw_digest($on), $pages, "$what: no page touched");
	return;
}

sub log_digest
{
	my ($on) = @_;
	my $path = $on->data_dir . '/pg_doublewrite';

	return join(
		' ',
		map {
			"$_:"
			  . (-f "$path/$_" ? unpack('%32C*', slurp_file("$path/$_")) : '')
		  }
		  sort grep { !/^\.\.?$/ } slurp_dir($path));
}

# ---------------------------------------------------------------------
# What a start does, row by row of the table in doublewrite_scan.c
# ---------------------------------------------------------------------

# Facts, and verdicts with the marker, with the setting, and with neither; facts
# that come later in the table are there as well.
my $later = 'read header damaged stale packed copy wal_lost pages';
my @rows = (
	[ "invalid open $later", 'REFUSE_LABEL', 'REFUSE_LABEL', 'REFUSE_LABEL' ],
	[
		"unreadable open $later", 'REFUSE_LABEL',
		'REFUSE_LABEL', 'REFUSE_LABEL'
	],
	[
		"from_backup missing $later", 'REFUSE_MARKER',
		'LEAVE_LOG', 'LEAVE_LOG'
	],
	[ "missing $later", 'REFUSE_DIR', 'LEAVE_LOG', 'LEAVE_LOG' ],
	[ "open $later", 'REFUSE_DIR', 'REFUSE_DIR', 'LEAVE_LOG' ],
	[ "foreign $later", 'REFUSE_DIR', 'REFUSE_DIR', 'LEAVE_LOG' ],
	[
		"from_backup $later", 'REFUSE_MARKER',
		'REFUSE_HEADER', 'REFUSE_HEADER'
	],
	[ 'header damaged stale', 'READ_LOG', 'READ_LOG', 'READ_LOG' ],
	[ $later, 'REFUSE_HEADER', 'REFUSE_HEADER', 'REFUSE_HEADER' ],
	[
		'read damaged stale copy pages', 'REFUSE_DAMAGED',
		'REFUSE_DAMAGED', 'REFUSE_DAMAGED'
	],
	[
		'read hole stale copy pages', 'REFUSE_DAMAGED',
		'REFUSE_DAMAGED', 'REFUSE_DAMAGED'
	],
	[ 'read empty copy', 'REFUSE_MISSING', 'REFUSE_COPY', 'REFUSE_COPY' ],
	[ 'read empty', 'REFUSE_MISSING', 'NOTHING', 'NOTHING' ],
	[
		'read stale packed copy wal_lost pages', 'REFUSE_STALE',
		'REFUSE_COPY', 'REFUSE_COPY'
	],
	[
		'read tail packed copy wal_lost pages',
		'REFUSE_DAMAGED',
		('REFUSE_COMPRESSION') x 2
	],
	[ 'read tail checksums packed pages', ('REFUSE_COMPRESSION') x 3 ],
	[ 'read packed copy wal_lost pages', ('REFUSE_COMPRESSION') x 3 ],
	[
		'read copy wal_lost pages', 'REFUSE_COPY',
		'REFUSE_COPY', 'REFUSE_COPY'
	],
	[ 'read copy', 'REFUSE_COPY', 'REFUSE_COPY', 'REFUSE_COPY' ],
	[
		'read stale packed wal_lost pages', 'REFUSE_STALE',
		'DISCARD_STALE', 'DISCARD_STALE'
	],
	[ 'read stale wal_lost', 'REFUSE_STALE', 'NOTHING', 'NOTHING' ],
	[ 'read wal_lost pages', 'REFUSE_WAL', 'REFUSE_WAL', 'REFUSE_WAL' ],
	[ 'read wal_lost packed', 'REFUSE_WAL', 'NOTHING', 'NOTHING' ],
	[ 'read pages', 'RESTORE', 'RESTORE', 'RESTORE' ],
	[ 'read packed', 'NOTHING', 'NOTHING', 'NOTHING' ]);

foreach my $row (@rows)
{
	my ($facts, @verdicts) = @$row;
	my $label = $facts =~ s/(invalid|unreadable) // ? " $1" : '';
	my @found = map {
		$node->safe_psql('postgres',
			"SELECT dw_judge_start('$_$label $facts')")
	} ('marker', 'wanted', '');

	is_deeply(\@found, \@verdicts, "a start that finds$label $facts");
}
is( $node->safe_psql(
		'postgres', "SELECT dw_judge_start('backup from_backup $later')"),
	'DISCARD_BACKUP',
	'... and a log that came with a backup');

# Change a table, write it back, crash, and tear what has a copy.
my $v = 0;

sub crash
{
	$v++;
	$node->safe_psql(
		'postgres', qq{
		CHECKPOINT;
		SELECT dw_sync_cycle();
		UPDATE t SET v = $v;
		SELECT dw_evict('t'); SELECT dw_drain()});
	$node->stop('immediate');
	my $torn = dw_tear_copied($node);
	cmp_ok($torn, '>', 10, 'pages are torn');
	return $torn;
}

sub restores
{
	my ($what, $on, $torn) = @_;
	my $offset = -s $on->logfile // 0;

	ok(dw_poll_start($on), "$what: server starts") or BAIL_OUT('no start');
	my $line = dw_restore_line($on, $offset);
	is($line ? $line->{restored} : 0, $torn,
		"$what: torn pages are restored");
	is($on->safe_psql('postgres', "SELECT count(*) FROM t WHERE v = $v"),
		300, "$what: nothing is lost");
	return;
}

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v, repeat('x', 1000) AS filler
		FROM generate_series(1, 300) i});
like(
	slurp_file($owner),
	qr/^Data directory: \Q$data\E$/m,
	'the log has an owner');

# ---------------------------------------------------------------------
# Which users may write to the directory
# ---------------------------------------------------------------------

# The data directory keeps others out; it does not where a link leads.
$node->stop;
ok(!-e $owner, 'no owner after a clean stop');
my $place = PostgreSQL::Test::Utils::tempdir();
PostgreSQL::Test::Utils::system_or_bail('mv', $dir, "$place/dw");
symlink("$place/dw", $dir) or die "could not symlink: $!";
$node->start;

my $torn = crash();
my $was = (stat $dir)[2] & 07777;
foreach my $mode (0770, 0707, 0777)
{
	chmod($mode, $dir) or die "could not chmod: $!";
	refuses(
		sprintf('mode %o', $mode),
		$node,
		undef,
		qr/double-write log directory "pg_doublewrite" has invalid permissions/,
		qr/Permissions should be/);
}
chmod(0750, $dir) or die "could not chmod: $!";

# A directory that we may use, but that belongs to another user, which could let
# others in.  Nothing is touched in it.
SKIP:
{
	my $theirs = File::Spec->tmpdir();

	skip "$theirs belongs to us", 2 if (stat $theirs)[4] == $>;
	skip "$theirs cannot be used", 2
	  unless -r $theirs && -w $theirs && -x $theirs;
	unlink($dir) or die "could not unlink: $!";
	symlink($theirs, $dir) or die "could not symlink: $!";
	my $offset = -s $node->logfile;
	ok(!dw_poll_start($node), 'wrong owner: server does not start');
	like(
		slurp_file($node->logfile, $offset),
		qr/double-write log directory "pg_doublewrite" has wrong ownership/,
		'wrong owner: says why');
	unlink($dir) or die "could not unlink: $!";
	symlink("$place/dw", $dir) or die "could not symlink: $!";
}

# What is no file does not keep the start waiting.
my ($last) = (dw_segments($dir))[-1];
my $fifo = sprintf('%s/%016X', $dir, hex($last) + 5);
mkfifo($fifo, 0600) or die "could not mkfifo: $!";
# ... nor would it this test, should the server open it
open(my $writer, '+<', $fifo) or die "could not open FIFO: $!";
my $offset = -s $node->logfile;
ok(!dw_poll_start($node), 'FIFO: server does not start');
like(
	slurp_file($node->logfile, $offset),
	qr/is not a regular file/,
	'FIFO: says why');
command_fails_like(
	[ 'pg_doublewrite', 'check', $data ],
	qr/is not a regular file/,
	'FIFO: the tool says so');
close($writer);
unlink($fifo);

# Group access is allowed, as to the data directory.
restores('mode 750', $node, $torn);
chmod($was, $dir) or die "could not chmod: $!";

# ---------------------------------------------------------------------
# A copy of the cluster that has the same log, by a link
# ---------------------------------------------------------------------

# A copy as a tool makes it, with its label and the link: it must not remove
# the log of the running server.
sub copy_cluster
{
	my ($name) = @_;
	my $to = PostgreSQL::Test::Cluster->new($name);
	my $backup = $node->backup_dir . "/$name";

	mkdir($node->backup_dir);
	PostgreSQL::Test::RecursiveCopy::copypath(
		$data, $backup,
		filterfn => sub {
			my $src = shift;

			return $src !~ /^postmaster\./
			  && ($src ne 'pg_doublewrite' || !-l $dir);
		});
	symlink("$place/dw", "$backup/pg_doublewrite")
	  or die "could not symlink: $!"
	  if -l $dir;
	rmdir($to->data_dir);
	rename($backup, $to->data_dir) or die "could not rename: $!";
	chmod(0700, $to->data_dir) or die "could not chmod: $!";
	mkdir($to->basedir . '/pgdata');
	$to->append_conf('postgresql.conf',
			"port = "
		  . $to->port
		  . "\nunix_socket_directories = '"
		  . $to->host
		  . "'\narchive_mode = off\n");
	return $to;
}

my $session = $node->background_psql('postgres');
$session->query_safe('SET client_min_messages = warning');
$session->query_safe(q{SELECT pg_backup_start('copy', true)});
my $copy = copy_cluster('labelled');
my $label = $session->query_safe('SELECT labelfile FROM pg_backup_stop()');
$session->quit;
unlink($copy->data_dir . '/backup_label');
append_to_file($copy->data_dir . '/backup_label', "$label\n");
refuses(
	'linked log, label',
	$copy,
	qr/in use by data directory "\Q$data\E"/,
	qr/belongs to another data directory/,
	qr/in use by data directory "\Q$data\E"/);
$torn = crash();
$copy = copy_cluster('linked');
refuses(
	'linked log, marker',
	$copy,
	qr/in use by data directory/,
	qr/belongs to another data directory/);
restores('after copies have tried', $node, $torn);
$node->stop;
unlink($dir);
PostgreSQL::Test::Utils::system_or_bail('mv', "$place/dw", $dir);
$node->start;

# ---------------------------------------------------------------------
# A copy with log and marker, but without the label of the backup
# ---------------------------------------------------------------------

$torn = crash();
$copy = copy_cluster('copy');
refuses(
	'copy',
	$copy,
	qr/is a copy of one whose double-write log was in use/,
	qr/this data directory is a copy of one whose double-write log was in use/,
	qr/HINT: .*restore it again with its own file "backup_label"/);

# A tool that leaves out the marker, but not the log, makes no better copy.
my $copied = $copy->data_dir . '/backup_label';
rename($copied, "$copied.away") or die "could not rename: $!";
refuses(
	'copy without marker',
	$copy,
	qr/is a copy of one/,
	qr/this data directory is a copy of one/);
rename("$copied.away", $copied) or die "could not rename: $!";

# The same with the files of the copy in the place of the original: the marker
# is not the one that was written here.
copy($marker, "$marker.copied") or die "could not copy: $!";
rename($marker, "$marker.away") or die "could not rename: $!";
rename("$marker.copied", $marker) or die "could not rename: $!";
refuses(
	'copied marker',
	$node,
	qr/is a copy of one/,
	qr/this data directory is a copy of one/);

# With what only a backup needs, the words are others.
foreach my $file ('recovery.signal', 'tablespace_map')
{
	append_to_file("$data/$file", '');
	refuses(
		"marker and $file",
		$node,
		qr/is not the label of a backup/,
		qr/file "backup_label" is not the label of a backup/,
		qr/HINT: .*Restore the backup again, with its own file/);
	unlink("$data/$file");
}

# An operator that knows that it is the copy of a crashed server can say so.
unlink($copy->data_dir . '/pg_doublewrite/owner')
  or die "could not unlink: $!";
restores('copy of a crashed server', $copy, $torn);
$copy->stop;

# A marker that has only been renamed or touched is the same; so is the data
# directory at another place.
unlink($marker);
rename("$marker.away", $marker) or die "could not rename: $!";
chmod(0600, "$data/PG_VERSION", $marker);
restores('the original', $node, $torn);

# A crashed server may be made a standby.
$torn = crash();
append_to_file("$data/standby.signal", '');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'standby.signal: server starts');
is(dw_restore_line($node, $offset)->{restored},
	$torn, 'standby.signal: torn pages are restored');
$node->stop;
unlink("$data/standby.signal");

# ---------------------------------------------------------------------
# Crashes between the steps of arming
# ---------------------------------------------------------------------

foreach my $point ('doublewrite-marker-written', 'doublewrite-armed')
{
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = '$point'\n");
	for (1 .. 2)
	{
		$offset = -s $node->logfile;
		$node->start(fail_ok => 1);
		dw_wait_for_crash($node, $offset);
	}
	$node->adjust_conf('postgresql.conf', 'test_points.crash_at', "''");
	ok(dw_poll_start($node), "$point: server starts");
	like(
		slurp_file($owner),
		qr/^Marker: inode [1-9]/m,
		"$point: marker is named");
	$node->stop;
}
ok(!-e $owner, 'no owner after a clean stop');

done_testing();
