
# Copyright (c) 2025, PostgreSQL Global Development Group

# A restartpoint in crash recovery, or while a backup without a signal file is
# recovered: the oldest running transaction is not known.  The assertion that this
# violates needs a build with assertions.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

if ($ENV{enable_injection_points} ne 'yes')
{
	plan skip_all => 'Injection points not supported by this build';
}

foreach my $from ('checkpoint', 'backup')
{
	my $node = PostgreSQL::Test::Cluster->new($from);

	$node->init;
	$node->append_conf(
		'postgresql.conf', q{
shared_preload_libraries = 'test_points'
autovacuum = off
io_torn_pages_protection = full_pages
instant_recovery = off
recovery_workers = 0
});
	$node->start;
	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION test_points;
		CREATE TABLE kept (i int);
		CHECKPOINT});
	my $control = slurp_file($node->data_dir . '/global/pg_control');
	my ($state) = run_command([ 'pg_controldata', $node->data_dir ]);
	$node->safe_psql('postgres', $_)
	  foreach (
		'INSERT INTO kept VALUES (1)',
		'CHECKPOINT',
		'SELECT points_log_record()',
		# which flushes WAL
		'CREATE TABLE last ()');
	my $offset = -s $node->logfile;
	$node->stop('immediate');
	# which is logged when pg_ctl need not wait any more
	$node->wait_for_log(qr/system is shut down/, $offset);
	open(my $file, '+<:raw', $node->data_dir . '/global/pg_control')
	  or die $!;
	print $file $control;
	close $file or die $!;
	if ($from eq 'backup')
	{
		my ($checkpoint) = $state =~ /^Latest checkpoint location: +(\S+)/m;
		my ($redo, $segment) =
		  $state =~
		  /^Latest checkpoint's REDO location: +(\S+)\n.*REDO WAL file: +(\S+)/m;

		append_to_file(
			$node->data_dir . '/backup_label',
			"START WAL LOCATION: $redo (file $segment)\n"
			  . "CHECKPOINT LOCATION: $checkpoint\n"
			  . "BACKUP METHOD: copied\nBACKUP FROM: primary\n");
	}

	# redo stops at the record of the module, and the checkpointer goes on
	$offset = -s $node->logfile;
	$node->append_conf(
		'postgresql.conf', q{
test_points.hold_at = 'test-points-redo'
checkpoint_timeout = 1s
hot_standby = on
});
	my @pg_ctl = ('pg_ctl', '--pgdata' => $node->data_dir);
	run_log([ @pg_ctl, '--log' => $node->logfile, '--no-wait', 'start' ]);
	$node->wait_for_log(qr/restartpoint complete|system is shut down/,
		$offset);
	ok( $node->log_contains(qr/restartpoint complete/, $offset),
		"recovery from a $from: a restartpoint completes");
	run_log([ @pg_ctl, '--mode' => 'immediate', 'stop' ]);

	$node->append_conf('postgresql.conf', q{test_points.hold_at = ''});
	ok($node->start(fail_ok => 1), 'server starts');
	is($node->safe_psql('postgres', 'SELECT i FROM kept'),
		'1', 'nothing lost');
	$node->stop;
}

done_testing();
