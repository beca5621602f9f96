
# Copyright (c) 2025, PostgreSQL Global Development Group

# The WAL pipeline does not take a record for applied that the startup process
# has only just found.

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
	CREATE TABLE t (id int);
	CREATE TABLE locked (id int);
});
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on') . "max_standby_streaming_delay = -1\n");
$standby->start;
$primary->wait_for_catchup($standby);

# A session of the standby keeps redo of the lock from going on.
my $session = $standby->background_psql('postgres', on_error_stop => 1);
$session->query_safe('BEGIN; SELECT count(*) FROM locked');

sub attach
{
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('$_', 'wait')")
	  foreach @_;
	return;
}

sub wake
{
	my ($point) = @_;

	$standby->safe_psql(
		'postgres',
		"SELECT injection_points_detach('$point');
		 SELECT injection_points_wakeup('$point')");
	return;
}

# After the record of the lock comes one that does not fit into the queue.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$primary->safe_psql(
	'postgres', q{
	INSERT INTO t SELECT generate_series(1, 5000);
	BEGIN;
	LOCK TABLE locked;
	SELECT length(pg_logical_emit_message(true, 'test', repeat('m', 3000000))::text);
	COMMIT;
	INSERT INTO t SELECT generate_series(1, 5000);
});
$primary->wait_for_catchup($standby, 'flush');

# The startup process is about to say that it waits, at the start of the range,
# while the worker publishes all up to the lock, and has nothing more to do.
attach('xlogpipeline-begin-range', 'xlogpipeline-record-missed');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_event('walpipeline', 'xlogpipeline-begin-range');
$standby->wait_for_event('startup', 'xlogpipeline-record-missed');
wake('xlogpipeline-begin-range');
$standby->wait_for_event('walpipeline', 'WalPipelineReplay');

# It says so, and the worker takes notice.
attach('xlogpipeline-startup-waits', 'xlogpipeline-advance');
wake('xlogpipeline-record-missed');
$standby->wait_for_event('startup', 'xlogpipeline-startup-waits');
$standby->reload;
$standby->wait_for_event('walpipeline', 'xlogpipeline-advance');

# Only now does it see what was published, and goes on up to the lock.
wake('xlogpipeline-startup-waits');
$standby->poll_query_until(
	'postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity
	 WHERE backend_type = 'startup' AND wait_event_type = 'Lock'") or die;
wake('xlogpipeline-advance');

# The worker must not end the range: the last record has not been applied.
$standby->poll_query_until(
	'postgres',
	"SELECT wait_event LIKE 'WalPipeline%' FROM pg_stat_activity
	 WHERE backend_type = 'walpipeline'") or die;
is( $standby->safe_psql(
		'postgres',
		"SELECT wait_event FROM pg_stat_activity
		 WHERE backend_type = 'walpipeline'"),
	'WalPipelineReplay',
	'worker waits for the last record to be applied');

$session->quit;
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'),
	10000, 'replay goes on');
$standby->stop;

done_testing();
