
# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo of BRIN records passes over an index that is dropped further on.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE TABLE b(i int);
	INSERT INTO b SELECT generate_series(1, 1000);
	CREATE INDEX ON b USING brin (i) WITH (pages_per_range = 1);
	CHECKPOINT;
	INSERT INTO b SELECT generate_series(1, 10000);
	SELECT brin_summarize_new_values('b_i_idx');
	DROP TABLE b});
$node->stop('immediate');
ok($node->start(fail_ok => 1), 'BRIN index dropped: server starts');
$node->stop;

done_testing();
