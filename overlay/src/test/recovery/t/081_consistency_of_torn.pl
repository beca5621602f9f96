
# Copyright (c) 2025, PostgreSQL Global Development Group

# A record refers to a page that is torn, without a change or an image, and a later record
# has its image.  wal_consistency_checking does not compare it meanwhile.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(no_data_checksums => 1);
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
full_page_writes = on
io_torn_pages_protection = full_pages
wal_log_hints = off
wal_consistency_checking = 'heap2'
});
$node->start;
my $block_size = $node->safe_psql('postgres', 'SHOW block_size');
$node->safe_psql('postgres',
	'CREATE TABLE v AS SELECT i, 0 AS n FROM generate_series(1, 100) i');
my $path = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('v')});
$node->safe_psql('postgres', $_)
  foreach (
	'CHECKPOINT',
	# marks the page all-visible: its bit is a hint, without an image
	'VACUUM v',
	'UPDATE v SET n = 1 WHERE i = 1');
$node->stop('immediate');

# from the last row on
open(my $file, '+<:raw', $node->data_dir . "/$path")
  or die "could not open $path: $!";
seek($file, $block_size - 512, 0);
print $file "\x5a" x 512;
close($file) or die "could not write $path: $!";
ok($node->start(fail_ok => 1), 'torn: server starts');
is($node->safe_psql('postgres', 'SELECT sum(i), sum(n) FROM v'),
	'5050|1', '... nothing lost');
$node->stop;

done_testing();
