
# Copyright (c) 2025, PostgreSQL Global Development Group

# A sequence that is created and used in one transaction with wal_level = minimal does
# not give out values twice after a crash.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
wal_level = minimal
max_wal_senders = 0
});
$node->start;
$node->safe_psql(
	'postgres', q{
	BEGIN; CREATE SEQUENCE s; SELECT nextval('s'); COMMIT});
$node->safe_psql(
	'postgres', q{
	CREATE TABLE used AS SELECT nextval('s') FROM generate_series(1, 20)});
$node->stop('immediate');
$node->start;
cmp_ok($node->safe_psql('postgres', q{SELECT nextval('s')}),
	'>', 21, 'sequence does not give out values twice');
$node->stop;

done_testing();
