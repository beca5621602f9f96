# Copyright (c) 2025, PostgreSQL Global Development Group

# A fast stop during restore or crash redo leaves a cluster that has to be
# started again before anything else may be done with it.

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
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

# Start a server, until it is held or paused somewhere.
sub start_until
{
	my ($node, $name, $where) = @_;
	my $offset = -s $node->logfile;

	$node->command_ok(
		[
			'pg_ctl', 'start', '--no-wait', '--silent',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile
		],
		"$name: started");
	$node->wait_for_log(qr/$where at injection point/, $offset);
	return;
}

foreach my $case ([ 'restore', 'doublewrite-restore-run:3' ],
	[ 'redo', 'doublewrite-armed' ])
{
	my ($name, $point) = @$case;
	my $node = dw_new_node(
		$name,
		checksums => 0,
		init => { allows_streaming => 1 },
		conf => "wal_log_hints = on\n");
	my $source = PostgreSQL::Test::Cluster->new("source_$name");

	$node->start;
	dw_workload_setup($node);
	$node->backup('b');
	$source->init_from_backup($node, 'b');
	$source->start;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	dw_workload_start($node, transactions => 300);
	dw_workload_finish($node);
	$node->stop('immediate');
	dw_tear($node, $old);

	$node->append_conf('postgresql.conf', "test_points.hold_at = '$point'");
	start_until($node, $name, 'held');
	$node->command_ok(
		[
			'pg_ctl', 'stop',
			'--mode' => 'fast',
			'--pgdata' => $node->data_dir
		],
		"$name: fast stop");

	my $state = dw_control($node, 'Database cluster state');
	isnt($state, 'shut down in recovery', "$name: state is $state");
	ok(-f $node->data_dir . '/backup_label', "$name: marker is there");
	$node->command_checks_all(
		[ 'pg_checksums', '--enable', '--pgdata' => $node->data_dir ],
		1, [],
		[qr/cluster must be shut down/],
		"$name: pg_checksums refuses");
	$node->command_checks_all(
		[
			'pg_rewind', '--no-ensure-shutdown',
			'--target-pgdata' => $node->data_dir,
			'--source-server' => $source->connstr('postgres')
		],
		1,
		[],
		[qr/target server must be shut down cleanly/],
		"$name: pg_rewind refuses");

	$node->adjust_conf('postgresql.conf', 'test_points.hold_at', q{''});
	dw_start_after_crash($node);
	dw_check($node);
	$source->stop;
}

# Is there such a child of the server?
sub has_child
{
	my ($node, $title) = @_;
	my ($parent) =
	  slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	foreach my $dir (glob('/proc/[0-9]*'))
	{
		open(my $status, '<', "$dir/status") or next;
		next unless grep { /^PPid:\s+$parent$/ } <$status>;
		open(my $cmdline, '<', "$dir/cmdline") or next;
		return 1 if (<$cmdline> // '') =~ $title;
	}
	return 0;
}

# A stop is asked for when clients are about to get in before redo: workers stay until they
# have done what its checkpoint waits for, or have failed to.
foreach my $damaged (0, 1)
{
	my $name = $damaged ? 'opening, damaged' : 'opening';
	my $node = dw_quiet_node(
		"opening$damaged", conf => q{
instant_recovery = on
recovery_workers = 2
});
	my $rows = 'SELECT count(*), sum(v) FROM t';

	$node->safe_psql('postgres', $_)
	  foreach (
		'CREATE TABLE t AS SELECT g AS i, 0 AS v FROM generate_series(1, 20000) g',
		'CHECKPOINT',
		'UPDATE t SET v = i');
	my $expected = $node->safe_psql('postgres', $rows);
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	$node->stop('immediate');
	my $page = read_block($node, $path, 8192);
	write_block($node, $path, 8192, 'y' x 8192) if $damaged;

	$node->append_conf('postgresql.conf',
		"test_points.pause_at = 'instant-recovery-open'");
	start_until($node, $name, 'paused');
	# which the postmaster starts meanwhile
	watchdog_until("$name: there are workers",
		sub { has_child($node, qr/recovery worker/) });
	$node->command_ok(
		[
			'pg_ctl', 'stop', '--no-wait',
			'--mode' => 'fast',
			'--pgdata' => $node->data_dir
		],
		"$name: fast stop");
	$node->wait_for_log(qr/received fast shutdown request/);
	sleep(1);
	ok(has_child($node, qr/recovery worker/), "$name: workers stay");
	append_to_file($node->data_dir . '/test_points.resume', '');
	dw_wait_for_exit($node);
	is( dw_control($node, 'Database cluster state'),
		$damaged ? 'in production' : 'shut down',
		"$name: the server has stopped");

	$node->adjust_conf('postgresql.conf', 'test_points.pause_at', q{''});
	write_block($node, $path, 8192, $page) if $damaged;
	ok(dw_poll_start($node), "$name: started again");
	is($node->safe_psql('postgres', $rows),
		$expected, "$name: nothing is lost");
	$node->stop;
}

done_testing();
