# Copyright (c) 2025, PostgreSQL Global Development Group

# A checkpoint raises the low-water mark past all batches, also if a page that could
# not be written home has been removed: what is in the log was made before its redo
# pointer (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node('main');

$node->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
	INSERT INTO t SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 100) i;
	CREATE TABLE q (id int, v int) WITH (fillfactor = 10, autovacuum_enabled = off);
	INSERT INTO q SELECT i, 0 FROM generate_series(1, 200) i},
	'CHECKPOINT',
	q{UPDATE t SET v = 1 WHERE id < 50;
	SELECT dw_drain(), dw_evict('t'), points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)}
  );
isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
	0, 'home write failed');

# the second version of q goes home on the strength of the copy of the first
$node->safe_psql('postgres', $_)
  foreach (
	'DROP TABLE t',
	q{SELECT points_clear('doublewrite-home-write'), dw_drain()},
	'UPDATE q SET v = 1',
	q{SELECT dw_evict('q'), dw_drain()},
	'UPDATE q SET v = 2',
	q{SELECT dw_evict('q'), dw_drain()});

my $next = $node->safe_psql('postgres', 'SELECT next_batch FROM dw_state()');
$node->safe_psql('postgres', 'CHECKPOINT');
is( $node->safe_psql(
		'postgres', "SELECT low_water_logged >= $next FROM dw_state()"),
	't',
	'checkpoint raises the mark past all batches');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', 'SELECT min(v), max(v), count(*) FROM q'),
	'2|2|200', 'nothing from before the checkpoint is restored');
$node->stop;

done_testing();
