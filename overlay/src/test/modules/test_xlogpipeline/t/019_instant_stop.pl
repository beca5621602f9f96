
# Copyright (c) 2025, PostgreSQL Global Development Group

# A fast stop between the end of analysis and the opening is put off until all pages are
# redone, whatever the checkpointer does meanwhile.  The checkpoint that follows redo is
# spread from when it can begin, not from when it was due.  A stop before that is heard.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

sub set
{
	my ($node, %settings) = @_;

	$node->append_conf('postgresql.conf', "$_ = '$settings{$_}'") foreach sort keys %settings;
	return;
}

sub pg_ctl
{
	my ($node, @arguments) = @_;

	local %ENV = $node->_get_env();
	run_log([ 'pg_ctl', '--no-wait', '--pgdata' => $node->data_dir, '--log' => $node->logfile,
			@arguments ]);
	return;
}

# Some hundred pages are changed, all of them after the last checkpoint.
sub change_and_crash
{
	my ($node) = @_;

	$node->safe_psql('postgres', $_)
	  foreach ('CHECKPOINT', 'UPDATE t SET f = f WHERE i % 8 = 1');
	$node->stop('immediate');
	return;
}

my $node = PostgreSQL::Test::Cluster->new('stop');
$node->init(allows_streaming => 1);
set($node,
	shared_preload_libraries => 'injection_points, test_doublewrite',
	autovacuum => 'off',
	shared_buffers => '32MB',
	instant_recovery => 'on',
	recovery_workers => 2,
	log_checkpoints => 'on');
$node->start;
$node->safe_psql('postgres', q{
	CREATE EXTENSION injection_points;
	CREATE TABLE t (i int, f text) WITH (fillfactor = 80);
	INSERT INTO t SELECT g, repeat('x', 600) FROM generate_series(1, 8000) g;
});

# A checkpoint is due while the startup process is about to let clients in, and waits; then
# comes the stop, of which the workers hear before pages may be redone.
change_and_crash($node);
my $offset = -s $node->logfile;
set($node,
	checkpoint_timeout => '1s',
	'test_doublewrite.fail_at' => 'instant-recovery-slowly:EIO',
	'test_doublewrite.pause_at' => 'instant-recovery-open');
pg_ctl($node, 'start');
$node->wait_for_log(qr/paused at injection point "instant-recovery-open"/, $offset);
sleep(3);
pg_ctl($node, '--mode' => 'fast', 'stop');
$node->wait_for_log(qr/received fast shutdown request/, $offset);
sleep(1);
set($node, 'test_doublewrite.pause_at' => '');
append_to_file($node->data_dir . '/test_doublewrite.resume', '');
watchdog_until('server has stopped', sub { !-e $node->data_dir . '/postmaster.pid' });

my $log = slurp_file($node->logfile, $offset);
like($log, qr/redo is complete, .* after opening/, 'stop before opening: all pages are redone');
like($log, qr/Pages redone: 0 by the startup process/, '... by the workers');
unlike($log, qr/ERROR|FATAL|could not be redone/, '... without complaints');
like(
	(run_command([ 'pg_controldata', $node->data_dir ]))[0],
	qr/cluster state: +shut down$/m,
	'... and the cluster was shut down');

# A checkpoint waits for redo longer than it may take altogether.  When it can begin, a
# checkpointer that does not get the processor has used up that time again.
set($node, checkpoint_timeout => '4s', 'test_doublewrite.fail_at' => '');
$node->start;
my $POINT = 'instant-recovery-only-demands';
my ($written, $seconds);
foreach my $attempt (1 .. 3)
{
	change_and_crash($node);
	set($node, 'test_doublewrite.fail_at' => "$POINT:EIO");
	$offset = -s $node->logfile;
	$node->start;
	$node->wait_for_log(qr/opening before redo/, $offset);
	$node->poll_query_until('postgres', q{
		SELECT count(*) = 1 FROM pg_stat_activity
			WHERE backend_type = 'checkpointer' AND wait_event = 'InstantRecoveryEnd'})
	  or die 'no checkpoint waits';
	sleep(6);
	set($node, 'test_doublewrite.fail_at' => '');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
	$node->wait_for_log(qr/checkpoint complete/, $offset);
	($written, $seconds) = slurp_file($node->logfile, $offset) =~
	  /checkpoint complete: wrote (\d+) buffers .* write=([\d.]+) s/;
	last if $seconds > 1;
}
cmp_ok($written, '>', 100, 'a checkpoint has waited for redo, and written many pages');
cmp_ok($seconds, '>', 1, '... not at once');

# A stop in what is done with all pages before clients get in; it tells how far it has come.
change_and_crash($node);
set($node,
	log_startup_progress_interval => '1ms',
	'test_doublewrite.pause_at' => 'instant-recovery-step');
$offset = -s $node->logfile;
pg_ctl($node, 'start');
$node->wait_for_log(qr/paused at injection point "instant-recovery-step"/, $offset);
pg_ctl($node, '--mode' => 'fast', 'stop');
$node->wait_for_log(qr/received fast shutdown request/, $offset);
append_to_file($node->data_dir . '/test_doublewrite.resume', '');
watchdog_until('server has stopped', sub { !-e $node->data_dir . '/postmaster.pid' });
unlike(
	slurp_file($node->logfile, $offset),
	qr/opening before redo|Pages redone/,
	'a stop is heard while pages are sorted');
$offset = -s $node->logfile;
pg_ctl($node, 'start');
# a report is due when the pause is over
$node->wait_for_log(qr/paused at injection point "instant-recovery-step"/, $offset);
append_to_file($node->data_dir . '/test_doublewrite.resume', '');
$node->wait_for_log(qr/redo is complete/, $offset);
like(
	slurp_file($node->logfile, $offset),
	qr/preparing redo of pages, elapsed time: [\d.]+ s, pages to be sorted: \d+/,
	'... of which the log tells');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 8000 FROM t'), '... and nothing is lost');
$node->_update_pid(1);
$node->stop;

done_testing();
