
# Copyright (c) 2025, PostgreSQL Global Development Group

# Crash recovery that can be watched: in the server log, in a file, and by
# clients that are refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->append_conf('postgresql.conf', xlp_wait_conf());
$primary->restart;
$primary->safe_psql('postgres', 'CREATE EXTENSION test_points');
xlp_workload($primary, $_) foreach (1 .. 2);
foreach my $from (100000, 150000)
{
	# redo of which may pause
	$primary->safe_psql('postgres', 'SELECT points_log_record()');
	$primary->safe_psql('postgres',
		"INSERT INTO t1 SELECT $from + i, i FROM generate_series(1, 50000) i"
	);
}
my ($redo, $end) = split(
	/\|/,
	$primary->safe_psql(
		'postgres',
		"SELECT redo_lsn - '0/0'::pg_lsn, pg_current_wal_flush_lsn() - '0/0'::pg_lsn
		 FROM pg_control_checkpoint()"));
xlp_crash($primary, 'crashed');

sub copy
{
	my ($name, $mode, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, 'crashed');
	$node->append_conf('postgresql.conf',
		xlp_conf($mode) . "log_startup_progress_interval = 1ms\n$conf");
	return $node;
}

# What a file or message says about the end must be within a page.
sub check_end
{
	my ($lsn, $what) = @_;
	my ($high, $low) = split(/\//, $lsn);
	my $distance = hex($high) * 2**32 + hex($low) - $end;

	ok($distance >= 0 && $distance <= 8192, "$what: end of WAL is known");
	return;
}

# Redo pauses twice, for longer than the interval: a report is due then.
sub start_with_pauses
{
	my ($node) = @_;
	my $resume = $node->data_dir . '/test_points.resume';

	$node->append_conf('postgresql.conf',
		"test_points.pause_at = 'test-points-redo:1:2'");
	xlp_start_no_wait($node);
	foreach my $pauses (1 .. 2)
	{
		$node->wait_for_log(qr/(?:paused at.*){$pauses}/s);
		append_to_file($resume, '');
		watchdog_until('redo goes on', sub { !-e $resume });
	}
	$node->wait_for_log(qr/database system is ready to accept connections/);
	$node->_update_pid(1);
	$node->append_conf('postgresql.conf', "test_points.pause_at = ''");
	return;
}

foreach my $mode ('off', 'on')
{
	my $node = copy("log_$mode", $mode, '');

	start_with_pauses($node);
	my @percent = slurp_file($node->logfile) =~
	  /redo in progress, .*, (\d+)% of WAL replayed, \d+ MB left/g;
	my @sorted = sort { $a <=> $b } @percent;

	cmp_ok(scalar(@percent), '>', 1, "$mode: progress is in the server log");
	is("@percent", "@sorted", "$mode: it does not go back");
	cmp_ok($percent[-1], '<=', 100, "$mode: and not beyond the end");
	like(
		slurp_file($node->logfile),
		qr/ [1-9]\d?% of WAL replayed, \d+ MB left, [\d.]+ MB\/s, about [\d.]+ s to go\n/,
		"$mode: with speed and time left");
	ok(!-e $node->data_dir . '/recovery_progress',
		"$mode: no file after recovery");

	# a crash may have left one half-way, and the next start may write none
	$node->stop('immediate');
	append_to_file($node->data_dir . '/recovery_progress.tmp', 'lsn = ');
	$node->append_conf('postgresql.conf',
		'log_startup_progress_interval = 0');
	$node->start;
	ok(!-e $node->data_dir . '/recovery_progress.tmp',
		"$mode: nor what was left of one");
	$node->stop;
	$node->clean_node;
}

# The file: look at it after a crash in the middle of redo.
# Before that it is due, after a pause that ends by itself.
my $node = copy('file', 'small',
		"test_points.crash_at = 'xlogpipeline-taken-back:10'\n"
	  . "test_points.pause_at = 'xlogpipeline-engage:5'\n");
append_to_file($node->data_dir . '/test_points.resume', '');
my $file = $node->data_dir . '/recovery_progress';
run_log(
	[
		'pg_ctl',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'start'
	]);
my $content = slurp_file($file);
note $content;
my %fields = $content =~ /^(\w+) = (\S+)$/mg;
is( join(' ', sort keys %fields),
	'bytes_left bytes_per_second end_lsn lsn percent seconds_left',
	'file has all fields');
check_end($fields{end_lsn}, 'file');
cmp_ok($fields{percent}, '<', 100, 'file: not at the end');
cmp_ok($fields{bytes_left}, '<', $end - $redo + 8192, 'file: bytes left');
cmp_ok(
	abs($fields{seconds_left} -
		  $fields{bytes_left} / ($fields{bytes_per_second} || 1)),
	'<=', 1,
	'file: seconds left at the speed until now') if $fields{percent} > 0;

# A client that comes too early: redo is held for it.
$node = copy('client', 'small',
	"hot_standby = on\ntest_points.hold_at = 'xlogpipeline-taken-back:10'\n");
xlp_start_held($node, 'xlogpipeline-taken-back');
my $message = xlp_refusal($node);
run_log(
	[
		'pg_ctl',
		'--pgdata' => $node->data_dir,
		'--mode' => 'immediate',
		'stop'
	]);
like(
	$message,
	qr/the database system is not yet accepting connections\n.*: \d+% of WAL replayed, \d+ MB left/,
	'refused client is told about progress');

done_testing();
