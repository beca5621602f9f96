
# Copyright (c) 2025, PostgreSQL Global Development Group

# Crash a server under load at each step of the write-back, tear the pages
# that the crash may have torn, and see whether anything is lost.

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

# What to do at each point: its name, which hit crashes, and
#	log			damage of the newest batch, which has not been synced
#	checkpoint	run a checkpoint meanwhile
#	unlogged	pages that bypass the log may be torn, too: nothing has been
#				synced since the server was started, with a larger log
#	nothing		the crash leaves nothing that can be torn
my @points = (
	[ 'page-staged', 400, unlogged => 1 ],
	[ 'log-written', 5, log => 'header', unlogged => 1 ],
	[ 'log-written', 6, log => 'pages' ],
	[ 'log-written', 7, log => 'all' ],
	[ 'log-synced', 6, unlogged => 1 ],
	[ 'home-run-written', 100, unlogged => 1 ],
	[ 'home-written', 6, unlogged => 1 ],
	[ 'sync-cycle', 1 ],
	[ 'sync-cycle-synced', 1 ],
	[ 'before-low-water', 1 ],
	[ 'after-low-water', 1 ],
	[ 'checkpoint-drained', 1, checkpoint => 1 ],
	[ 'before-low-water', 1, checkpoint => 1 ],
	[ 'checkpoint-marked', 1, checkpoint => 1 ]);

# Run the workload into a crash, which "arrange" brings about, after "before", if any.
# Returns how many transactions were acknowledged.
sub crash_under_load
{
	my ($node, $arrange, $before) = @_;

	$node->start;
	$before->($node) if $before;
	my $offset = -s $node->logfile;
	dw_workload_start($node);
	$arrange->();
	dw_wait_for_crash($node, $offset);
	return dw_workload_finish($node);
}

sub crash_at
{
	my ($node, $point, $nth) = @_;

	dw_psql_until_crash($node,
		"SELECT public.points_crash_at('doublewrite-$point', $nth)");
	return;
}

# The same where nothing may have been synced before: there must be no sync cycle, however
# long it takes to set the point.
sub crash_before_cycle
{
	my ($node, $point, $nth, $before) = @_;

	$node->append_conf('postgresql.conf', 'double_write_buffer_size = 64MB');
	crash_under_load(
		$node,
		sub { },
		sub {
			$before->($node) if $before;
			crash_at($node, $point, $nth);
		});
	$node->append_conf('postgresql.conf', 'double_write_buffer_size = 16MB');
	return;
}

# Send home pages that the log has no copies of, as redo rebuilds them; the
# workload alone may have written none before it crashes.
sub write_new_pages
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE extended AS SELECT * FROM accounts LIMIT 300;
		SELECT dw_evict_all()});
	return;
}

sub test_point
{
	my ($node, $point, $nth, %params) = @_;
	my $new_pages = $point eq 'page-staged';
	my $old = dw_snapshot($node);

	note "crash at $point"
	  . ($params{checkpoint} ? ' of a checkpoint'     : '')
	  . ($params{log}        ? ", lost: $params{log}" : '');
	if ($params{unlogged})
	{
		crash_before_cycle($node, $point, $nth,
			$new_pages ? \&write_new_pages : undef);
	}
	else
	{
		my $acknowledged = crash_under_load(
			$node,
			sub {
				dw_wait_for_history($node);
				crash_at($node, $point, $nth);
				dw_psql_until_crash($node, 'CHECKPOINT')
				  if $params{checkpoint};
			});
		cmp_ok($acknowledged, '>', 0, 'transactions were acknowledged');
	}

	dw_tear_log_tail($node, $params{log}) if $params{log};
	my $torn = dw_tear($node, $old, unlogged_too => $params{unlogged});
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn')
	  unless $point eq 'after-low-water' || $point eq 'checkpoint-marked';
	cmp_ok($torn->{unlogged}, '>', 0, 'pages that redo rebuilds were torn')
	  if $new_pages;
	dw_start_after_crash($node, $torn);
	$node->safe_psql('postgres', 'DROP TABLE extended') if $new_pages;
	dw_check($node);
	return;
}

# The checkpointer has freed the log, but pg_control still names the old redo
# pointer; pages go on being written.
sub test_held_checkpoint
{
	my ($node) = @_;
	my $old = dw_snapshot($node);
	my $point = 'doublewrite-checkpoint-marked';

	note "crash while a checkpoint is between mark and record";
	crash_under_load(
		$node,
		sub {
			dw_wait_for_history($node);
			$node->safe_psql('postgres',
				"SELECT injection_points_attach('$point', 'wait')");
			my $psql = $node->background_psql('postgres', on_error_stop => 0);
			$psql->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
			$node->wait_for_event('checkpointer', $point);
			crash_at($node, 'log-synced', 8);
			dw_wait_for_exit($node);
			$psql->{run}->finish;
		});

	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
	dw_start_after_crash($node, $torn);
	dw_check($node);
	return;
}

# A crash soon after a checkpoint: its copies are stale, the new ones are not.
sub test_after_checkpoint
{
	my ($node) = @_;
	my $old;

	note "crash after a checkpoint, with an index built since";
	crash_under_load(
		$node,
		sub {
			dw_wait_for_history($node);
			$node->safe_psql('postgres', 'CHECKPOINT');
			dw_psql_until_crash(
				$node, q{
				CREATE TABLE copied AS SELECT * FROM accounts;
				CREATE INDEX ON copied (id);
				SELECT dw_evict_all();
				SELECT points_crash_at('doublewrite-log-synced', 4)});
		});

	my $torn = dw_tear($node, {}, only => qr/^base/);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
	dw_start_after_crash($node, $torn);
	$node->safe_psql('postgres', 'DROP TABLE copied');
	dw_check($node);
	return;
}

# Crash in start-up, for the next start to find.
sub crash_in_startup
{
	my ($node, $old, $point, $nth, $log) = @_;
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf',
		"test_points.crash_at = 'doublewrite-$point:$nth'");
	ok(!dw_poll_start($node), 'server does not start');
	dw_wait_for_crash($node, $offset);
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''");
	dw_tear_log_tail($node, $log) if $log;
	return dw_tear($node, $old);
}

# Crashes during restore, two in a row
sub test_nested_restore
{
	my ($node) = @_;
	my $old = dw_snapshot($node);

	note "crashes during restore";
	crash_before_cycle($node, 'home-run-written', 60);
	my $torn = dw_tear($node, $old, unlogged_too => 1);
	cmp_ok($torn->{logged}, '>', 10, 'pages were torn');

	$torn = crash_in_startup($node, $old, 'restore-run', 5);
	cmp_ok($torn->{logged}, '>', 10, 'pages were torn again');
	$torn = crash_in_startup($node, $old, 'restored', 1);
	cmp_ok($torn->{logged}, '>', 10, 'pages were torn again');

	# then nothing is live
	foreach my $point ('old-log-ended', 'before-low-water')
	{
		$torn = crash_in_startup($node, $old, $point, 1);
		is($torn->{logged}, 0,
			"$point: no page in the log is needed any more");
	}

	dw_start_after_crash($node, $torn);
	dw_check($node);
	return;
}

# Crashes during redo, which has so few buffers that it evicts all the time
sub test_nested_redo
{
	my ($node) = @_;
	my $old = dw_snapshot($node);

	note "crashes during redo";
	crash_before_cycle($node, 'log-synced', 24);
	my $torn = dw_tear($node, $old, unlogged_too => 1);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');

	$node->append_conf('postgresql.conf',
		"shared_buffers = 128kB\ndouble_write_stage_size = 128kB");
	foreach my $crash (
		[ 'log-written', 1, 'header' ],    # the batch that empties the log
		[ 'log-written', 5, 'pages' ],
		[ 'log-synced', 4 ],
		# not so late that redo ends before, on a slow machine
		[ 'home-run-written', 30 ],
		[ 'page-staged', 60 ])
	{
		my ($point, $nth, $log) = @$crash;

		$torn = crash_in_startup($node, $old, $point, $nth, $log);

		# pages may be staged again and again before any is in the log
		cmp_ok($torn->{logged}, '>', 0, 'pages were torn again')
		  if $point ne 'page-staged';
	}
	dw_start_after_crash($node, $torn);
	$node->append_conf('postgresql.conf',
		"shared_buffers = 1MB\ndouble_write_stage_size = 512kB");
	dw_check($node);
	return;
}

foreach my $checksums (1, 0)
{
	my $node = dw_new_node("checksums_$checksums", checksums => $checksums);

	# A sync cycle is due when a thousand different pages have been logged.
	$node->start;
	dw_workload_setup($node, accounts => 40000);
	$node->stop;
	foreach my $point (@points)
	{
		test_point($node, @$point);
	}
	test_held_checkpoint($node);
	test_after_checkpoint($node);
	test_nested_restore($node);
	test_nested_redo($node);
}

done_testing();
