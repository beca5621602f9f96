# Copyright (c) 2025, PostgreSQL Global Development Group

# No page goes home before the WAL up to its LSN has been flushed (R1).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node('main');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE w AS SELECT i, 0 AS v FROM generate_series(1, 100) i;
	VACUUM w; CHECKPOINT});
my $path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('w')");
my $session = $node->background_psql('postgres');
my ($lsn, $ahead) = ('', 'f');

# others flush WAL, too, now and then
$session->query_safe('BEGIN');
foreach (1 .. 10)
{
	$session->query_safe('UPDATE w SET v = v + 1 WHERE i < 10');
	my $flushed = $node->lsn('flush');
	$node->safe_psql('postgres', q{SELECT dw_evict('w'); SELECT dw_drain()});
	$lsn = sprintf('%X/%X',
		unpack('L L', substr(dw_read_block($node, $path, 0), 0, 8)));
	$ahead =
	  $node->safe_psql('postgres', "SELECT '$lsn'::pg_lsn > '$flushed'");
	last if $ahead eq 't';
}
is($ahead, 't', 'page home has a WAL location not flushed before');
is( $node->safe_psql(
		'postgres', "SELECT '$lsn'::pg_lsn <= pg_current_wal_flush_lsn()"),
	't',
	'... which is flushed now');
$session->quit;
$node->stop;

done_testing();
