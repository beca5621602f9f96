# Copyright (c) 2025, PostgreSQL Global Development Group

# The log is written past the kernel's cache, or through it where the file system
# refuses that: when a segment is opened, or only when it is written to.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use Fcntl;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node('main');
my $point = 'doublewrite-log-written';
my $value = 0;

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i;
	VACUUM t; CHECKPOINT});

# Commands that log the table's only page
sub log_page
{
	$value++;
	return qq{
		SELECT dw_sync_cycle();
		UPDATE t SET v = $value WHERE id = 1;
		SELECT dw_evict('t');
		SELECT dw_drain();
	};
}

# Does a process have the log open with O_DIRECT?  undef if that cannot be seen.
sub is_direct
{
	my ($pid) = @_;

	foreach my $fd (glob "/proc/$pid/fd/*")
	{
		next if (readlink($fd) // '') !~ m{/pg_doublewrite/[0-9A-F]{16}$};
		my ($flags) =
		  slurp_file($fd =~ s/fd/fdinfo/r) =~ /^flags:\s+([0-7]+)/m;
		return oct($flags) & O_DIRECT ? 1 : 0;
	}
	return undef;
}

# Log the page in a new session; how was the log open when it was written?
sub logged_directly
{
	my $session = $node->background_psql('postgres');

	$session->query_safe('SELECT dw_sync_cycle()');
	dw_hold_flusher($node, $point);
	$value++;
	$session->query_until(qr/started/,
			"UPDATE t SET v = $value WHERE id = 1; SELECT dw_evict('t');\n"
		  . "\\echo started\nSELECT dw_drain();\n");
	dw_wait_until_held($node);
	my $direct = is_direct(
		$node->safe_psql(
			'postgres',
			"SELECT pid FROM pg_stat_activity WHERE wait_event = '$point'"));
	dw_release_flusher($node);
	$session->quit;
	return $direct;
}

sub fail_at
{
	my ($where, $times) = @_;

	$node->safe_psql('postgres',
		"SELECT points_fail_at('doublewrite-$where', 'EINVAL', 1, $times)");
	return;
}

sub clear
{
	my ($where) = @_;

	$node->safe_psql('postgres', "SELECT points_clear('doublewrite-$where')");
	return;
}

SKIP:
{
	my $file = $node->data_dir . '/pg_doublewrite/try';
	my $flags = O_RDWR | O_CREAT | (eval { O_DIRECT } // 0);
	my $accepted = sysopen(my $fh, $file, $flags);

	unlink $file;
	skip 'open files cannot be seen on this platform', 3
	  unless -e "/proc/$$/fdinfo" && eval { O_DIRECT };
	skip 'the file system of this test refuses direct I/O', 3
	  unless $accepted;

	is(logged_directly(), 1, 'log is written past the cache');
	fail_at('open-direct', 1_000_000);
	is(logged_directly(), 0, 'refused at open: through the cache');
	clear('open-direct');
	fail_at('log-write', 1);
	is(logged_directly(), 0, 'refused at the first write: through the cache');
	clear('log-write');
}

# A process remembers that.  Clients open the log for each batch.
fail_at('open-direct', 1_000_000);
$node->safe_psql('postgres', log_page() . log_page());
is( $node->safe_psql(
		'postgres', "SELECT points_hits('doublewrite-open-direct')"),
	1,
	'direct I/O is not tried again');
clear('open-direct');

# The same error for another reason
fail_at('log-write', 1_000_000);
my ($ret, $stdout, $stderr) = $node->psql('postgres', log_page());
isnt($ret, 0, 'refused through the cache, too: an error');
like(
	$stderr,
	qr/could not write to double-write log segment .*Invalid argument/,
	'which says so');
clear('log-write');

# What is written after a refusal is as good.
my $old = dw_snapshot($node);
fail_at('log-write', 1);
$node->safe_psql('postgres', log_page());
$node->stop('immediate');
my $torn = dw_tear($node, $old);
cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
dw_start_after_crash($node, $torn);
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
	$value, 'nothing lost');
$node->stop;

done_testing();
