
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

	$node->append_conf('postgresql.conf', "$_ = '$settings{$_}'")
	  foreach sort keys %settings;
	return;
}

# Does a process of the server say that of itself?
sub has_process
{
	my ($node, $title) = @_;
	my ($postmaster) =
	  slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	return
	  grep { PostgreSQL::Test::Watchdog::read_proc($_, 'cmdline') =~ $title }
	  PostgreSQL::Test::Watchdog::descendants($postmaster);
}

sub pg_ctl
{
	my ($node, @arguments) = @_;

	local %ENV = $node->_get_env();
	run_log(
		[
			'pg_ctl', '--no-wait',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile,
			@arguments
		]);
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
	shared_preload_libraries => 'injection_points, test_points',
	autovacuum => 'off',
	shared_buffers => '32MB',
	instant_recovery => 'on',
	recovery_workers => 2,
	log_checkpoints => 'on');
$node->start;
$node->safe_psql(
	'postgres', q{
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
	'test_points.fail_at' => 'instant-recovery-slowly:EIO',
	'test_points.pause_at' => 'instant-recovery-open');
pg_ctl($node, 'start');
$node->wait_for_log(qr/paused at injection point "instant-recovery-open"/,
	$offset);
watchdog_until('there are workers',
	sub { has_process($node, qr/recovery worker/) });
sleep(3);
pg_ctl($node, '--mode' => 'fast', 'stop');
$node->wait_for_log(qr/received fast shutdown request/, $offset);
sleep(1);
set($node, 'test_points.pause_at' => '');
append_to_file($node->data_dir . '/test_points.resume', '');
watchdog_until('server has stopped',
	sub { !-e $node->data_dir . '/postmaster.pid' });

my $log = slurp_file($node->logfile, $offset);
like(
	$log,
	qr/redo is complete, .* after opening/,
	'stop before opening: all pages are redone');
like($log, qr/Pages redone: 0 by the startup process/, '... by the workers');
unlike($log, qr/ERROR|FATAL|could not be redone/, '... without complaints');
like(
	(run_command([ 'pg_controldata', $node->data_dir ]))[0],
	qr/cluster state: +shut down$/m,
	'... and the cluster was shut down');

# A checkpoint waits for redo longer than it may take altogether, by a clock that is an hour
# slow until then.  The checkpointer, which goes on with its duties meanwhile, switches WAL
# when it meets the new time.
set($node,
	checkpoint_timeout => '30min',
	archive_timeout => '30min',
	'test_points.fail_at' => '');
$node->start;
SKIP:
{
	my ($library) = run_command([ 'pg_config', '--pkglibdir' ]);
	$library .= '/test_doublewrite_clock.so';
	skip('no library that could stand for the clock') unless -e $library;

	my $POINT = 'instant-recovery-only-demands';
	my $checkpointer =
	  q{FROM pg_stat_activity WHERE backend_type = 'checkpointer'};
	my $done = 'SELECT num_done FROM pg_stat_checkpointer';

	change_and_crash($node);
	set($node, 'test_points.fail_at' => "$POINT:EIO");
	append_to_file($node->data_dir . '/test_doublewrite.clock_back', '');
	{
		local $ENV{LD_PRELOAD} = $library;
		$node->start;
	}
	$node->poll_query_until('postgres',
		"SELECT wait_event = 'InstantRecoveryEnd' $checkpointer")
	  or die 'no checkpoint waits';
	my $before = $node->safe_psql('postgres', $done);
	my $segment = $node->safe_psql(
		'postgres', q{
		SELECT pg_walfile_name(pg_logical_emit_message(true, 'test', ''))});
	unlink($node->data_dir . '/test_doublewrite.clock_back')
	  or die "no clock: $!";
	$node->poll_query_until('postgres',
		"SELECT pg_walfile_name(pg_logical_emit_message(false, 'test', '')) > '$segment'"
	) or die 'no other time';
	set($node, 'test_points.fail_at' => '');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
	$node->poll_query_until('postgres',
		"SELECT wait_event = 'CheckpointWriteDelay' OR ($done) > $before $checkpointer"
	) or die 'no checkpoint';
	is($node->safe_psql('postgres', $done),
		$before, 'a checkpoint that has waited for redo takes its time');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->stop;
	set($node, archive_timeout => 0);
	$node->start;
}

# A stop in what is done with all pages before clients get in; it tells how far it has come.
change_and_crash($node);
set($node,
	log_startup_progress_interval => '1ms',
	'test_points.pause_at' => 'instant-recovery-step');
$offset = -s $node->logfile;
pg_ctl($node, 'start');
$node->wait_for_log(qr/paused at injection point "instant-recovery-step"/,
	$offset);
pg_ctl($node, '--mode' => 'fast', 'stop');
$node->wait_for_log(qr/received fast shutdown request/, $offset);
append_to_file($node->data_dir . '/test_points.resume', '');
watchdog_until('server has stopped',
	sub { !-e $node->data_dir . '/postmaster.pid' });
unlike(
	slurp_file($node->logfile, $offset),
	qr/opening before redo|Pages redone/,
	'a stop is heard while pages are sorted');

# Start, and pause at that point
sub start_with_pause
{
	$offset = -s $node->logfile;
	pg_ctl($node, 'start');
	$node->wait_for_log(qr/paused at injection point "instant-recovery-step"/,
		$offset);
	append_to_file($node->data_dir . '/test_points.resume', '');
	return;
}

# WAL might not be durable that this recovery has relied on
start_with_pause();
$node->wait_for_log(qr/checkpoint starting: end-of-recovery/, $offset);
$node->wait_for_log(qr/ready to accept connections/, $offset);
$node->_update_pid(1);

# a report is due when the pause is over
change_and_crash($node);
start_with_pause();
$node->wait_for_log(qr/redo is complete/, $offset);
like(
	slurp_file($node->logfile, $offset),
	qr/preparing redo of pages, elapsed time: [\d.]+ s, pages to be sorted: \d+/,
	'... of which the log tells');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 8000 FROM t'),
	'... and nothing is lost');
$node->_update_pid(1);
$node->stop;

done_testing();
