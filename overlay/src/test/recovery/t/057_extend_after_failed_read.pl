
# Copyright (c) 2025, PostgreSQL Global Development Group

# A read of a block past the end of a table fails, and leaves a buffer of that block with some
# other page.  The table has no row of that page once it has grown by that block.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE TABLE t (i int PRIMARY KEY, filler text STORAGE PLAIN);
INSERT INTO t SELECT i, repeat('t', 7000) FROM generate_series(0, 5) i;
});
my $path = $node->data_dir . '/'
  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
my $block_size = $node->safe_psql('postgres', 'SHOW block_size');

# A row fills a page, and the last one is lost.
$node->stop;
truncate($path, 5 * $block_size) or die "$path: $!";
$node->start;

# Buffers of a table that has been dropped are taken first.
my $error;
$node->psql(
	'postgres', q{
SET enable_seqscan = off;
SELECT filler FROM t WHERE i = 4;
CREATE TABLE other (i int, filler text STORAGE PLAIN);
INSERT INTO other SELECT 1000 + i, repeat('o', 7000) FROM generate_series(0, 99) i;
DROP TABLE other;
SELECT filler FROM t WHERE i = 5;
INSERT INTO t VALUES (6, repeat('t', 7000));
},
	on_error_stop => 0,
	stderr => \$error);
like($error, qr/could not read blocks 5\.\.5/, 'a page is lost');
unlike($error, qr/should be empty/, 'the table grows by its block');
is( $node->safe_psql(
		'postgres', 'SET enable_indexscan = off; SELECT i FROM t'),
	join("\n", 0 .. 4, 6),
	'... and has rows of its own');
$node->stop;

done_testing();
