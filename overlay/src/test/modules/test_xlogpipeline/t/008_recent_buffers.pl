# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo remembers in which buffers it has found blocks.  Pages that it uses again and
# again must count as used, though it does not look them up, or they would be the
# first to be evicted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION pg_buffercache;
	CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 10) i;
	CREATE TABLE other (LIKE t);
	VACUUM t; CHECKPOINT});
$primary->backup('base');

foreach my $mode ('off', 'on')
{
	my $standby = PostgreSQL::Test::Cluster->new("standby_$mode");
	my $usage = q{SELECT usagecount FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('t')
		AND relforknumber = 0 AND relblocknumber = 0};

	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf', xlp_conf($mode));
	$standby->start;
	$primary->safe_psql('postgres', "UPDATE t SET v = v + 1 WHERE id = $_")
	  foreach (1 .. 10);
	$primary->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', $usage),
		5, "$mode: page counts as used");

	# where redo remembers it, there is another page now, or none
	$standby->safe_psql(
		'postgres', q{
		SELECT pg_buffercache_evict_relation('t');
		SELECT count(*) FROM pg_class});
	$primary->safe_psql('postgres',
		"INSERT INTO other VALUES (1, 1); UPDATE t SET v = 100 WHERE id = 1");
	$primary->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		100, "$mode: a page that has moved is found");
	$standby->stop;
}

# The free space map, too, is not looked up for each row that fills a page.
{
	my $node = xlp_primary('crashed');
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (v text);
		INSERT INTO t SELECT repeat('v', 1000) FROM generate_series(1, 100);
		VACUUM t; CHECKPOINT;
		INSERT INTO t SELECT repeat('v', 1000) FROM generate_series(1, 4000)});
	$node->stop('immediate');
	$node->start;
	my $hits = $node->safe_psql(
		'postgres', q{
		SELECT sum(hits) FROM pg_stat_io WHERE backend_type = 'startup'});
	note "$hits hits";
	cmp_ok($hits, '<', 300, 'free space map: few searches for buffers');
	$node->stop;
}

done_testing();
