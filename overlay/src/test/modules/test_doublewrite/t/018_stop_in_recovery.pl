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
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

sub state_of
{
	my ($node) = @_;
	my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $stdout =~ /^Database cluster state: +(.*)$/m ? $1 : die 'no state';
}

foreach my $case (
	[ 'restore', 'doublewrite-restore-run:3' ],
	[ 'redo', 'doublewrite-armed' ])
{
	my ($name, $point) = @$case;
	my $node = dw_new_node($name,
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

	$node->append_conf('postgresql.conf', "test_doublewrite.hold_at = '$point'");
	my $offset = -s $node->logfile;
	$node->command_ok([
			'pg_ctl', 'start', '--no-wait', '--silent',
			'--pgdata' => $node->data_dir, '--log' => $node->logfile ],
		"$name: started");
	$node->wait_for_log(qr/held at injection point/, $offset);
	$node->command_ok([ 'pg_ctl', 'stop', '--mode' => 'fast', '--pgdata' => $node->data_dir ],
		"$name: fast stop");

	isnt(state_of($node), 'shut down in recovery', "$name: state is " . state_of($node));
	ok(-f $node->data_dir . '/backup_label', "$name: marker is there");
	$node->command_checks_all([ 'pg_checksums', '--enable', '--pgdata' => $node->data_dir ],
		1, [], [ qr/cluster must be shut down/ ], "$name: pg_checksums refuses");
	$node->command_checks_all([
			'pg_rewind', '--no-ensure-shutdown',
			'--target-pgdata' => $node->data_dir,
			'--source-server' => $source->connstr('postgres') ],
		1, [], [ qr/target server must be shut down cleanly/ ],
		"$name: pg_rewind refuses");

	$node->adjust_conf('postgresql.conf', 'test_doublewrite.hold_at', q{''});
	dw_start_after_crash($node);
	dw_check($node);
	$source->stop;
}

done_testing();
