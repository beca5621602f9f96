
# Copyright (c) 2025, PostgreSQL Global Development Group

# A test that hangs ends, within its limits, and says which process waits for which.  This
# file is such tests, too: it calls itself to see them hang.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $hang = $ENV{DW_WATCHDOG_HANG};

# The watchdog begins when all files have been compiled.
BEGIN
{
	no warnings 'redefine';
	*PostgreSQL::Test::Watchdog::report_log = sub { die "no log today\n" }
	  if ($ENV{DW_WATCHDOG_HANG} // '') eq 'unreported';
}

# The checkpointer is going to wait for the flush lock, whose holder waits for us:
# a server that hangs.
sub make_hang
{
	my $node = dw_quiet_node('victim');

	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT 1 AS a; CHECKPOINT; UPDATE t SET a = 2');
	dw_hold_flusher($node);
	$node->safe_psql('postgres', q{SELECT dw_evict('t')});
	my $flusher = $node->background_psql('postgres');
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch();\n");
	dw_wait_until_held($node);
	return ($node, $flusher);
}

# How to hang.  Until then limits are as ever: how long it takes to get there
# depends on the machine.
my %hangs = (
	psql => sub {
		my ($node) = @_;
		watchdog_limits(wait => 20);
		$node->safe_psql('postgres', 'CHECKPOINT');
	},
	poll => sub {
		my ($node) = @_;
		watchdog_limits(wait => 5);
		$node->poll_query_until('postgres', 'SELECT false');
	},
	test => sub {
		watchdog_limits(test => 5);
		sleep(1) while 1;
	});
$hangs{unreported} = $hangs{test};

if (defined $hang)
{
	my ($node, $flusher) = make_hang();

	$hangs{$hang}->($node);
	done_testing();
	exit 0;
}

my $has_gdb = grep { -x "$_/gdb" } split(/:/, $ENV{PATH});

# Run this file as one of those: it fails and leaves no server.  Returns the
# directory of its logs, and what it has printed.
sub run_hang
{
	my ($hang) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	local %ENV = (
		%ENV,
		DW_WATCHDOG_HANG => $hang,
		TESTDATADIR => "$dir/data",
		TESTLOGDIR => "$dir/log");
	my $out = '';
	IPC::Run::run(
		[ $^X, map({ "-I$_" } @INC), $0 ],
		'<' => \undef,
		'>' => \$out,
		'2>' => \$out);

	isnt($?, 0, "$hang: the test fails");
	watchdog_until(
		"$hang: no server is left",
		sub {
			return !grep { index(readlink($_) // '', $dir) == 0 }
			  glob('/proc/[0-9]*/cwd');
		});
	return ("$dir/log", $out);
}

# The same; returns its report as an array.
sub report_of
{
	my ($hang) = @_;
	my ($dir, $out) = run_hang($hang);

	ok(-e "$dir/hang_report", "$hang: there is a report") or note $out;
	my @report = split(/\n/, slurp_file("$dir/hang_report"));
	note "$hang: $report[0]";
	like($report[1], qr/^hung after/, "$hang: says that it hung");
	like(join("\n", @report), $_, "$hang: report")
	  foreach (
		qr/^-- activity$/m,
		qr/^-- locks$/m,
		qr/^inserted /m,
		qr/^-- process \d+ \(checkpointer\)/m,
		qr/^==== end of .*victim\.log$/m);
	return @report;
}

my $held =
  qr/victim: \d+ \(.*\) at injection point doublewrite-log-synced waits/;

my @report = report_of('psql');

# Which process that is the debugger says, unless it does not get the processor: then the
# report says that it has timed out.
my @holders;
push @holders, qr/\d+ \(.*\) at injection point doublewrite-log-synced/
  if $has_gdb;
push @holders, qr/an unknown process/
  if !$has_gdb || grep { /\(gdb:/ } @report;
my $holder = join('|', @holders);
like(
	$report[0],
	qr/victim: \d+ \(checkpointer.*\) waits for DoubleWriteFlush, held by (?:$holder)/,
	'psql: which process waits for which');
like($report[0], $held, 'psql: and what for');
like($report[1], qr/in psql to "victim": CHECKPOINT/, 'psql: what hung');

@report = report_of('poll');
like($report[0], $held, 'poll: which process waits');
like(
	$report[1],
	qr/waiting for "t" from "victim": SELECT false/,
	'poll: what hung');

@report = report_of('test');
like($report[0], $held, 'test: which process waits');
like($report[1], qr/hung after \d+ s in all/, 'test: what hung');

# A watchdog that fails to write its report ends the test nevertheless.
run_hang('unreported');

# Processes come and go while one is being written.
like(
	join(
		'; ',
		PostgreSQL::Test::Watchdog::waits(
			{
				blocked => [],
				title => {},
				at => { 1 => 'point' },
				waits_for => { 2 => 'lock' },
				holds => { lock => { 1 => 1 } }
			})),
	qr/^2 \(a new process\) waits for lock, held by 1 \(a new process\) at injection point point; 1 .* waits$/,
	'processes that are new');
{
	no warnings 'redefine';
	local *PostgreSQL::Test::Watchdog::read_proc = sub { return '' };

	is_deeply([ PostgreSQL::Test::Watchdog::descendants($$) ],
		[], 'processes that are gone');
}

done_testing();
