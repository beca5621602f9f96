
# Copyright (c) 2025, PostgreSQL Global Development Group

# Primary and standby in every combination of modes: crash of the standby
# while it replays and in restartpoints, promotion, and crash after that.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';

sub same_as_primary
{
	my ($primary, $standby, $test_name) = @_;

	$primary->wait_for_replay_catchup($standby);
	is(dw_contents($standby), dw_contents($primary),
		"$test_name: same data as on the primary");
	return;
}

# Make a restartpoint of the standby, and remember the files as they are then.
sub restartpoint
{
	my ($primary, $standby) = @_;

	dw_restartpoint($primary, $standby);
	return dw_snapshot($standby);
}

# Tear what may be torn since the snapshot: pages in the log and, as there was
# no checkpoint and no sync cycle, all pages that need no copy there.  Free
# space maps are not redone from WAL, and are only safe in double_writes.
sub tear
{
	my ($node, $old, $protected) = @_;

	return undef if !$protected;
	my $torn = dw_tear(
		$node, $old,
		unlogged_too => 1,
		only => qr/^(?!.*_fsm)/);
	cmp_ok($torn->{logged} + $torn->{unlogged}, '>', 0, 'pages were torn');
	return $torn;
}

sub marker_is
{
	my ($node, $expected, $test_name) = @_;

	is(-f $node->data_dir . "/$MARKER" ? 1 : 0, $expected, $test_name);
	return;
}

sub crash_in_replay
{
	my ($primary, $standby, $armed, $protected) = @_;
	my $old = restartpoint($primary, $standby);

	dw_workload_start($primary);
	dw_wait_for_pages($standby, 200);
	$standby->stop('immediate');
	marker_is($standby, $armed, 'marker while the log is in use');
	dw_start_after_crash($standby, tear($standby, $old, $protected));
	dw_wait_for_pages($standby, 50);
	dw_workload_stop($primary);
	same_as_primary($primary, $standby, 'crash in replay');
	return;
}

sub crash_at_point
{
	my ($primary, $standby, $point, $nth) = @_;
	my $old = restartpoint($primary, $standby);
	my $offset = -s $standby->logfile;

	note "crash at $point";
	if ($point =~ /^checkpoint/)
	{
		dw_workload_start($primary, transactions => 300);
		dw_workload_finish($primary);
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->psql('postgres',
			"SELECT points_crash_at('doublewrite-$point', $nth)");
		$standby->psql('postgres', 'CHECKPOINT');
		dw_wait_for_crash($standby, $offset);
	}
	else
	{
		$standby->psql('postgres',
			"SELECT points_crash_at('doublewrite-$point', $nth)");
		dw_workload_start($primary, transactions => 300);
		dw_wait_for_crash($standby, $offset);
		dw_workload_finish($primary);
	}
	dw_start_after_crash($standby, dw_tear($standby, $old));
	same_as_primary($primary, $standby, "crash at $point");
	return;
}

# Promote, write, and crash before the first checkpoint of the new primary is
# complete: recovery begins at the last restartpoint.
sub crash_after_promotion
{
	my ($primary, $standby, $armed, $protected) = @_;

	# The first checkpoint must have something to do, so that it takes a while.
	$standby->append_conf('postgresql.conf', 'bgwriter_lru_maxpages = 0');
	$standby->reload;
	my $old = restartpoint($primary, $standby);

	dw_workload_start($primary, transactions => 100);
	dw_workload_finish($primary);
	$primary->wait_for_replay_catchup($standby);

	my $offset = -s $standby->logfile;
	$standby->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-checkpoint-scanned', 'wait')}
	);
	is($standby->safe_psql('postgres', 'SELECT pg_promote()'),
		't', 'promotion');
	$standby->{$_} = $primary->{$_} for qw(dw_script dw_run);
	$standby->{dw_acked} = { %{ $primary->{dw_acked} } };
	dw_workload_start($standby);
	dw_wait_for_pages($standby, 300);
	$standby->stop('immediate');
	dw_workload_finish($standby);
	unlike(
		slurp_file($standby->logfile, $offset),
		qr/LOG:  checkpoint complete/,
		'no checkpoint was completed');
	marker_is($standby, $armed, 'marker after promotion');
	dw_start_after_crash($standby, tear($standby, $old, $protected));
	dw_check($standby);
	return;
}

sub test_standby
{
	my ($primary, $mode, $standby_mode) = @_;
	my $lacks_images = $mode ne 'full_pages';
	my $armed =
	  ($standby_mode eq 'double_writes'
		  || ($standby_mode eq 'full_pages' && $lacks_images)) ? 1 : 0;
	my $standby = PostgreSQL::Test::Cluster->new("${mode}_$standby_mode");

	note "primary in $mode, standby in $standby_mode";
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf',
		"checkpoint_completion_target = 0.9\n");
	$standby->adjust_conf('postgresql.conf', 'io_torn_pages_protection',
		$standby_mode);
	$standby->{dw_checksums} = 1;
	$standby->start;

	crash_in_replay($primary, $standby, $armed, $armed || !$lacks_images);
	my $says = slurp_file($standby->logfile) =~
	  /LOG:  using double writes because the WAL being replayed lacks full-page images\n.*HINT:/;
	is( $says                                   ? 1 : 0,
		$armed && $standby_mode eq 'full_pages' ? 1 : 0,
		'the standby says so if it uses double writes by itself');

	if ($mode eq 'double_writes' && $armed)
	{
		crash_at_point($primary, $standby, 'log-synced', 3);
		crash_at_point($primary, $standby, 'home-written', 3);
		crash_at_point($primary, $standby, 'checkpoint-drained', 1);
		crash_at_point($primary, $standby, 'checkpoint-marked', 1);
	}

	# clean shutdown, though there may be nothing for a restartpoint
	dw_workload_start($primary, transactions => 50);
	dw_workload_finish($primary);
	$primary->wait_for_replay_catchup($standby);
	$standby->stop;
	marker_is($standby, 0, 'clean shutdown leaves no marker');
	$standby->command_ok(
		[ 'pg_checksums', '--check', '-D', $standby->data_dir ],
		'checksums are right');
	$standby->start;
	same_as_primary($primary, $standby, 'clean restart');

	crash_after_promotion($primary, $standby, $armed,
		$armed || ($standby_mode eq 'full_pages'));
	$standby->clean_node;
	return;
}

for my $mode ('double_writes', 'full_pages', 'off')
{
	my $primary = dw_new_node(
		"primary_$mode",
		mode => $mode,
		init => { allows_streaming => 1 },
		conf => "wal_log_hints = off\n"
		  . "wal_keep_size = 1GB\n"
		  . "double_write_buffer_size = 1GB\n");

	$primary->start;
	dw_workload_setup($primary);
	$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);

	test_standby($primary, $mode, $_)
	  for ('double_writes', 'full_pages', 'off');

	dw_check_history($primary);
	$primary->stop;
	$primary->clean_node;
}

done_testing();
