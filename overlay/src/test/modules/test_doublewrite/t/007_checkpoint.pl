
# Copyright (c) 2025, PostgreSQL Global Development Group

# When a checkpoint has completed, all that was staged before is home, and the
# log holds no live copy of it (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# Few pages, a lazy background writer: only the checkpoint flushes.
my $node = dw_new_node(
	'main',
	conf => qq{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
});

$node->start;
dw_extensions($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v text);
	INSERT INTO t SELECT i, 'old' FROM generate_series(1, 300) i;
	CHECKPOINT;
});
my $path = dw_path_of($node, 't');
my $old = read_block($node, $path, 0);

# A page that is staged, in no buffer any more, when the checkpoint begins
$node->safe_psql(
	'postgres', q{
	UPDATE t SET v = 'new' WHERE id < 10;
	SELECT dw_evict('t');
	CHECKPOINT;
});
is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
	0, 'stage is empty after a checkpoint');
ok(read_block($node, $path, 0) ne $old, 'page is home');
is( $node->safe_psql(
		'postgres',
		'SELECT low_water_logged >= next_batch - 1 FROM dw_state()'),
	't',
	'log is free');

# A crash at once: nothing to restore, and nothing missing
$node->stop('immediate');
is(scalar(keys %{ dw_live_copies(dw_read_log($node)) }),
	0, 'no live copies after a checkpoint');
dw_start_after_crash($node);
is($node->safe_psql('postgres', q{SELECT count(*) FROM t WHERE v = 'new'}),
	9, 'nothing lost');

# A checkpoint waits for a batch that another process writes back.
$node->safe_psql('postgres', 'CHECKPOINT');
dw_hold_flusher($node);
$node->safe_psql('postgres', q{UPDATE t SET v = 'newer' WHERE id < 20});
my $flusher = $node->background_psql('postgres');
$flusher->query_until(qr/started/,
	"\\echo started\nSELECT dw_evict('t'), dw_flush_batch();\n");
dw_wait_until_held($node);
my $checkpoint = $node->background_psql('postgres');
$checkpoint->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
$node->poll_query_until('postgres',
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'checkpointer' AND wait_event IN ('DoubleWriteFlush', 'DoubleWriteTurn')}
) or die "checkpoint does not wait";
$old = read_block($node, $path, 0);
dw_release_flusher($node);
$checkpoint->query_until(qr/done/, "\\echo done\n");
ok(read_block($node, $path, 0) ne $old, 'page is home after the wait');
$flusher->quit;
$checkpoint->quit;

$node->stop('immediate');
dw_start_after_crash($node);
is( $node->safe_psql('postgres', q{SELECT count(*) FROM t WHERE v = 'newer'}),
	19,
	'nothing lost');
dw_check_amcheck($node);
dw_check_stopped($node);

done_testing();
