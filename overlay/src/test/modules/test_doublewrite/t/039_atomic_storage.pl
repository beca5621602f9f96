# Copyright (c) 2025, PostgreSQL Global Development Group

# Atomic writes on file systems that offer them, and on some that do not.
#
# PGDW_ATOMIC_PLACES names a directory in which they are mounted, as "./dev
# atomic" does it.

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
use Test::More;

dw_require_injection_points();

my $places = $ENV{PGDW_ATOMIC_PLACES};

plan skip_all => 'PGDW_ATOMIC_PLACES names no file systems'
  if !defined $places;

# What the kernel says of each, on a device that has no atomic writes itself
my %proofs = (
	xfs_reflink => 'software',
	xfs_bounded => 'software',
	xfs_block_8k => 'software',
	xfs_block_16k => 'other size',
	xfs_plain => 'not offered',
	ext4 => 'not offered',
	ext4_bigalloc => 'not offered');
my @places = sort keys %proofs;
my $node = dw_new_node(
	'storage',
	mode => 'atomic_writes',
	conf => "double_write_buffer_size = 1GB\ntest_doublewrite.quiet = on\n");

sub make_tablespaces
{
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_doublewrite_stats');
	foreach my $place (@places)
	{
		my $dir = "$places/$place/" . $node->name;

		PostgreSQL::Test::Utils::system_log('rm', '-rf', $dir);
		mkdir $dir or die "could not create directory \"$dir\": $!";
		$node->safe_psql('postgres',
			"CREATE TABLESPACE $place LOCATION '$dir'");
	}
	return;
}

# Write some pages of a table in a tablespace; returns what the view says of it,
# how many pages were written atomically, and how many passed through the log.
sub write_to
{
	my ($place) = @_;

	$node->safe_psql(
		'postgres', qq{
		DROP TABLE IF EXISTS t_$place;
		CREATE TABLE t_$place (i int, v int, filler text STORAGE PLAIN) TABLESPACE $place;
		INSERT INTO t_$place SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 50) i;
		CHECKPOINT;
		UPDATE t_$place SET v = 1 WHERE i <= 20;
		SELECT dw_evict('t_$place');
		SELECT dw_drain()});
	return $node->safe_psql(
		'postgres', qq{
		SELECT proof, pages_atomic > 0, pages_logged > 0, refusals, file_system
		FROM pg_atomic_write_status WHERE tablespace = '$place'});
}

$node->start;
dw_extensions($node);
make_tablespaces();
foreach my $place (@places)
{
	my ($type) = split /_/, $place;

	is(write_to($place), "$proofs{$place}|f|t|0|$type",
		"$place: all through the log, as what a file system makes in software does not count (A1)"
	);
}
$node->stop;

$node->append_conf('postgresql.conf', 'debug_atomic_writes_in_software = on');
$node->start;
foreach my $place (@places)
{
	my ($type) = split /_/, $place;
	my $counts = $proofs{$place} eq 'software' ? 't|f' : 'f|t';

	is( write_to($place),
		"$proofs{$place}|$counts|0|$type",
		"$place: with the option for developers");
}
my (undef, undef, $notices) = $node->psql(
	'postgres', q{
	SELECT injection_points_attach('doublewrite-atomic-in-flight', 'notice');
	UPDATE t_xfs_reflink SET v = 2;
	SELECT dw_evict('t_xfs_reflink');
	SELECT dw_drain()});
like(
	$notices,
	qr/doublewrite-atomic-in-flight/,
	'several atomic writes are under way at once');
$node->stop;

my ($stdout, $stderr) =
  run_command([ 'pg_doublewrite', 'storage', $node->data_dir ]);
like(
	$stdout,
	qr/atomic 8-kB writes: .*software/,
	'pg_doublewrite says the same of a stopped cluster');

# ---------------------------------------------------------------------
# Under load, with tables on each of them, and switched between modes
# ---------------------------------------------------------------------

$node = dw_new_node(
	'load',
	mode => 'atomic_writes',
	conf =>
	  "double_write_buffer_size = 1GB\ndebug_atomic_writes_in_software = on\n"
);
$node->start;
dw_extensions($node);
make_tablespaces();
$node->append_conf('postgresql.conf', 'default_tablespace = xfs_reflink');
$node->reload;
dw_workload_setup($node);
$node->safe_psql(
	'postgres', q{
	ALTER TABLE history SET TABLESPACE ext4;
	ALTER INDEX history_src SET TABLESPACE xfs_plain});
my ($xfs) = $node->safe_psql('postgres',
	"SELECT 'pg_tblspc/' || oid FROM pg_tablespace WHERE spcname = 'xfs_reflink'"
);

foreach my $modes (
	[ 'atomic_writes', 'atomic_writes' ],
	[ 'atomic_writes', 'double_writes' ],
	[ 'double_writes', 'atomic_writes' ],
	[ 'atomic_writes', 'full_pages' ],
	[ 'full_pages', 'atomic_writes' ])
{
	my ($from, $to) = @$modes;

	note "$from to $to";
	$node->stop;
	$node->adjust_conf('postgresql.conf', 'io_torn_pages_protection', $from);
	$node->start;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	dw_workload_start($node);
	dw_wait_for_pages($node, 300);
	$node->adjust_conf('postgresql.conf', 'io_torn_pages_protection', $to);
	$node->reload;
	dw_wait_for_pages($node, 300);
	$node->poll_query_until('postgres', "SELECT dw_setting() = '$to'");
	my $atomic =
	  $node->safe_psql('postgres', 'SELECT atomic_pages FROM dw_stats()');
	$node->stop('immediate');
	dw_workload_finish($node);

	cmp_ok($atomic, '>', 0, 'pages were written atomically')
	  if $from eq 'atomic_writes';
	dw_lose($node, $old, qr/^\Q$xfs\E/);
	dw_start_after_crash($node, dw_tear($node, $old));
	dw_check($node);
	$node->start;
}
$node->stop;

# the file systems are used again
foreach my $place (@places)
{
	PostgreSQL::Test::Utils::system_log('rm', '-rf',
		glob("$places/$place/*"));
}

done_testing();
