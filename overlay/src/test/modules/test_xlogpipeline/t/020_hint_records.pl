
# Copyright (c) 2025, PostgreSQL Global Development Group

# A record of new hints that has no image of the page names a page that redo does not
# need.  It is not read, ahead of redo or later, on a standby either.

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

# So few pages that have nothing to do with the table are read in recovery.
my $FEW = 100;

my $primary =
  xlp_primary('primary', extra => [ '--data-checksums', '--wal-segsize=1' ]);
xlp_page_images($primary, 0);
$primary->restart;
$primary->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'standby', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'shared_buffers = 1MB');
$standby->start;

$primary->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 15000) g}
);
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', q{SELECT pg_stat_reset_shared('io')});

# Hints, and so much WAL that recovery looks ahead in it.
$primary->safe_psql('postgres', 'SELECT count(*) FROM t');
$primary->safe_psql(
	'postgres',
	q{SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 10000)))
		FROM generate_series(1, 300)}
);
my ($dump) = run_command(
	[
		'pg_waldump',
		'--rmgr' => 'XLOG',
		'--path' => $primary->data_dir . '/pg_wal',
		'--start' => $primary->safe_psql(
			'postgres', 'SELECT redo_lsn FROM pg_control_checkpoint()')
	]);
my $hints = () = $dump =~ /FPI_FOR_HINT/g;
cmp_ok($hints, '>', 5 * $FEW, 'new hints of many pages are logged');
unlike($dump, qr/FPW/, '... without images');

# What all processes of recovery have read, before a client reads anything.
$primary->wait_for_catchup($standby);
cmp_ok(
	$standby->safe_psql(
		'postgres', q{
		SELECT sum(reads) FROM pg_stat_io
			WHERE object = 'relation' AND backend_type IN ('startup', 'background worker')}
	),
	'<',
	$FEW,
	'standby: pages are not read');
$standby->stop;

xlp_crash($primary, 'crashed');
my %ways = (
	pipeline => "wal_pipeline = on\ninstant_recovery = off\n"
	  . xlp_wait_conf(),
	alone => "wal_pipeline = off\ninstant_recovery = off",
	instant => "instant_recovery = on\n" . xlp_wait_conf());
foreach my $way (sort keys %ways)
{
	my $node = PostgreSQL::Test::Cluster->new($way);

	$node->init_from_backup($primary, 'crashed');
	$node->append_conf('postgresql.conf', $ways{$way});
	$node->start;
	cmp_ok(
		$node->safe_psql(
			'postgres', 'SELECT prefetch FROM pg_stat_recovery_prefetch'),
		'<', $FEW,
		"$way: pages are not prefetched");
	my $log = slurp_file($node->logfile);
	if ($way eq 'pipeline')
	{
		cmp_ok(($log =~ /announced (\d+) blocks/)[0],
			'<', $FEW, '... nor announced');
		cmp_ok(($log =~ /WAL pipeline: .* read (\d+) blocks/)[0],
			'<', $FEW, '... nor read');
	}
	cmp_ok((xlp_pending($node))[0] // 0, '<', $FEW, '... nor pending')
	  if $way eq 'instant';
	$node->stop;
}

done_testing();
