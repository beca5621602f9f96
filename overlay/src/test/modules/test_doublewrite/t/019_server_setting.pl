# Copyright (c) 2025, PostgreSQL Global Development Group

# The mode is that of the server, whatever the settings of the process are that
# happens to write pages back, and also if they change while recovery ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $SETTING = 'io_torn_pages_protection';

my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 1000) i});
$primary->backup('b');

# A standby without images in its WAL, on which nothing goes home by itself
sub new_standby
{
	my ($name, $mode) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->adjust_conf('postgresql.conf', $SETTING, $mode);
	$standby->start;
	dw_restartpoint($primary, $standby);
	$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
	$primary->wait_for_replay_catchup($standby);
	return $standby;
}

# Wait until a server that has ended recovery writes that images have begun, or
# have ended, without asking it for anything that its checkpointer would do
sub wait_for_change
{
	my ($node, $from, $images) = @_;

	watchdog_until(
		"images: $images is in WAL",
		sub {
			# a commit, so that what was logged before it is flushed
			$node->safe_psql('postgres', 'SELECT pg_current_xact_id()');
			my ($stdout) = run_command(
				[
					'pg_waldump',
					'--path' => $node->data_dir . '/pg_wal',
					'--timeline' => 2,
					'--start' => $from,
					'--rmgr' => 'XLOG'
				]);
			my @changes = $stdout =~ /desc: FPW_CHANGE (\w+)/g;

			return @changes && $changes[-1] eq $images;
		});
	return;
}

# ---------------------------------------------------------------------
# A setting for all roles is one for sessions
# ---------------------------------------------------------------------

$primary->safe_psql('postgres', "ALTER ROLE ALL SET $SETTING = full_pages");
is($primary->safe_psql('postgres', "SHOW $SETTING"),
	'full_pages', 'ALTER ROLE ALL: images');
is($primary->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
	't', 'nothing else changes');

# accepted here, where it is what the server does
$primary->safe_psql('postgres',
	"ALTER ROLE ALL SET $SETTING = double_writes");
my $standby = new_standby('all_roles', 'full_pages');
is($standby->safe_psql('postgres', "SHOW $SETTING"),
	'full_pages', 'ALTER ROLE ALL: not on a standby');
$standby->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
is( $standby->safe_psql(
		'postgres', 'SELECT armed, logged > 0 FROM dw_stats(), dw_state()'),
	't|t',
	'session protects what it writes back');
$standby->stop;
$primary->safe_psql('postgres', "ALTER ROLE ALL RESET $SETTING");

# ---------------------------------------------------------------------
# A session that has not heard of a reload
# ---------------------------------------------------------------------

$standby = new_standby('reload', 'off');
$standby->adjust_conf('postgresql.conf', $SETTING, 'full_pages');
$standby->safe_psql(
	'postgres', q{
	DO $$
	BEGIN
		PERFORM pg_reload_conf();
		WHILE dw_setting() <> 'full_pages' LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		ASSERT current_setting('io_torn_pages_protection') = 'off';
		PERFORM dw_evict('t');
		PERFORM dw_drain();
	END $$});
is( $standby->safe_psql(
		'postgres', 'SELECT armed, logged > 0 FROM dw_stats(), dw_state()'),
	't|t',
	'session protects what it writes back as the server does now');
$standby->stop;

# ---------------------------------------------------------------------
# A reload while recovery ends, by a promotion, or at its target, where the
# checkpointer is not woken up for a checkpoint afterwards
# ---------------------------------------------------------------------

$primary->safe_psql('postgres', 'CHECKPOINT');
foreach my $case (
	[ 'full_pages', 'double_writes', 0 ],
	[ 'double_writes', 'full_pages', 0 ],
	[ 'full_pages', 'double_writes', 1 ])
{
	my ($from, $to, $target) = @$case;

	$standby = new_standby("from_${from}_$target", $from);
	if ($target)
	{
		$primary->safe_psql('postgres',
			q{SELECT pg_create_restore_point('target')});
		$standby->append_conf('postgresql.conf',
			q{recovery_target_name = 'target'});
		$standby->restart;
		$standby->poll_query_until('postgres',
			q{SELECT pg_get_wal_replay_pause_state() = 'paused'})
		  or die 'target is not reached';
	}
	my $end = $standby->lsn('replay');
	$standby->safe_psql('postgres',
		q{SELECT injection_points_attach('promotion-after-wal-segment-cleanup', 'wait')}
	);
	if ($target)
	{
		$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	}
	else
	{
		$standby->command_ok(
			[
				'pg_ctl', 'promote',
				'--no-wait', '--pgdata' => $standby->data_dir
			],
			'promotion');
	}
	$standby->wait_for_event('startup',
		'promotion-after-wal-segment-cleanup');
	$standby->adjust_conf('postgresql.conf', $SETTING, $to);
	$standby->reload;
	$standby->poll_query_until('postgres', "SELECT dw_setting() = '$to'")
	  or die 'no reload';
	$standby->safe_psql(
		'postgres', q{
		SELECT injection_points_wakeup('promotion-after-wal-segment-cleanup');
		SELECT injection_points_detach('promotion-after-wal-segment-cleanup')});
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die;

	wait_for_change($standby, $end,
		$to eq 'double_writes' ? 'false' : 'true');

	# the checkpoint requested by a promotion may be under way, hence a new one
	$standby->safe_psql('postgres', 'CHECKPOINT');
	my $from_lsn = $standby->lsn('insert');
	$standby->safe_psql('postgres', 'UPDATE t SET v = v + 1');
	my $images =
	  dw_images_between($standby, $from_lsn, $standby->lsn('flush'));
	if ($to eq 'double_writes')
	{
		is($images, 0,
			"end of recovery in $from, reload: images have stopped");
	}
	else
	{
		cmp_ok($images, '>', 3,
			"end of recovery in $from, reload: images have begun");
	}
	is( $standby->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
		$to eq 'double_writes' ? 't' : 'f',
		"end of recovery in $from, reload: log");
	$standby->stop;
}

# ---------------------------------------------------------------------
# Recovery ends after the checkpointer has asked whether it has, and before it
# says that there is a change: neither of the two flags that they leave for each
# other tells
# ---------------------------------------------------------------------

{
	$standby = new_standby('between', 'full_pages');
	my $end = $standby->safe_psql(
		'postgres', q{
		SELECT points_await_end_of_recovery_at('doublewrite-update-mode');
		SELECT pg_last_wal_replay_lsn()}) =~ s/^\n//r;
	my $offset = -s $standby->logfile;

	$standby->adjust_conf('postgresql.conf', $SETTING, 'double_writes');
	$standby->reload;
	$standby->wait_for_log(
		qr/waiting for the end of recovery at injection point "doublewrite-update-mode"/,
		$offset);
	$standby->promote;
	wait_for_change($standby, $end, 'false');
	is($standby->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
		't', 'recovery ends while the checkpointer looks: log is in use');
	$standby->stop;
}

$primary->stop;

# ---------------------------------------------------------------------
# Pages are protected from the first one on, even if the startup process is done
# before the checkpointer has looked at the settings
# ---------------------------------------------------------------------

my $node = dw_new_node('first', conf => "$SETTING = full_pages");
$node->start;
dw_extensions($node);
$node->safe_psql('postgres', 'CREATE EXTENSION pg_doublewrite_stats');
$node->stop;
foreach my $mode (qw(full_pages double_writes off))
{
	$node->adjust_conf('postgresql.conf', $SETTING, $mode);
	$node->append_conf('postgresql.conf',
		"test_points.await_end_of_recovery_at = 'doublewrite-update-mode'");
	$node->start;
	is( $node->safe_psql(
			'postgres',
			'SELECT in_force, requested, switching FROM pg_double_write_mode'
		),
		"$mode|$mode|f",
		"$mode from the start");
	$node->stop;
}
done_testing();
