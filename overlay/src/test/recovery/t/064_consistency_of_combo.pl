
# Copyright (c) 2025, PostgreSQL Global Development Group

# wal_consistency_checking does not compare a flag of a frozen tuple that replay of a
# lock clears and the primary leaves alone.

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
	CREATE TABLE l(i int);
	BEGIN;
	INSERT INTO l VALUES (1);
	SAVEPOINT s;
	DELETE FROM l;
	ROLLBACK TO s;
	COMMIT});
$node->safe_psql('postgres', 'VACUUM (FREEZE) l');
$node->safe_psql('postgres', 'BEGIN; SELECT FROM l FOR KEY SHARE; COMMIT');
$node->safe_psql('postgres', 'BEGIN; SELECT FROM l FOR SHARE; COMMIT');
$node->stop('immediate');
ok($node->start(fail_ok => 1), 'frozen and locked: server starts');
is($node->safe_psql('postgres', 'SELECT i FROM l'), '1', 'nothing lost');
$node->stop;

done_testing();
