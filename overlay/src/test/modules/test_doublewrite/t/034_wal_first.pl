# Copyright (c) 2025, PostgreSQL Global Development Group

# No page goes home, or to the log, before the WAL up to its LSN has been flushed (R1).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
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
		unpack('L L', substr(read_block($node, $path, 0), 0, 8)));
	$ahead =
	  $node->safe_psql('postgres', "SELECT '$lsn'::pg_lsn > '$flushed'");
	last if $ahead eq 't';
}
is($ahead, 't', 'page home has a WAL location not flushed before');
is( $node->safe_psql(
		'postgres', "SELECT '$lsn'::pg_lsn <= pg_current_wal_flush_lsn()"),
	't',
	'... which is flushed now');

# Nor does a page that cannot be written home move on in the log before that.
my $file = $node->safe_psql('postgres', "SELECT pg_relation_filenode('w')");
my $number = sub {
	my ($hi, $lo) = split(/\//, $_[0]);

	return hex($hi) << 32 | hex($lo);
};
my ($copied, $before, $after);

$session->query_safe('UPDATE w SET v = v + 1 WHERE i < 10');
$node->safe_psql(
	'postgres', q{SELECT dw_sync_cycle();
	SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)});
isnt($node->psql('postgres', q{SELECT dw_evict('w'); SELECT dw_drain()}),
	0, 'page cannot be written home');
foreach (1 .. 10)
{
	$session->query_safe('UPDATE w SET v = v + 1 WHERE i < 10');
	$before = $node->lsn('flush');
	($after) = $node->safe_psql(
		'postgres', q{SELECT dw_evict('w'); SELECT dw_sync_cycle();
		SELECT pg_current_wal_flush_lsn()}) =~ /(\S+)\s*$/;
	($copied) =
	  sort { $b <=> $a }
	  map  { $_->{lsn} }
	  grep { $_->{rel} == $file }
	  values %{ dw_live_copies(dw_read_log($node)) };
	last if $copied > $number->($before);
}
cmp_ok($copied, '>', $number->($before),
	'copy in the log has a WAL location not flushed before');
cmp_ok($copied, '<=', $number->($after), '... which is flushed now');
$node->safe_psql('postgres',
	q{SELECT points_clear('doublewrite-home-write')});
$session->quit;
$node->stop;

done_testing();
