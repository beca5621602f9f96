
# Copyright (c) 2025, PostgreSQL Global Development Group

# The WAL pipeline's process exits, in the middle of a read and otherwise:
# recovery goes on without it, says so, and starts another one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use XLogPipeline;

xlp_require_injection_points();

# Blocks are read only if WAL has no images of them.
my $primary = xlp_primary('primary');
xlp_page_images($primary, 0);
$primary->restart;
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION injection_points;
	CREATE EXTENSION pg_buffercache;
	CREATE EXTENSION test_points;
	CREATE TABLE t (id int);
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 800) i;
	CHECKPOINT;
});
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', xlp_conf('on'));
$standby->start;

my $rows = 0;

# A backlog that nothing has been replayed of.  Its blocks are not in shared
# buffers of the standby.
sub backlog
{
	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$standby->safe_psql('postgres',
		"SELECT pg_buffercache_evict_relation('wide')");
	$primary->safe_psql('postgres',
		"INSERT INTO t SELECT generate_series(1, 5000); UPDATE wide SET v = v + 1"
	);
	$rows += 5000;
	$primary->wait_for_catchup($standby, 'flush');
	return;
}

# ... until the worker has begun with it
sub resume_until_begun
{
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('xlogpipeline-begin-range', 'wait')");
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$standby->wait_for_event('walpipeline', 'xlogpipeline-begin-range');
	return;
}

sub go_on
{
	$standby->safe_psql(
		'postgres',
		"SELECT injection_points_detach('xlogpipeline-begin-range');
		 SELECT injection_points_wakeup('xlogpipeline-begin-range')");
	return;
}

sub check
{
	my ($what) = @_;

	$primary->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'),
		$rows, $what);
	return;
}

sub worker
{
	return $standby->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walpipeline'"
	);
}

# Another process takes its part in recovery.
sub check_another
{
	my ($old, $what) = @_;

	# Redo looks after it whenever it takes a record.
	my $found = 0;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	while (time() < $end)
	{
		$primary->safe_psql('postgres', 'INSERT INTO t VALUES (0)');
		$rows++;
		$found = $standby->safe_psql(
			'postgres',
			"SELECT count(*) FROM pg_stat_activity
			 WHERE backend_type = 'walpipeline' AND pid <> $old");
		last if $found;
		usleep(100_000);
	}
	is($found, 1, "$what: another one is started");

	backlog();
	resume_until_begun();
	go_on();
	check("$what: it takes its part");
	return;
}

# --- An error in the middle of a read

my $offset = -s $standby->logfile;
my $pid = worker();
backlog();
resume_until_begun();
# One statement, which reads nothing after that
$standby->safe_psql(
	'postgres', q{
	SELECT injection_points_detach('xlogpipeline-begin-range'),
		points_fail_at('md-start-read', 'EIO'),
		injection_points_wakeup('xlogpipeline-begin-range')});
$standby->wait_for_log(
	qr/WAL pipeline process has failed, recovery goes on without it/,
	$offset);
check('failed read: recovery goes on');
like(
	slurp_file($standby->logfile, $offset),
	qr/\[$pid\].*test error at injection point "md-start-read"/,
	'failed read: the worker met the error');
unlike(
	slurp_file($standby->logfile, $offset),
	qr/terminated by signal|reinitializing|PANIC/,
	'failed read: the server does not crash');
check_another($pid, 'failed read');

# --- It is terminated while it waits for a range or has one

foreach my $state ('idle', 'busy')
{
	$offset = -s $standby->logfile;
	$pid = worker();
	if ($state eq 'idle')
	{
		$standby->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	}
	else
	{
		backlog();
		resume_until_begun();
		$standby->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
		go_on();
	}
	$standby->poll_query_until('postgres',
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)")
	  or die;
	check("terminated, $state: recovery goes on");
	check_another($pid, "terminated, $state");
	like(
		slurp_file($standby->logfile, $offset),
		qr/WAL pipeline process has ended, recovery goes on without it\n.*DETAIL:  It is started again in \d+ s/,
		"terminated, $state: the server log says so");
}

# --- The same while nothing happens that would wake it up.  The latch that came
# --- with the signal is reset by a wait in between.

$pid = worker();
$offset = -s $standby->logfile;
backlog();
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-record-ready', 'wait')");
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_event('walpipeline', 'xlogpipeline-record-ready');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->safe_psql(
	'postgres',
	"SELECT injection_points_attach('xlogpipeline-read-block', 'wait');
	 SELECT injection_points_detach('xlogpipeline-record-ready');
	 SELECT injection_points_wakeup('xlogpipeline-record-ready')");
$standby->wait_for_event('walpipeline', 'xlogpipeline-read-block');
$standby->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'")
  or die;
$standby->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$standby->safe_psql(
	'postgres',
	"SELECT injection_points_detach('xlogpipeline-read-block');
	 SELECT injection_points_wakeup('xlogpipeline-read-block')");
ok( $standby->poll_query_until(
		'postgres',
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)"),
	'terminated, paused: it exits');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
check('terminated, paused: recovery goes on');
check_another($pid, 'terminated, paused');

# --- It fails each time: redo goes on, and it is tried again less and less often

$offset = -s $standby->logfile;
$standby->safe_psql('postgres',
	"SELECT points_fail_at('xlogpipeline-begin-range', 'EIO', 1, 1000)");
my $longer = 0;
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
while (time() < $end)
{
	$primary->safe_psql('postgres',
		'INSERT INTO t SELECT generate_series(1, 5000)');
	$rows += 5000;
	my @losses = slurp_file($standby->logfile, $offset) =~
	  /It is started again in (\d+) s/g;
	# on a machine that is slow enough it begins anew
	$longer = grep { $losses[$_] > $losses[ $_ - 1 ] } (1 .. $#losses);
	last if $longer;
	usleep(100_000);
}
ok($longer, 'failing again: delay is longer');
check('failing again: recovery goes on');
$standby->stop;

done_testing();
