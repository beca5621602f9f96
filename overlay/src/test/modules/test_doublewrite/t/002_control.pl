
# Copyright (c) 2025, PostgreSQL Global Development Group

# The control of the other tests: pages are torn as there, but nothing protects
# them, and that must be noticed.  With full-page images nothing may be.

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

# Crash in the midst of home writes, then tear all that has changed since the
# last checkpoint.
sub crash_and_tear
{
	my ($node) = @_;

	$node->start;
	dw_workload_setup($node);
	$node->stop;
	my $old = dw_snapshot($node);
	$node->start;
	my $offset = -s $node->logfile;
	dw_workload_start($node);
	$node->poll_query_until('postgres', 'SELECT count(*) > 100 FROM history')
	  or die 'workload does not work';
	$node->psql(
		'postgres',
		q{SELECT points_crash_at('doublewrite-home-written', 6)},
		on_error_die => 0);
	dw_wait_for_crash($node, $offset);
	dw_workload_finish($node);

	my $torn = dw_tear($node, $old, unlogged_too => 1);
	is($torn->{logged}, 0, 'the log is not in use');
	cmp_ok($torn->{unlogged}, '>', 10, 'pages were torn');
	return;
}

# What becomes of a cluster that is damaged
sub look_for_damage
{
	my ($node) = @_;
	my @damage;

	if (!dw_poll_start($node))
	{
		push @damage, 'server does not start';
	}
	else
	{
		my ($ret, $stdout, $stderr) = $node->psql(
			'postgres',
			'SELECT coalesce(sum(bal), 1) FROM accounts',
			on_error_die => 0);
		push @damage, "sum is " . ($ret == 0 ? $stdout : 'an error')
		  if $ret != 0 || $stdout ne '0';

		local %ENV = $node->_get_env();
		push @damage, 'amcheck'
		  unless run_log(
			[ 'pg_amcheck', '--database' => 'postgres', '--heapallindexed' ]);
		if (!$node->stop('fast', fail_ok => 1))
		{
			push @damage, 'server does not stop';
			$node->stop('immediate', fail_ok => 1);
		}
		push @damage, 'checksums'
		  if $node->{dw_checksums}
		  && !run_log([ 'pg_checksums', '--check', '-D', $node->data_dir ]);
	}
	note 'damage: ' . join(', ', @damage);
	return @damage;
}

foreach my $checksums (1, 0)
{
	my $node = dw_new_node(
		"off_$checksums",
		checksums => $checksums,
		mode => 'off');

	crash_and_tear($node);
	cmp_ok(scalar(look_for_damage($node)),
		'>', 0, "damage without protection, checksums $checksums");
	$node->clean_node;

	$node = dw_new_node(
		"full_pages_$checksums",
		checksums => $checksums,
		mode => 'full_pages');
	crash_and_tear($node);
	ok(dw_poll_start($node), 'server starts');
	dw_check($node);
	$node->clean_node;
}

done_testing();
