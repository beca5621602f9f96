
# Copyright (c) 2026, PostgreSQL Global Development Group

# A test that hangs ends, within its limits, and says who waits for whom.  This
# file is such tests, too: it calls itself to see them hang.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

# The checkpointer waits for the flush lock, which somebody holds who waits for
# us: a server that hangs.
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

my %hangs = (
	psql => sub { my ($node) = @_; $node->safe_psql('postgres', 'CHECKPOINT') },
	poll => sub {
		my ($node) = @_;
		$node->poll_query_until('postgres', 'SELECT false');
	},
	test => sub { sleep(1) while 1 });

if (defined(my $hang = $ENV{DW_WATCHDOG_HANG}))
{
	my ($node, $flusher) = make_hang();

	$hangs{$hang}->($node);
	done_testing();
	exit 0;
}

my $has_gdb = grep { -x "$_/gdb" } split(/:/, $ENV{PATH});

# Run this file as one of those; returns its status, and its report as an array.
sub run_hang
{
	my ($hang, $slowness) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	local %ENV = (
		%ENV,
		DW_WATCHDOG_HANG => $hang,
		PGDW_TEST_SLOWNESS => $slowness,
		TESTDATADIR => "$dir/data",
		TESTLOGDIR => "$dir/log");
	my $out = '';
	IPC::Run::run([ $^X, map({ "-I$_" } @INC), $0 ],
		'<' => \undef, '>' => \$out, '2>' => \$out);
	my $status = $?;
	my @left = grep { index(readlink($_) // '', $dir) == 0 }
	  glob('/proc/[0-9]*/cwd');

	isnt($status, 0, "$hang: the test fails");
	is(scalar(@left), 0, "$hang: no server is left");
	ok(-e "$dir/log/hang_report", "$hang: there is a report") or note $out;
	my @report = split(/\n/, slurp_file("$dir/log/hang_report"));
	note "$hang: $report[0]";
	like($report[1], qr/^hung after/, "$hang: says that it hung");
	like(join("\n", @report), $_, "$hang: report") foreach (
		qr/^-- activity$/m, qr/^-- locks$/m,
		qr/^inserted /m, qr/^-- process \d+ \(checkpointer\)/m,
		qr/^==== end of .*victim\.log$/m);
	return @report;
}

my $holder = $has_gdb ? qr/\d+ \(.*\) at injection point doublewrite-log-synced/
  : qr/an unknown process/;
my $held = qr/victim: \d+ \(.*\) at injection point doublewrite-log-synced waits/;

my @report = run_hang('psql', 0.1);
like($report[0],
	qr/victim: \d+ \(checkpointer.*\) waits for DoubleWriteFlush, held by $holder/,
	'psql: who waits for whom');
like($report[0], $held, 'psql: and what for');
like($report[1], qr/in psql to "victim": CHECKPOINT/, 'psql: what hung');

@report = run_hang('poll', 0.1);
like($report[0], $held, 'poll: who waits');
like($report[1], qr/waiting for "t" from "victim": SELECT false/,
	'poll: what hung');

@report = run_hang('test', 0.1);
like($report[0], $held, 'test: who waits');
like($report[1], qr/hung after \d+ s in all/, 'test: what hung');

done_testing();
