
# Copyright (c) 2025, PostgreSQL Global Development Group

# A record of new hints that has no image of the page names a page that redo does not
# need, and recovery does not prefetch it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, extra => ['--data-checksums']);
$primary->append_conf(
	'postgresql.conf', q{
full_page_writes = off
autovacuum = off
});
$primary->start;
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 10000) g}
);
my $pages = $primary->safe_psql('postgres',
	q{SELECT pg_relation_size('t') / current_setting('block_size')::int});
$primary->backup('b');

# So few buffers that the table is not among them
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
shared_buffers = 1MB
wal_pipeline = off
});
$standby->start;
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres',
	q{SELECT pg_stat_reset_shared('recovery_prefetch')});

# The first query since the checkpoint of the backup sets hints.
my $start = $primary->lsn('insert');
$primary->safe_psql('postgres', 'SELECT count(*) FROM t');
$primary->safe_psql('postgres',
	q{SELECT pg_logical_emit_message(true, 'test', 'flushed')});
$primary->wait_for_replay_catchup($standby);
my ($dump) = run_command(
	[
		'pg_waldump',
		'--rmgr' => 'XLOG',
		'--path' => $primary->data_dir . '/pg_wal',
		'--start' => $start,
		'--end' => $primary->lsn('flush')
	]);
my $hints = () = $dump =~ /FPI_FOR_HINT/g;
cmp_ok($hints, '>=', $pages, 'new hints of all pages are logged');
unlike($dump, qr/FPW/, '... without images');

$standby->safe_psql('postgres', q{SELECT pg_stat_force_next_flush()});
cmp_ok(
	$standby->safe_psql(
		'postgres', 'SELECT prefetch FROM pg_stat_recovery_prefetch'),
	'<',
	0.1 * $pages,
	'the pages are not prefetched');
$standby->stop;
$primary->stop;

done_testing();
