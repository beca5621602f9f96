
# Copyright (c) 2026, PostgreSQL Global Development Group

# After a crash the first checkpoint syncs the files that the server had written, and
# moves the redo pointer only when it has; and that only where a server has
# crashed on these very files (R5, R9).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use File::Basename;
use File::Find;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;
use Time::HiRes qw(usleep);

dw_require_injection_points();

my $POINT = 'doublewrite-late-sync';
my $synced =
  qr/relation files have been synced after the crash: (\d+) files/;

sub redo_of
{
	my ($node) = @_;
	my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $stdout =~ /REDO location: +(.*)$/m ? $1 : die 'no redo location';
}

sub set
{
	my ($node, $setting, $value) = @_;

	$node->append_conf('postgresql.conf', "$setting = '$value'");
	return;
}

sub crash
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'UPDATE t SET i = i + 1; UPDATE there SET i = i + 1');
	$node->stop('immediate');
	return -s $node->logfile;
}

sub checkpointed_with
{
	my ($node, $offset, $expected, $test_name) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	my $log = slurp_file($node->logfile, $offset);
	my @lines = $log =~ /$synced/g;

	is(scalar(@lines), $expected, $test_name);
	return $lines[0];
}

# Files of relations, as they are now
sub count_files
{
	my ($node) = @_;
	my $number = 0;

	find(
		{
			wanted => sub { $number++ if -f $_ && m{/\d[^/]*$} },
			follow_fast => 1,
			no_chdir => 1
		},
		map { $node->data_dir . "/$_" } ('base', 'global', 'pg_tblspc'));
	return $number;
}

sub cluster_state
{
	my ($node) = @_;
	my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $stdout =~ /cluster state: +(.*)$/m ? $1 : die 'no state';
}

my $node = dw_new_node('late');
my $place = PostgreSQL::Test::Utils::tempdir();

$node->start;
dw_extensions($node);
$node->safe_psql('postgres', "CREATE TABLESPACE place LOCATION '$place'");
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i, repeat('x', 100) AS f FROM generate_series(1, 5000) i;
	CREATE TABLE there (i int) TABLESPACE place;
	INSERT INTO there SELECT generate_series(1, 100);
	CREATE TABLE goes AS SELECT i FROM generate_series(1, 5000) i;
	VACUUM goes;
	CHECKPOINT});

# No checkpoint completes unless files can be synced.
my $redo = redo_of($node);
my $offset = crash($node);
set($node, 'test_doublewrite.fail_at', "$POINT:EIO:1:1000000");
ok(dw_poll_start($node), 'server starts after a crash');
my ($status) = $node->psql('postgres', 'CHECKPOINT');
isnt($status, 0, 'a checkpoint that cannot sync the files of before fails');
is(redo_of($node), $redo, '... and pg_control names the old redo pointer');
unlike(slurp_file($node->logfile, $offset), $synced, '... and nothing is said to be synced');

# Nor is protection switched off.  That goes on failing, and keeps nobody from anything.
my $switched = -s $node->logfile;
set($node, 'io_torn_pages_protection', 'off');
$node->reload;
$node->wait_for_log(qr/ERROR: .*test error at injection point "$POINT"/, $switched);

# Nor does a stop complete.
$node->stop('fast', fail_ok => 1);
dw_wait_for_exit($node);
unlike(slurp_file($node->logfile, $switched), qr/protection is off/,
	'protection is not switched off either');
set($node, 'io_torn_pages_protection', 'double_writes');
isnt(cluster_state($node), 'shut down', 'neither can the server be stopped');
is(redo_of($node), $redo, '... nor the redo pointer move');

# All of them are synced, once, also if they could not be listed at first.
set($node, 'test_doublewrite.fail_at', "$POINT-listing:EIO");
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts again');
$node->wait_for_log(qr/ERROR: .*test error at injection point "$POINT-listing"/, $offset);
my $number = checkpointed_with($node, $offset, 1, 'the first checkpoint syncs files');
is($number, count_files($node), '... all that there are, in tablespaces, too');
isnt(redo_of($node), $redo, '... and moves the redo pointer');
checkpointed_with($node, -s $node->logfile, 0, 'the second one does not');
dw_check_amcheck($node);

set($node, 'test_doublewrite.fail_at', '');

# What is dropped meanwhile is not missed.
$offset = crash($node);
set($node, 'test_doublewrite.pause_at', "$POINT:1:1");
$node->start;
$node->wait_for_log(qr/paused at injection point "$POINT"/, $offset);
$node->safe_psql('postgres', 'DROP TABLE goes');
append_to_file($node->data_dir . '/test_doublewrite.resume', '');
checkpointed_with($node, $offset, 1, 'files that are dropped meanwhile do no harm');

# A stop syncs them as well.
set($node, 'test_doublewrite.pause_at', '');
$offset = crash($node);
$node->start;
$node->stop;
like(slurp_file($node->logfile, $offset), $synced, 'a stop syncs files');
is(cluster_state($node), 'shut down', '... and leaves the cluster shut down');

# After that there is nothing to sync.
$offset = -s $node->logfile;
$node->start;
checkpointed_with($node, $offset, 0, 'nothing is left after a clean stop');

# Files are synced before the log is given up, which is the last that tells of a crash.
$offset = crash($node);
set($node, 'io_torn_pages_protection', 'off');
$node->start;
like(slurp_file($node->logfile, $offset), qr/$synced.*torn page protection is off/s,
	'files are synced before protection is switched off');
set($node, 'io_torn_pages_protection', 'double_writes');
$node->restart;

# If that fails, as does the checkpoint before it, it is done in the next round.
$offset = crash($node);
set($node, 'test_doublewrite.fail_at', "$POINT-listing:EIO:1:2");
$node->start;
set($node, 'io_torn_pages_protection', 'off');
$node->reload;
ok($node->wait_for_log(qr/torn page protection is off/, $offset),
	'protection is switched off after a failure');
set($node, 'test_doublewrite.fail_at', '');
set($node, 'io_torn_pages_protection', 'double_writes');
$node->restart;

# A standby that is stopped without a restartpoint starts again as after a clean stop.
my $primary = dw_new_node('primary', init => { allows_streaming => 1 });
my $standby = PostgreSQL::Test::Cluster->new('standby');

$primary->start;
dw_extensions($primary);
$primary->backup('backup');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', 'CREATE TABLE t AS SELECT generate_series(1, 1000)');
$primary->wait_for_replay_catchup($standby);
$standby->stop('immediate');
$offset = -s $standby->logfile;
$standby->start;
$primary->wait_for_replay_catchup($standby);
unlike(slurp_file($standby->logfile, $offset), $synced, 'a standby starts after a crash');
$standby->stop;
is(cluster_state($standby), 'shut down in recovery', '... and is stopped');
my $log = slurp_file($standby->logfile, $offset);
unlike($log, qr/restartpoint complete/, '... without a restartpoint');
like($log, $synced, '... and syncs files nevertheless');

# So it is with what has gone home since, of which the log may have no copy.
sub change_on_standby
{
	$standby->start;
	$primary->safe_psql('postgres', 'UPDATE t SET generate_series = 0');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
	$offset = -s $standby->logfile;
	return;
}

my $path = $primary->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
set($standby, 'log_min_messages', 'debug1');
change_on_standby();
$standby->stop;
$log = slurp_file($standby->logfile, $offset);
unlike($log, qr/restartpoint complete/, 'a standby is stopped without a restartpoint');
like($log, qr/checkpoint sync: .* file=\Q$path\E /, '... and syncs what has gone home');

# It is stopped when the marker has gone, whatever pg_control says.
set($standby, 'test_doublewrite.crash_at', 'doublewrite-sync-removals');
change_on_standby();
$standby->stop('fast', fail_ok => 1);
dw_wait_for_exit($standby);
is(cluster_state($standby), 'shut down in recovery', 'a stop is cut short');
command_fails_like([ 'pg_checksums', '--check', $standby->data_dir ],
	qr/shutdown of the cluster was cut short/, '... which pg_checksums sees');
command_fails_like(
	[ 'pg_rewind', '--dry-run', '--no-ensure-shutdown',
		'--source-server' => $primary->connstr('postgres'),
		'--target-pgdata' => $standby->data_dir ],
	qr/target server must be shut down cleanly/, '... and pg_rewind');
set($standby, 'test_doublewrite.crash_at', '');
$standby->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
checkpointed_with($standby, $offset, 1, '... and the next restartpoint syncs files');
$standby->stop;

# Whoever stops using the log without a checkpoint does so, too.
change_on_standby();
set($standby, 'io_torn_pages_protection', 'off');
$standby->reload;
$standby->wait_for_log(qr/torn page protection is off/, $offset);
$log = slurp_file($standby->logfile, $offset);
unlike($log, qr/restartpoint complete/, 'protection is switched off without a restartpoint');
like($log, qr/checkpoint sync: .* file=\Q$path\E /, '... and what has gone home is synced');
$standby->stop;

# The end of recovery can't do that for pages that others have written atomically: it
# leaves the switch to the checkpointer, which has failed to make it.
set($standby, 'io_torn_pages_protection', 'atomic_writes');
set($standby, 'test_doublewrite.pretend_atomic', 'on');
change_on_standby();
$standby->safe_psql('postgres',
	"SELECT dw_fail_at('doublewrite-switching-off', 'EIO', 1, 1000000)");
set($standby, 'io_torn_pages_protection', 'off');
$standby->reload;
$standby->wait_for_log(qr/ERROR: .*doublewrite-switching-off/, $offset);
$primary->safe_psql('postgres', 'UPDATE t SET generate_series = 1');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
$offset = -s $standby->logfile;
$standby->promote;
is($standby->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
	't', 'a promotion leaves it to the checkpointer to switch protection off');
$standby->safe_psql('postgres', "SELECT dw_clear('doublewrite-switching-off')");
$standby->wait_for_log(qr/torn page protection is off/, $offset);
like(slurp_file($standby->logfile, $offset),
	qr/checkpoint sync: .* file=\Q$path\E .*torn page protection is off/s,
	'... and what has gone home is synced before');
$standby->stop;
$primary->stop;

# A tablespace that has been moved while the server was down is a copy.  That its files
# are synced at the start is seen if there are many.
my $progress = qr/syncing data directory \(fsync\), .*current path: pg_tblspc\/\d+\/PG_\w+\/\d+\/9/;
my ($directory) = glob("$place/PG_*/*");
my @many = map { 900000 + $_ } (1 .. 5000);

append_to_file("$directory/$_", '') foreach @many;

# the marker is to be newer than the tablespace, in seconds
my $changed = (stat(dirname($directory)))[10];
usleep(100_000) while time <= $changed;
$node->restart;
set($node, 'log_startup_progress_interval', '10ms');
$offset = crash($node);
ok(dw_poll_start($node), 'server starts with many files in a tablespace');
unlike(slurp_file($node->logfile, $offset), $progress, '... and does not sync them');

$offset = crash($node);
my $moved = PostgreSQL::Test::Utils::tempdir() . '/moved';
PostgreSQL::Test::RecursiveCopy::copypath($place, $moved);
chmod(0700, $moved);
my ($link) = glob($node->data_dir . '/pg_tblspc/*');
unlink($link) && symlink($moved, $link) or die "could not link: $!";
ok(dw_poll_start($node), '... or when it has been moved');
like(slurp_file($node->logfile, $offset), $progress, '... and syncs them');
checkpointed_with($node, $offset, 1, '... as the checkpoint does');
set($node, 'log_startup_progress_interval', '10s');
($directory) = glob("$moved/PG_*/*");
unlink("$directory/$_") foreach @many;

# A copy may be in the kernel's cache from end to end: it is synced at the start.
$node->safe_psql('postgres', 'ALTER TABLE there SET TABLESPACE pg_default');
$node->safe_psql('postgres', 'DROP TABLESPACE place');
$offset = crash($node);
my $copy = PostgreSQL::Test::Cluster->new('copy');
PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $copy->data_dir);
chmod(0700, $copy->data_dir);
unlink($copy->data_dir . '/pg_doublewrite/owner') or die "could not remove: $!";
$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
$copy->start;
checkpointed_with($copy, 0, 0, 'files of a copy are synced at the start');
$copy->stop;

# So is all where the log was not in use.
set($node, 'io_torn_pages_protection', 'full_pages');
$node->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$offset = crash($node);
$node->start;
checkpointed_with($node, $offset, 0, 'without the log files are synced at the start');

done_testing();
