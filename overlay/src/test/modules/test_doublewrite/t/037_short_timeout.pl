
# Copyright (c) 2025, PostgreSQL Global Development Group

# A checkpoint_timeout that is shorter than the time after which a restartpoint is tried
# again: the last checkpoint is not in the future.  And restartpoints in crash recovery.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $node = dw_new_node('main', init => { allows_streaming => 1 });
$node->start;
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
checkpoint_timeout = 1s
checkpoint_warning = 1h
max_wal_size = 32MB
log_min_messages = debug2
});
$standby->start;
$node->wait_for_catchup($standby);

# There is no checkpoint to make a restartpoint of.
$standby->wait_for_log(qr/skipping restartpoint/);

# After the promotion WAL asks for a checkpoint before the first one can begin.
my @stopped = dw_stop_processes($standby, 'checkpointer');
$standby->promote;
$standby->safe_psql('postgres',
	"SELECT pg_logical_emit_message(true, 'test', 'm'); SELECT pg_switch_wal()"
) foreach (1 .. 4);
kill('CONT', @stopped);
my $message =
  qr/checkpoints are occurring too frequently \((-?\d+) seconds? apart\)/;
$standby->wait_for_log($message);
my ($seconds) = slurp_file($standby->logfile) =~ $message;
cmp_ok($seconds, '>=', 0, "checkpoints are $seconds s apart");
$standby->stop;
$node->stop;

# A restartpoint in crash recovery, or while a backup without a signal file is
# recovered: the oldest running transaction is not known.  The assertion that this
# violates needs a build with assertions.
foreach my $from ('checkpoint', 'backup')
{
	my $node = dw_new_node("restartpoint_$from", mode => 'full_pages');

	$node->start;
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE kept(i int);
		CREATE TABLE gone(i int);
		CHECKPOINT});
	my $control = slurp_file($node->data_dir . '/global/pg_control');
	my ($state) = run_command([ 'pg_controldata', $node->data_dir ]);
	$node->safe_psql('postgres', 'INSERT INTO kept VALUES (1); CHECKPOINT');
	$node->safe_psql('postgres', 'DROP TABLE gone');
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

	# redo stops when it drops the table, and the checkpointer goes on
	$offset = -s $node->logfile;
	$node->append_conf(
		'postgresql.conf', q{
test_doublewrite.hold_at = 'doublewrite-relations-discarded'
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

	$node->append_conf('postgresql.conf', q{test_doublewrite.hold_at = ''});
	ok(dw_poll_start($node), 'server starts');
	is($node->safe_psql('postgres', 'SELECT i FROM kept'),
		'1', 'nothing lost');
	$node->stop;
}

done_testing();
