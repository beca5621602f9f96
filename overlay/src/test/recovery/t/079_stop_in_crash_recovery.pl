
# Copyright (c) 2025, PostgreSQL Global Development Group

# A fast stop in the middle of crash recovery leaves a cluster that has not been shut
# down: programs that want that must not touch it, and the next start recovers it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

if ($ENV{enable_injection_points} ne 'yes')
{
	plan skip_all => 'Injection points not supported by this build';
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'test_points'
autovacuum = off
});
$node->start;
$node->safe_psql('postgres', $_)
  foreach (
	'CREATE EXTENSION test_points',
	'CHECKPOINT',
	'CREATE TABLE kept AS SELECT 1 AS i',
	'SELECT points_log_record()',
	# which flushes WAL
	'CREATE TABLE last ()');
my $offset = -s $node->logfile;
$node->stop('immediate');
# which is logged when pg_ctl need not wait any more
$node->wait_for_log(qr/system is shut down/, $offset);

# redo is held at the record of the module
$node->append_conf('postgresql.conf',
	q{test_points.hold_at = 'test-points-redo'});
my @pg_ctl = ('pg_ctl', '--pgdata' => $node->data_dir);
$offset = -s $node->logfile;
command_ok([ @pg_ctl, '--log' => $node->logfile, '--no-wait', 'start' ],
	'start');
$node->wait_for_log(qr/held at injection point "test-points-redo"/, $offset);
command_ok([ @pg_ctl, '--mode' => 'fast', 'stop' ], 'fast stop');

my ($control) = run_command([ 'pg_controldata', $node->data_dir ]);
like(
	$control,
	qr/^Database cluster state: +in crash recovery$/m,
	'the state is that of crash recovery');
command_checks_all(
	[ 'pg_checksums', '--check', '--pgdata' => $node->data_dir ],
	1, [],
	[qr/cluster must be shut down/],
	'pg_checksums refuses');

$node->append_conf('postgresql.conf', q{test_points.hold_at = ''});
$offset = -s $node->logfile;
$node->start;
ok( $node->log_contains(
		qr/database system was interrupted while in recovery/, $offset),
	'the next start knows');
is($node->safe_psql('postgres', 'SELECT i FROM kept'), '1', 'nothing lost');
$node->stop;

done_testing();
