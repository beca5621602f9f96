
# Copyright (c) 2025, PostgreSQL Global Development Group

# Standbys with the WAL pipeline: catching up, cascading, pausing, delays,
# changes of timeline, promotion.  The primary adds page images for consistency
# checks to all records.

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
$primary->append_conf('postgresql.conf', 'wal_consistency_checking = all');
$primary->reload;
$primary->safe_psql('postgres', 'CREATE TABLE checks (run int, sum bigint)');
$primary->backup('base');

sub standby
{
	my ($name, $upstream, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->append_conf('postgresql.conf',
			xlp_conf('on')
		  . "recovery_target_timeline = latest\n"
		  . ($conf // ''));
	$node->enable_streaming($upstream) if $upstream != $primary;
	$node->start;
	return $node;
}

sub workload
{
	my ($node, $run) = @_;

	xlp_workload($node, $run);
	$node->safe_psql('postgres',
		"INSERT INTO checks SELECT $run, sum(id::bigint * v) FROM t$run");
	return;
}

sub check
{
	my ($node, $run, $what) = @_;

	is( $node->safe_psql(
			'postgres',
			"SELECT (SELECT sum(id::bigint * v) FROM t$run) = sum
			 FROM checks WHERE run = $run"),
		't',
		$what);
	return;
}

# Started in the middle of things: WAL comes from the stream from the beginning.
workload($primary, 1);
my $standby = standby('standby', $primary, "shared_buffers = 1MB\n");
my $cascade = standby('cascade', $standby);
my $delayed = standby('delayed', $primary, "recovery_min_apply_delay = 3s\n");
$primary->wait_for_catchup($standby);
$standby->wait_for_catchup($cascade, 'replay', $primary->lsn('flush'));
check($standby, 1, 'standby has caught up');
check($cascade, 1, 'cascading standby has caught up');
cmp_ok(xlp_ranges($standby), '>', 0, 'pipeline took part on the standby');
cmp_ok(xlp_ranges($cascade), '>', 0,
	'pipeline took part on the cascading standby');

# What monitoring shows
$standby->wait_for_event('walpipeline', 'WalPipelineMain');
ok(1, 'process and wait event are visible');
cmp_ok(
	$standby->safe_psql(
		'postgres',
		'SELECT hit + prefetch + skip_init + skip_fpw + skip_new + skip_rep
		 FROM pg_stat_recovery_prefetch'),
	'>',
	1000,
	'block references are counted');
$standby->safe_psql('postgres',
	"SELECT pg_stat_reset_shared('recovery_prefetch')");

# While replay is paused, WAL is received.  Then there is a backlog.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
my $ranges = xlp_ranges($standby);
workload($primary, 2);
$primary->wait_for_catchup($standby, 'flush');
is($standby->safe_psql('postgres', "SELECT to_regclass('t2') IS NULL"),
	't', 'nothing is replayed in a pause');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
check($standby, 2, 'backlog has been replayed');
cmp_ok(xlp_ranges($standby), '>', $ranges, '... with the pipeline');
cmp_ok(
	$standby->safe_psql(
		'postgres',
		'SELECT hit + prefetch + skip_init + skip_fpw + skip_new + skip_rep
		 FROM pg_stat_recovery_prefetch'),
	'>',
	1000,
	'block references are counted after a reset');

# Pause in the middle of a range: the worker fills the queue and waits.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
workload($primary, 3);
$primary->wait_for_catchup($standby, 'flush');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'")
  or die;
my $lsn = $standby->lsn('replay');
$standby->reload;
is($standby->lsn('replay'), $lsn, 'paused');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
check($standby, 3, 'paused in the middle, and resumed');

# Prefetching is switched off and on
$standby->append_conf('postgresql.conf', 'recovery_prefetch = off');
$standby->reload;
workload($primary, 4);
$primary->wait_for_catchup($standby);
check($standby, 4, 'without prefetching');
$standby->append_conf('postgresql.conf', 'recovery_prefetch = try');
$standby->reload;

# One record that is larger than queue and segments
$primary->safe_psql(
	'postgres',
	"SELECT length(pg_logical_emit_message(false, 'x', repeat('z', 30000000))::text);
	 INSERT INTO checks VALUES (0, 0)");
$primary->wait_for_catchup($standby);
is( $standby->safe_psql(
		'postgres', 'SELECT count(*) FROM checks WHERE run = 0'),
	1,
	'record of 30 MB');

# Delayed apply
$primary->wait_for_catchup($delayed);
check($delayed, 4, 'delayed standby has caught up');
my $before = time;
$primary->safe_psql('postgres', 'INSERT INTO checks VALUES (-1, 0)');
$primary->wait_for_catchup($delayed);
cmp_ok(time - $before, '>=', 2, 'replay is delayed');
cmp_ok(xlp_ranges($delayed), '>', 0,
	'pipeline took part on the delayed standby');
$delayed->stop;

# Promotion by function; the cascading standby follows to the new timeline
$standby->wait_for_catchup($cascade, 'replay', $primary->lsn('flush'));
$primary->stop;
$standby->safe_psql('postgres', 'SELECT pg_promote()');
is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'),
	'f', 'promoted by pg_promote');
ok( $standby->poll_query_until(
		'postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'walpipeline'"
	),
	'pipeline has gone after promotion');
cmp_ok(xlp_decoded($standby), '>', 10000, 'pipeline decoded records');
my $cascade_log = -s $cascade->logfile;
xlp_pause($cascade);
workload($standby, 5);
$standby->wait_for_catchup($cascade, 'flush');
$cascade->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_catchup($cascade);
check($cascade, 5, 'cascading standby follows the new timeline');
cmp_ok(xlp_ranges($cascade, $cascade_log), '>', 0, '... with the pipeline');

# Promotion by pg_ctl, with a backlog that is still replayed
xlp_pause($cascade);
workload($standby, 6);
$standby->wait_for_catchup($cascade, 'flush');
$standby->stop;
$cascade->promote;
check($cascade, 6, 'backlog is replayed before promotion');
check($cascade, $_, "contents of run $_") foreach (1 .. 5);
$cascade->safe_psql('postgres', 'INSERT INTO checks VALUES (-2, 0)');

# Crash recovery over the change of timeline
$cascade->stop('immediate');
$cascade->start;
check($cascade, 6, 'crash recovery after promotion');

foreach my $node ($standby, $cascade, $delayed)
{
	unlike(
		slurp_file($node->logfile),
		qr/PANIC|FATAL:.*inconsistent|TRAP/,
		$node->name . ' has nothing to complain about');
}

done_testing();
