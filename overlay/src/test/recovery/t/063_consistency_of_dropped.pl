
# Copyright (c) 2025, PostgreSQL Global Development Group

# wal_consistency_checking does not look at a block that redo has left alone, as its
# table is dropped further on.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
wal_consistency_checking = 'all'
});
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE TABLE kept(i int);
	CREATE TABLE c(i int) WITH (fillfactor = 10);
	INSERT INTO c SELECT generate_series(1, 500);
	CHECKPOINT;
	INSERT INTO c SELECT generate_series(501, 1000);
	DELETE FROM c WHERE i = 1;
	DROP TABLE c;
	INSERT INTO kept VALUES (1)});
$node->stop('immediate');
ok($node->start(fail_ok => 1), 'skipped and checked: server starts');
is($node->safe_psql('postgres', 'SELECT i FROM kept'), '1', 'nothing lost');
$node->stop;

done_testing();
