
# Copyright (c) 2025, PostgreSQL Global Development Group

# Settings: where new and old clusters start, and that bad configuration gets
# a clear error with a hint and loses nothing.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

my $DIR = 'pg_doublewrite';
my $MARKER = 'backup_label';

# Start must fail, and the server log must then contain all of the patterns.
sub start_fails
{
	my ($node, $what, @patterns) = @_;
	my $offset = -s $node->logfile || 0;

	ok(!$node->start(fail_ok => 1), "$what: server does not start");
	my $log = slurp_file($node->logfile, $offset);
	like($log, $_, "$what: log says $_") for @patterns;
	return;
}

# Remove the log directory with all that is in it.
sub remove_log
{
	my ($node) = @_;
	my $dir = $node->data_dir . "/$DIR";

	unlink glob("$dir/*");
	rmdir($dir) or die "could not remove $dir: $!";
	return;
}

# Take a setting out of the file.
sub remove_conf
{
	my ($node, $regexp) = @_;
	my $file = $node->data_dir . '/postgresql.conf';
	my $conf = slurp_file($file);

	$conf =~ s/$regexp.*\n//g;
	unlink($file) or die $!;
	append_to_file($file, $conf);
	return;
}

sub show
{
	my ($node, $name) = @_;

	return $node->safe_psql('postgres', "SHOW $name");
}

sub contents_ok
{
	my ($node, $test_name) = @_;

	is($node->safe_psql('postgres', 'SELECT count(*), sum(a) FROM t'),
		'1000|500500', $test_name);
	return;
}

# Wait until the file that tells that the log is in use is there, or gone.
sub wait_for_marker
{
	my ($node, $expected) = @_;
	my $isnull = $expected ? 'IS NOT NULL' : 'IS NULL';

	$node->poll_query_until('postgres',
		"SELECT size $isnull FROM pg_stat_file('$MARKER', true)")
	  or die "timed out waiting for $MARKER";
	return;
}

# Number of WAL records with full-page images that an update of the whole
# table right after a checkpoint writes.
sub images_after_checkpoint
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	my $from = $node->lsn('insert');
	$node->safe_psql('postgres', 'UPDATE t SET b = b + 1');
	my $to = $node->lsn('flush');
	my ($stdout, $stderr) = run_command(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--start' => $from,
			'--end' => $to,
			'--fullpage'
		]);
	return scalar(split(/\n/, $stdout));
}

# ---------------------------------------------------------------------
# initdb
# ---------------------------------------------------------------------

my $tempdir = PostgreSQL::Test::Utils::tempdir;

command_like([ 'initdb', '--help' ],
	qr/--double-write-dir/, 'initdb --help names the option');

command_fails_like(
	[ 'initdb', '--double-write-dir' => 'relative', "$tempdir/bad1" ],
	qr/must be an absolute path/,
	'initdb refuses a relative log directory');
ok(!-d "$tempdir/bad1", 'and removes what it had created');

mkdir "$tempdir/full" or die $!;
append_to_file("$tempdir/full/file", "x");
command_checks_all(
	[ 'initdb', '--double-write-dir' => "$tempdir/full", "$tempdir/bad2" ],
	1,
	[qr//],
	[
		qr/directory ".*full" exists but is not empty/,
		qr/hint: .*either remove or empty the directory/
	],
	'initdb refuses a log directory that is not empty');
ok(-f "$tempdir/full/file", 'and leaves it alone');

command_fails_like(
	[
		'initdb',
		'--waldir' => "$tempdir/both",
		'--double-write-dir' => "$tempdir/both",
		"$tempdir/bad3"
	],
	qr/directory ".*both" exists but is not empty/,
	'initdb refuses to put the log where WAL is');

my $logdir = "$tempdir/dwlog";
my $node = PostgreSQL::Test::Cluster->new('settings');
$node->init(extra => [ '--double-write-dir' => $logdir ]);

is(readlink($node->data_dir . "/$DIR"),
	$logdir, 'initdb has made a symbolic link');
is((stat($logdir))[2] & 07777, 0700, 'target is private');
like(
	slurp_file($node->data_dir . '/postgresql.conf'),
	qr/^io_torn_pages_protection = '?double_writes/m,
	'initdb chooses double_writes');
like(
	slurp_file($node->data_dir . '/postgresql.conf'),
	$^O eq 'linux'
	? qr/^instant_recovery = on/m
	: qr/^#instant_recovery = off/m,
	'... and, on Linux, instant recovery');
ok(!-e $node->data_dir . "/$MARKER", 'initdb leaves no marker');

# ---------------------------------------------------------------------
# The log directory
# ---------------------------------------------------------------------

# Few buffers, so that an update of the table writes most of its pages.
$node->append_conf(
	'postgresql.conf', qq(
checkpoint_timeout = 1s
shared_buffers = 1MB
));
$node->start;
is(show($node, 'io_torn_pages_protection'),
	'double_writes', 'new cluster runs in double_writes');
is(show($node, 'double_write_buffer_size'),
	'512', 'size of the log, which is automatic');
is(show($node, 'double_write_stage_size'), '8MB', 'size of the stage');
is(show($node, 'checkpoint_timeout'), '1s', 'checkpoint_timeout = 1s');
$node->adjust_conf('postgresql.conf', 'checkpoint_timeout', '1h', 1);
$node->reload;

ok(-f $node->data_dir . "/$MARKER", 'marker is there while running');
ok(scalar(grep { /^[0-9A-F]{16}$/ } slurp_dir($logdir)) >= 2,
	'log is where the link points to');

$node->safe_psql(
	'postgres', q(
CREATE TABLE t (a int, b int, pad text STORAGE PLAIN DEFAULT repeat('x', 2000));
INSERT INTO t SELECT a, 0 FROM generate_series(1, 1000) a;
CHECKPOINT;
UPDATE t SET b = 1;
));
$node->stop('immediate');

# All of this happens to a crashed cluster.  None of it may lose the log.
my $in_use = qr/DETAIL:  The log was in use when the server stopped/;

rename($logdir, "$logdir.away") or die $!;
start_fails(
	$node,
	'dangling link',
	qr/FATAL:  could not access double-write log directory "$DIR": No such file/,
	qr/HINT:  If it is a symbolic link, make sure that its target exists/);

unlink($node->data_dir . "/$DIR") or die $!;
start_fails(
	$node,
	'missing directory',
	qr/FATAL:  could not access double-write log directory "$DIR"/,
	$in_use,
	qr/HINT:  Make the directory available again/);

mkdir($node->data_dir . "/$DIR", 0700) or die $!;
start_fails(
	$node,
	'empty directory',
	qr/FATAL:  the double-write log in "$DIR" is missing or unreadable/,
	$in_use,
	qr/HINT:  Make its files available again/);
rmdir($node->data_dir . "/$DIR") or die $!;

append_to_file($node->data_dir . "/$DIR", 'not a directory');
start_fails(
	$node, 'a file',
	qr/FATAL:  double-write log directory "$DIR" is not a directory/,
	qr/HINT:  Make it a directory, or a symbolic link/);
unlink($node->data_dir . "/$DIR") or die $!;

symlink($logdir, $node->data_dir . "/$DIR") or die $!;
rename("$logdir.away", $logdir) or die $!;

SKIP:
{
	skip 'running as root', 8 if $> == 0;

	chmod(0500, $logdir) or die $!;
	start_fails(
		$node,
		'directory that cannot be written',
		qr/FATAL:  double-write log directory "$DIR" is not writable: Permission denied/,
		qr/HINT:  Give the server's user read and write permission/);
	chmod(0000, $logdir) or die $!;
	start_fails(
		$node,
		'directory that cannot be read',
		qr/FATAL:  double-write log directory "$DIR" is not writable: Permission denied/,
		qr/HINT:  Give the server's user read and write permission/);
	chmod(0700, $logdir) or die $!;
}

# ---------------------------------------------------------------------
# Bad values, still on the crashed cluster
# ---------------------------------------------------------------------

my @bad = (
	[
		'io_torn_pages_protection',
		'banana',
		qr/invalid value for parameter "io_torn_pages_protection": "banana"/,
		qr/HINT:  Available values: off, full_pages, double_writes, atomic_writes\./
	],
	[
		'double_write_buffer_size',
		'15MB',
		qr/invalid value for parameter "double_write_buffer_size": 15/,
		qr/"double_write_buffer_size" must be at least 16MB/,
		qr/HINT:  Use -1 to have the size chosen automatically/
	],
	[
		'double_write_stage_size',
		'120kB',
		qr/invalid value for parameter "double_write_stage_size": 15/,
		qr/"double_write_stage_size" must be at least 128kB/,
		qr/HINT:  Use -1 to have the size chosen automatically/
	]);

for my $case (@bad)
{
	my ($name, $value, @patterns) = @$case;

	$node->append_conf('postgresql.conf', "$name = $value # bad");
	start_fails($node, "$name = $value", @patterns);
	remove_conf($node, qr/^.*# bad/m);
}

my $offset = -s $node->logfile;
$node->start;
contents_ok($node, 'nothing is lost after all these failures');
like(
	slurp_file($node->logfile, $offset),
	qr/double-write log: examined [1-9]\d* pages in \d+ batches/,
	'the log had been kept and was restored');

# the same values at a reload are ignored, with a log line
for my $case (@bad)
{
	my ($name, $value, @patterns) = @$case;

	next if $name eq 'double_write_stage_size';
	my $before = show($node, $name);
	$offset = -s $node->logfile;
	$node->append_conf('postgresql.conf', "$name = $value # bad");
	$node->reload;
	$node->wait_for_log(qr/contains errors; unaffected changes were applied/,
		$offset);
	ok($node->log_contains($_, $offset), "reload with $name = $value: $_")
	  for $patterns[0];
	is(show($node, $name), $before, "$name is unchanged");
	remove_conf($node, qr/^.*# bad/m);
}

# the smallest permitted sizes do work
$node->adjust_conf('postgresql.conf', 'double_write_buffer_size', '16MB', 1);
$node->adjust_conf('postgresql.conf', 'double_write_stage_size', '128kB', 1);
$node->restart;
$node->safe_psql('postgres',
		'INSERT INTO t SELECT a, a FROM generate_series(1001, 20000) a;'
	  . 'CHECKPOINT; UPDATE t SET b = b + 1; CHECKPOINT');
$node->stop('immediate');
$node->start;
$node->safe_psql('postgres', 'DELETE FROM t WHERE a > 1000');
contents_ok($node, 'smallest sizes');
$node->stop;
ok(!-e $node->data_dir . "/$MARKER", 'clean stop removes the marker');

# after a clean stop nothing needs the old log
rename($logdir, "$logdir.away") or die $!;
mkdir($logdir, 0700) or die $!;
$node->start;
contents_ok($node, 'after a clean stop the log may be moved');
$node->stop;

# ---------------------------------------------------------------------
# A cluster that existed before: no setting, no directory
# ---------------------------------------------------------------------

my $old = PostgreSQL::Test::Cluster->new('existing');
$old->init;
remove_conf($old, qr/^io_torn_pages_protection/m);
remove_conf($old, qr/^instant_recovery /m);
remove_log($old);

$old->start;
$old->safe_psql('postgres',
	'CREATE TABLE t AS SELECT a, 0 AS b FROM generate_series(1, 1000) a');
is(show($old, 'io_torn_pages_protection'),
	'full_pages', 'existing cluster stays in full_pages');
is(show($old, 'instant_recovery'), 'off', '... and redoes in order');
ok(!-e $old->data_dir . "/$DIR", 'and needs no log directory');
ok(!-e $old->data_dir . "/$MARKER", 'and no marker');
cmp_ok(images_after_checkpoint($old), '>', 0, 'WAL carries images');

# a log that cannot be used: stay as we are, and say why
symlink("$tempdir/nowhere", $old->data_dir . "/$DIR") or die $!;
$offset = -s $old->logfile;
$old->append_conf('postgresql.conf',
	'io_torn_pages_protection = double_writes');
$old->reload;
$old->wait_for_log(
	qr/LOG:  could not access double-write log directory "$DIR".*\n.*HINT:/,
	$offset);
cmp_ok(images_after_checkpoint($old), '>', 0, 'WAL still carries images');
ok(!-e $old->data_dir . "/$MARKER", 'no marker');
$old->stop('immediate');
start_fails(
	$old,
	'start in double_writes with dangling link',
	qr/FATAL:  could not access double-write log directory "$DIR"/,
	qr/HINT:  If it is a symbolic link/);
unlink($old->data_dir . "/$DIR") or die $!;
$old->start;
contents_ok($old, 'data are there');
ok(-d $old->data_dir . "/$DIR", 'start has created the directory');
is((stat($old->data_dir . "/$DIR"))[2] & 07777, 0700, 'and it is private');
is(images_after_checkpoint($old), 0, 'WAL carries no images');

# back to full_pages, then on again without directory, at run time
$old->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
	'full_pages', 1);
$old->restart;
ok(!-e $old->data_dir . "/$MARKER", 'no marker in full_pages');
remove_log($old);
$old->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
	'double_writes', 1);
$old->reload;
wait_for_marker($old, 1);
ok(-d $old->data_dir . "/$DIR", 'reload has created the directory');
$old->safe_psql('postgres',
	'UPDATE t SET b = b + 1; CHECKPOINT; UPDATE t SET b = b + 1');
$old->stop('immediate');
$old->start;
contents_ok($old, 'data are there after a crash');
is(images_after_checkpoint($old), 0, 'WAL carries no images');
$old->stop;

done_testing();
