
# Copyright (c) 2025, PostgreSQL Global Development Group

# A hash index grows by a page that is written to its file at once: WAL of it is flushed
# before.

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
wal_writer_delay = 10s
});
$node->start;

$node->safe_psql('postgres',
	'CREATE TABLE g(i int); CREATE INDEX ON g USING hash (i)');
my $path =
  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('g_i_idx')});
my $file = $node->data_dir . "/$path";
my $size = -s $file;
my $session = $node->background_psql('postgres');
my $rows = 0;

$session->query_safe('BEGIN');
while (-s $file == $size && $rows < 5000)
{
	$session->query_safe(
		"INSERT INTO g SELECT generate_series($rows + 1, $rows + 50)");
	$rows += 50;
}
cmp_ok(-s $file, '>', $size, 'grown: a hash index has been extended');
my $flushed = $node->lsn('flush');
open(my $handle, '<:raw', $file) or die "could not open $file: $!";
my $block_size = $node->safe_psql('postgres', 'SHOW block_size');
seek($handle, -$block_size, 2);
read($handle, my $page, 8);
close $handle;
my ($high, $low) = unpack('L L', $page);
my $lsn = sprintf('%X/%X', $high, $low);
is($node->safe_psql('postgres', "SELECT '$lsn'::pg_lsn <= '$flushed'"),
	't', '... and WAL had been flushed');
$session->quit;
$node->stop;

done_testing();
