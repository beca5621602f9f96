
# Copyright (c) 2025, PostgreSQL Global Development Group

# A block that a record restores from an image is not prefetched for the next
# record that refers to it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $PAGES = 200;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = full_pages
autovacuum = off
});
$primary->start;

# One row fills a page, so the new version of it goes to another one.
$primary->safe_psql(
	'postgres', qq{
	CREATE TABLE t (i int, filler text) WITH (autovacuum_enabled = off);
	ALTER TABLE t ALTER filler SET STORAGE PLAIN;
	INSERT INTO t SELECT i, repeat('x', 7000) FROM generate_series(1, $PAGES) i;
});
$primary->backup('b');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_pipeline = off\n");
$standby->start;
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres',
	q{SELECT pg_stat_reset_shared('recovery_prefetch')});

$primary->safe_psql('postgres', 'UPDATE t SET i = i + 1');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', q{SELECT pg_stat_force_next_flush()});
my ($prefetched, $images) = split(
	/\|/,
	$standby->safe_psql(
		'postgres',
		'SELECT prefetch, skip_fpw FROM pg_stat_recovery_prefetch'));
cmp_ok($images, '>=', $PAGES, 'pages come as images');
cmp_ok($prefetched, '<', 0.1 * $PAGES, '... and are not prefetched');

done_testing();
