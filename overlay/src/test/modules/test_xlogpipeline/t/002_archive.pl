
# Copyright (c) 2025, PostgreSQL Global Development Group

# Archive recovery with the WAL pipeline, and without, to each kind of target:
# same files, same messages.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary', has_archiving => 1);

$primary->backup('base');
xlp_workload($primary, 1);

# A place in the middle: after one transaction, before another
$primary->safe_psql('postgres', 'CREATE TABLE mark (step text)');
my $xid = $primary->safe_psql('postgres',
	"INSERT INTO mark VALUES ('xid') RETURNING pg_current_xact_id()");
my $time = $primary->safe_psql('postgres', 'SELECT now()');
my $lsn =
  $primary->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$primary->safe_psql(
	'postgres',
	"INSERT INTO mark VALUES ('before name');
	 SELECT pg_create_restore_point('here')");
$primary->safe_psql('postgres', "INSERT INTO mark VALUES ('after name')");
xlp_workload($primary, 2);

my $last = $primary->safe_psql('postgres',
	'SELECT pg_walfile_name(pg_current_wal_lsn())');
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->poll_query_until('postgres',
	"SELECT last_archived_wal >= '$last' FROM pg_stat_archiver")
  or die 'timed out waiting for the archive';

sub recover
{
	my ($name, $mode, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new("${name}_$mode");

	$node->init_from_backup(
		$primary, 'base',
		has_restoring => 1,
		standby => 0);
	$node->append_conf('postgresql.conf', xlp_conf($mode) . $conf);
	return $node;
}

# The server shuts down by itself, perhaps before pg_ctl looks.
sub start_and_wait_for_end
{
	my ($node) = @_;

	run_log(
		[
			'pg_ctl',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile,
			'start'
		]);
	$node->wait_for_log(qr/database system is shut down/);
	return;
}

my %targets = (
	xid => "recovery_target_xid = '$xid'",
	xid_exclusive =>
	  "recovery_target_xid = '$xid'\nrecovery_target_inclusive = off",
	time => "recovery_target_time = '$time'",
	name => "recovery_target_name = 'here'",
	lsn => "recovery_target_lsn = '$lsn'",
	lsn_exclusive =>
	  "recovery_target_lsn = '$lsn'\nrecovery_target_inclusive = off",
	immediate => "recovery_target = 'immediate'");

foreach my $target (sort keys %targets)
{
	my ($digest, $messages);

	foreach my $mode ('off', 'on')
	{
		my $node = recover(
			$target, $mode, qq{
hot_standby = off
recovery_target_action = shutdown
$targets{$target}
});

		start_and_wait_for_end($node);

		my $this_digest = xlp_digest($node);
		my $this_messages = xlp_messages($node);

		if ($mode eq 'off')
		{
			($digest, $messages) = ($this_digest, $this_messages);
			like(
				$messages,
				qr/shutdown at recovery target/,
				"$target: target reached");
		}
		else
		{
			is(xlp_differences($digest, $this_digest),
				'', "$target: same files");
			is($this_messages, $messages, "$target: same messages");
			cmp_ok(xlp_decoded($node), '>', 0,
				"$target: pipeline decoded records")
			  if $target ne 'immediate';
		}
		$node->clean_node;
	}
}

# Without a target, to the end of the archive
my %contents;
foreach my $mode ('off', 'on')
{
	my $node = recover('end', $mode, '');

	$node->start;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die;
	$contents{$mode} = $node->safe_psql(
		'postgres',
		'SELECT string_agg(step, $$,$$ ORDER BY step) FROM mark
		 UNION ALL SELECT sum(id * v)::text FROM t2');
	cmp_ok(xlp_decoded($node), '>', 0, 'end: pipeline decoded records')
	  if $mode eq 'on';
	$node->stop;
	$node->clean_node;
}
is($contents{on}, $contents{off}, 'end: same contents');

# A target that is not in the archive
foreach my $mode ('off', 'on')
{
	my $node =
	  recover('missing', $mode, "recovery_target_name = 'nowhere'\n");

	start_and_wait_for_end($node);
	ok( $node->log_contains(
			qr/FATAL: .* recovery ended before configured recovery target was reached/
		),
		"missing target, $mode: recovery fails");
	$node->clean_node;
}

# Pause at the target, look, go on to promotion
my $node = recover(
	'pause', 'on', qq{
recovery_target_name = 'here'
recovery_target_action = pause
});
$node->start;
$node->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'")
  or die;
is($node->safe_psql('postgres', 'SELECT count(*) FROM mark'),
	2, 'paused at the target');
ok( $node->poll_query_until(
		'postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'walpipeline'"
	),
	'pipeline has gone at the target');
$node->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die;
is($node->safe_psql('postgres', 'SELECT count(*) FROM mark'),
	2, 'nothing more was replayed');
$node->safe_psql('postgres', 'CREATE TABLE writable ()');
cmp_ok(xlp_decoded($node), '>', 0, 'pause: pipeline decoded records');
$node->stop;

done_testing();
