
# Copyright (c) 2025, PostgreSQL Global Development Group

# What happens to startup process and WAL pipeline at hand-overs: waits,
# reloads, barriers, errors, deaths, shutdowns.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION injection_points;
	CREATE EXTENSION test_points;
	CREATE TABLE t (id int);
	CREATE DATABASE victim STRATEGY file_copy;
});
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on') . "restart_after_crash = on\n");
$standby->start;

my $rows = 0;

# A backlog of some megabytes that nothing has been replayed of
sub backlog
{
	$primary->wait_for_catchup($standby);
	xlp_pause($standby);
	$primary->safe_psql('postgres',
		'INSERT INTO t SELECT generate_series(1, 40000)');
	$rows += 40000;
	$primary->wait_for_catchup($standby, 'flush');
	return;
}

sub resume
{
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
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

sub process
{
	my ($type) = @_;

	return $standby->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
}

# --- Each side waits at each hand-over while the other one has to wait

foreach my $point (
	[ 'xlogpipeline-engage', 'startup' ],
	[ 'xlogpipeline-begin-range', 'walpipeline' ],
	[ 'xlogpipeline-end-range', 'walpipeline' ],
	[ 'xlogpipeline-taken-back', 'startup' ])
{
	my ($name, $process) = @$point;

	backlog();
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('$name', 'wait')");
	resume();
	$standby->wait_for_event($process, $name);
	ok(1, "$name: reached by $process");
	$standby->reload;

	# The other one waits for it, and does so without harm.
	if ($process ne 'startup')
	{
		$standby->wait_for_event('startup', 'WalPipelineRecord');
		ok(1, "$name: startup process waits");
	}
	$standby->safe_psql(
		'postgres',
		"SELECT injection_points_detach('$name');
		 SELECT injection_points_wakeup('$name')");
	check("$name: replay goes on");
}

# --- The startup process needs the worker to absorb a barrier

backlog();
$primary->safe_psql('postgres', 'DROP DATABASE victim');
$primary->safe_psql('postgres',
	'INSERT INTO t SELECT generate_series(1, 10000)');
$rows += 10000;
resume();
check('database was dropped');
is( $standby->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_database WHERE datname = 'victim'"),
	0,
	'... on the standby, too');

# --- One of the two dies while a range is handed over: everything restarts

backlog();
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-begin-range', 'wait')");
resume();
$standby->wait_for_event('walpipeline', 'xlogpipeline-begin-range');
my $offset = -s $standby->logfile;
kill('KILL', process('walpipeline'));
$standby->wait_for_log(
	qr/background worker "walpipeline" \(PID \d+\) was terminated by signal 9/,
	$offset);
$standby->wait_for_log(
	qr/database system is ready to accept read-only connections/, $offset);
$standby->poll_query_until('postgres', 'SELECT true') or die;
check('pipeline was killed: server restarts and replays');
$standby->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walpipeline'"
) or die;

backlog();
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-begin-range', 'wait')");
resume();
$standby->wait_for_event('startup', 'WalPipelineRecord');
kill('KILL', process('startup'));
$standby->wait_for_log(
	qr/startup process \(PID \d+\) was terminated by signal 9/, $offset);
$standby->wait_for_log(qr/database system is shut down/, $offset);
$standby->_update_pid(0);
$standby->start;
check('startup process was killed: nothing is lost');

# --- Shutdown in the middle: the startup process waits for the worker ...

backlog();
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-end-range', 'wait')");
resume();
$standby->wait_for_event('startup', 'WalPipelineRecord');
$standby->stop('immediate');
$standby->start;
check('immediate shutdown while startup process waits');

# ... the worker waits for the startup process, which is paused

backlog();
resume();
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->stop('fast');
$standby->start;
check('fast shutdown in the middle of a range');

# --- The worker fails: recovery goes on without it

backlog();
$standby->safe_psql('postgres',
	"SELECT points_fail_at('xlogpipeline-end-range', 'EIO')");
$offset = -s $standby->logfile;
resume();
$standby->wait_for_log(
	qr/WAL pipeline process has failed, recovery goes on without it/,
	$offset);
check('worker failed: what it had decoded is used');
backlog();
resume();
check('recovery goes on without it');

# ... as it does if it cannot be started

$standby->stop;
$standby->append_conf('postgresql.conf', 'max_worker_processes = 8');
$standby->append_conf('postgresql.conf',
	"test_points.fail_at = 'xlogpipeline-attached:EIO'");
$offset = -s $standby->logfile;
$standby->start;
$standby->wait_for_log(
	qr/background worker "walpipeline" \(PID \d+\) exited with exit code 1/,
	$offset);
backlog();
resume();
check('worker failed at start');

# --- Promotion while a range is handed over

$standby->stop;
$standby->append_conf('postgresql.conf', xlp_wait_conf());
$standby->start;
backlog();
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-end-range', 'wait')");
resume();
$standby->wait_for_event('walpipeline', 'xlogpipeline-end-range');
$primary->stop;
$standby->safe_psql('postgres', 'SELECT pg_promote(wait => false)');
$standby->safe_psql(
	'postgres',
	"SELECT injection_points_detach('xlogpipeline-end-range');
	 SELECT injection_points_wakeup('xlogpipeline-end-range')");
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die;
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'),
	$rows, 'promoted, all received WAL was replayed');

done_testing();
