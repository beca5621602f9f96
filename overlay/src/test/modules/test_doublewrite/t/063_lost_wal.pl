
# Copyright (c) 2025, PostgreSQL Global Development Group

# With instant recovery copies stay in the double-write log for recovery.  Where that cannot
# begin, as WAL has been lost, the start that fails restores pages, and after pg_resetwal
# they are whole.  A crash during the checkpoint of a stop is one like others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

my $on_demand =
  qr/double-write log: (\d+) pages are restored when they are needed/;
my $restored = qr/all pages have been restored, as recovery cannot begin/;
my $ROWS = 1000;

# Copies of pages of "t" go to the log, and no page of it has records.
sub new_node
{
	my ($name) = @_;
	my $node = dw_new_node(
		$name,
		init => { extra => ['--wal-segsize=1'] },
		conf => q{
instant_recovery = on
recovery_workers = 2
shared_buffers = 2MB
bgwriter_lru_maxpages = 0
double_write_stage_size = 8MB
});

	$node->start;
	dw_extensions($node);
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE t (i int, f text);
		INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, $ROWS) g;
		VACUUM FREEZE t;
		CHECKPOINT;
	});
	$node->safe_psql('postgres',
		"SELECT dw_dirty('t'); SELECT dw_evict_all(), dw_drain()");
	return $node;
}

# Pages of the table that are torn
sub tear
{
	my ($node, $path) = @_;
	my @torn;

	foreach my $copy (values %{ dw_live_copies(dw_read_log($node)) })
	{
		my ($home, $offset) = dw_home_path($node, $copy);

		next unless $home eq $path;
		write_block($node, $path, $offset,
			substr($copy->{page}, 0, 4096) . "\0" x 4096);
		push @torn, [ $offset, $copy->{page} ];
	}
	cmp_ok(scalar @torn, '>', 10, 'pages are torn');
	return @torn;
}

# How many of these are whole again?
sub whole
{
	my ($node, $path, @torn) = @_;

	return scalar grep { read_block($node, $path, $_->[0]) eq $_->[1] } @torn;
}

# The file of WAL, and where in it something is
sub place
{
	my ($node, $lsn) = @_;
	my ($high, $low) = map { hex } split(/\//, $lsn);

	return (
		sprintf(
			'%s/pg_wal/%08X%08X%08X',
			$node->data_dir, 1, $high, $low >> 20),
		$low & 0xFFFFF);
}

# --- WAL with the record of the checkpoint, or at its redo location, has been lost, or is damaged

foreach my $how ('damaged', 'lost', 'redo')
{
	my $node = new_node($how);
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");

	# the log's WAL ends in another file, which is there
	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$node->safe_psql('postgres',
		'CREATE TABLE next (i int); CHECKPOINT; SELECT pg_switch_wal()');
	$node->safe_psql('postgres',
		"INSERT INTO next VALUES (1); SELECT dw_dirty('t'); SELECT dw_evict_all(), dw_drain()"
	);
	$node->stop('immediate');
	my @torn = tear($node, $path);
	my $redo = $how eq 'redo';
	my ($file, $offset) = place(
		$node,
		dw_control(
			$node,
			$redo
			? "Latest checkpoint's REDO location"
			: 'Latest checkpoint location'));

	if ($how eq 'lost')
	{
		unlink($file) or die "$file: $!";
	}
	else
	{
		open(my $fh, '+<:raw', $file) or die "$file: $!";
		seek($fh, $offset + 20, 0);
		print $fh 'x' x 4;
		close($fh);
	}
	if ($how eq 'damaged')
	{
		my $before = -s $node->logfile;

		$node->append_conf('postgresql.conf',
			"test_points.fail_at = 'doublewrite-bring-write:EIO'");
		ok(!$node->start(fail_ok => 1),
			'pages cannot be written, either: server does not start');
		dw_wait_for_exit($node);
		my $said = slurp_file($node->logfile, $before);
		like(
			$said,
			qr/FATAL:  could not write block \d+ of relation .* from the double-write log/,
			'... as the log is still needed');
		unlike($said, $restored,
			'... and does not say that all pages are restored');
		$node->append_conf('postgresql.conf', "test_points.fail_at = ''");
	}
	my $log = -s $node->logfile;
	ok(!$node->start(fail_ok => 1),
		"WAL of the checkpoint, $how: server does not start");
	dw_wait_for_exit($node);
	like(
		slurp_file($node->logfile, $log),
		$redo
		? qr/$restored.*could not find redo location/s
		: qr/$restored.*could not locate a valid checkpoint record/s,
		'... when it has restored pages');
	is(whole($node, $path, @torn), scalar @torn, '... all of them');

	command_ok([ 'pg_resetwal', '-f', $node->data_dir ],
		'... and WAL is given up');
	unlink($node->data_dir . '/backup_label') or die 'no marker';
	ok(dw_poll_start($node), '... and the server starts');
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), sum(length(f)) FROM t'),
		"$ROWS|" . 300 * $ROWS,
		'... and the table can be read');
	$node->stop;
}

# --- WAL has been lost behind that: pages are restored if the start is asked to, as documented

my $node = new_node('later');
my $path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
$node->stop('immediate');
my @torn = tear($node, $path);
my $offset = -s $node->logfile;
ok(dw_poll_start($node), 'WAL is there: server starts');
like(
	slurp_file($node->logfile, $offset),
	qr/examined [1-9]\d* pages .*, left [1-9]\d* in the log.*$on_demand/s,
	'... and has left pages in the log, which it says');

# --- A crash during the checkpoint of a stop

$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres',
	"SELECT dw_dirty('t'); SELECT dw_evict_all(), dw_drain()");
$node->safe_psql('postgres',
	"SELECT points_crash_at('doublewrite-checkpoint-scanned')");
$node->stop('fast', fail_ok => 1);
dw_wait_for_exit($node);
like(
	dw_control($node, 'Database cluster state'),
	qr/shutting down/,
	'a crash while the server stops');
tear($node, $path);
$offset = -s $node->logfile;
ok(dw_poll_start($node), '... and the server starts');
like(slurp_file($node->logfile, $offset),
	$on_demand, '... and leaves copies in the log');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'),
	$ROWS, '... which are read');
dw_check_stopped($node);

done_testing();
