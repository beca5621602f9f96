# Copyright (c) 2025, PostgreSQL Global Development Group

# The first WAL record for a page after the redo pointer decides whether redo
# rebuilds it, so that it needs no double write, until the next checkpoint.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $IMAGES = 'SET io_torn_pages_protection = full_pages';

# A quiet server with a table of one page, which is at home only
sub node_with_table
{
	my ($name, %params) = @_;
	my $node = dw_quiet_node($name, %params, conf => 'wal_log_hints = off');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 100) i});
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', q{SELECT dw_evict_all(); SELECT dw_drain()});
	return $node;
}

# Run commands, write the table back; returns how many of its pages were
# logged, exempt, and had a copy in the log already.
sub written_back
{
	my ($node, @commands) = @_;
	my $counters = 'SELECT logged, exempt, in_epoch FROM dw_stats()';

	$node->safe_psql('postgres', 'SELECT dw_drain()');
	my @before = split /\|/, $node->safe_psql('postgres', $counters);
	$node->safe_psql('postgres', join('; ', @commands));
	$node->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	return [ map { $after[$_] - $before[$_] } (0 .. 2) ];
}

sub update { return "UPDATE t SET v = $_[0] WHERE id = 1" }

# An image comes first: exempt until the next checkpoint
{
	my $node = node_with_table('image_first');

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	is_deeply(
		written_back($node, $IMAGES, update(1)),
		[ 0, 1, 0 ],
		'page with an image is exempt');
	dw_check_torn($node, $old, 1, 'image first');
}
{
	my $node = node_with_table('image_then_not');

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	is_deeply(
		written_back(
			$node, $IMAGES, update(1), 'RESET io_torn_pages_protection',
			update(2)),
		[ 0, 1, 0 ],
		'what comes after the image does not matter');
	is_deeply(
		written_back($node, update(3)),
		[ 0, 1, 0 ],
		'nor does it if the page has been read again');
	dw_check_torn($node, $old, 3, 'image, then none');
}
{
	my $node = node_with_table('image_and_checkpoint');

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply(written_back($node, $IMAGES, update(1)), [ 0, 1, 0 ], 'exempt');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	is_deeply(
		written_back($node, update(2)),
		[ 1, 0, 0 ],
		'after a checkpoint it is not any more');
	dw_check_torn($node, $old, 2, 'image, then a checkpoint');
}

# A table is loaded, and leaves its buffers; then one session sets hints, and
# another one changes rows
{
	my $node = dw_quiet_node('loaded');
	my $old = dw_snapshot($node);

	is( written_back(
			$node, q{
		CREATE TABLE t AS SELECT i AS id, 0 AS v, repeat('x', 400) AS f
			FROM generate_series(1, 1000) i})->[0],
		0,
		'a new table is not logged');
	my $hinted = written_back($node, 'SELECT count(*) FROM t');
	is($hinted->[0], 0, 'nor is it when hints are set');
	cmp_ok($hinted->[1], '>', 50, '... in all its pages');
	my $changed = written_back($node, update(1));
	cmp_ok($changed->[1], '>', 0, 'nor when a row is changed');
	cmp_ok($changed->[0], '<=', 1, '... except for the free space map');
	dw_check_torn($node, $old, 1, 'loaded table');
}

# Something else comes first
{
	my $node = node_with_table('change_first');

	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	is_deeply(
		written_back($node, update(1), $IMAGES, update(2)),
		[ 1, 0, 0 ],
		'page without an image is logged');
	dw_check_torn($node, $old, 2, 'change first');
}

# A record that does not change the page's LSN comes first, and the page leaves
# its buffer before an image follows
{
	my $node = node_with_table('left_buffer', checksums => 0);

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'VACUUM (FREEZE off) t');
	$node->safe_psql('postgres',
		q{SELECT dw_evict('t'); SELECT dw_drain(); SELECT dw_sync_cycle()});
	my $counted = written_back($node, $IMAGES, update(1));
	is($counted->[1], 0,
		'page that has left its buffer meanwhile is not exempt');
	$node->stop;
}

# A checkpoint is under way: both redo pointers count
foreach my $case (
	[
		'two_pointers', $IMAGES, $IMAGES,
		[ 0, 1, 0 ],
		'images after both redo pointers: exempt'
	],
	[
		'newer_pointer', $IMAGES, 'SELECT',
		[ 1, 0, 0 ],
		'image after the older redo pointer only: logged'
	],
	[
		'older_pointer', 'SELECT', $IMAGES,
		[ 1, 0, 0 ],
		'image after the newer redo pointer only: logged'
	])
{
	my ($name, $first, $second, $expected, $what) = @$case;
	my $node = node_with_table($name);

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', "$first; " . update(1));

	# or the next reader would set hints, and the image be that of a hint record
	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	my $session = $node->background_psql('postgres');
	$node->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-checkpoint-drained', 'wait')}
	);
	$session->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', 'doublewrite-checkpoint-drained');
	my $old = dw_snapshot($node);
	is_deeply(written_back($node, $second, update(2)), $expected, $what);
	dw_wake($node, 'doublewrite-checkpoint-drained');
	$session->query('SELECT 1');
	$session->quit;
	dw_check_torn($node, $old, 2, $name);
}

# Two checkpoints have failed: a crash recovers from a redo pointer that is older than both
# which are remembered.
{
	my $node = node_with_table('older_pointers');
	my $point = 'doublewrite-checkpoint-drained';

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'error')");
	foreach my $v (1, 2)
	{
		$node->safe_psql('postgres', update($v));
		$node->safe_psql('postgres', 'SELECT count(*) FROM t');
		isnt($node->psql('postgres', 'CHECKPOINT'),
			0, "checkpoint $v fails when all is home");
	}
	my $old = dw_snapshot($node);
	is_deeply(
		written_back($node, $IMAGES, update(3)),
		[ 1, 0, 0 ],
		'image after the newest of three redo pointers only: logged');
	dw_check_torn($node, $old, 3, 'older pointers');
}

# A record for an overflow page of a hash index refers to the first page of the
# bucket, and its content lock is not held then.
foreach my $hidden (1, 0)
{
	my $node = node_with_table("bucket_$hidden");
	my $bucket_copies = sub {
		my ($rel) = $node->safe_psql('postgres',
			q{SELECT pg_relation_filenode('h_k_idx')});

		return scalar grep {
			my (undef, $next, undef, $flags) =
			  unpack('L L L S', substr($_->{page}, -16));
			$_->{rel} == $rel && ($flags & 2) && $next != 0xFFFFFFFF
		} values %{ dw_live_copies(dw_read_log($node)) };
	};

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE h (k int, n int);
		CREATE INDEX h_k_idx ON h USING hash (k);
		INSERT INTO h SELECT 1, i FROM generate_series(1, 1000) i});
	$node->safe_psql('postgres', 'CHECKPOINT');
	if ($hidden)
	{
		$node->safe_psql('postgres', 'DELETE FROM h WHERE n > 990');
		$node->safe_psql('postgres', 'VACUUM h');
	}
	$node->safe_psql('postgres', "$IMAGES; DELETE FROM h WHERE n < 10");
	$node->command_ok(
		[
			'psql', '-d', $node->connstr('postgres'),
			'-c', $IMAGES, '-c', 'VACUUM h'
		],
		'VACUUM with images');
	$node->safe_psql('postgres',
		q{SELECT dw_evict('h_k_idx'); SELECT dw_drain()});
	is( $bucket_copies->() > 0 ? 1 : 0,
		$hidden,
		$hidden
		? 'hash bucket with hidden records is logged'
		: 'hash bucket without is exempt');
	$node->stop;
}

# Images are forced while a base backup runs
{
	my $node = node_with_table('backup', init => { allows_streaming => 1 });

	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	my $session = $node->background_psql('postgres');
	$session->query_safe(q{SELECT pg_backup_start('b', true)});
	is_deeply(
		written_back($node, update(1)),
		[ 0, 1, 0 ],
		'base backup: page with a forced image is exempt');
	$session->query_safe('SELECT 1 FROM pg_backup_stop(false)');
	$session->quit;
	$node->stop;
}

# A promoted server goes on from the redo pointer of its last restartpoint.
# Records that redo has applied since then are not known: not those of pages
# that have been in a buffer ever since, nor those of others.
foreach my $evicted (0, 1)
{
	my $primary = node_with_table(
		"primary_$evicted",
		checksums => 0,
		init => { allows_streaming => 1 },
		conf => "wal_keep_size = 1GB\n");
	my $standby = PostgreSQL::Test::Cluster->new("promoted_$evicted");

	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('postgres', 'SELECT count(*) FROM t');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');

	# a record that leaves the LSN of the page alone, and a commit after it
	$primary->safe_psql('postgres', 'VACUUM (FREEZE off) t');
	$primary->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', q{SELECT dw_evict('t')}) if $evicted;

	# the checkpoint that follows would move the redo pointer
	$standby->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-checkpoint-drained', 'wait')}
	);
	$standby->promote;
	$standby->wait_for_event('checkpointer',
		'doublewrite-checkpoint-drained');
	is( written_back($standby, $IMAGES, update(1))->[1],
		0,
		'promoted: page that redo has changed is not exempt'
		  . ($evicted ? ', read again' : ''));
	dw_wake($standby, 'doublewrite-checkpoint-drained');
	$standby->safe_psql('postgres', 'SELECT count(*) FROM t');
	$standby->safe_psql('postgres', 'CHECKPOINT');
	is(written_back($standby, $IMAGES, update(2))->[1],
		1, 'after the next checkpoint it is');
	$standby->stop;
	$primary->stop;
}

# Blocks truncated and added again: redo meets records of their earlier
# life first, so they are not exempt
{
	my $node = dw_quiet_node('added_again');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE again (id int, f text);
		INSERT INTO again SELECT i, repeat('a', 500) FROM generate_series(1, 500) i;
		VACUUM again;
		CHECKPOINT});
	my $old = dw_snapshot($node);
	$node->safe_psql('postgres', $_)
	  foreach (
		q{UPDATE again SET id = id + 1 WHERE id % 2 = 0 AND id > 100},
		q{DELETE FROM again WHERE id > 5},
		q{VACUUM again},
		q{INSERT INTO again SELECT i, repeat('b', 300) FROM generate_series(1001, 1300) i},
		q{SELECT dw_evict('again'); SELECT dw_drain()});
	$node->stop('immediate');
	my $torn = dw_tear($node, $old, unlogged_too => 1);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
	dw_start_after_crash($node, $torn);
	is( $node->safe_psql(
			'postgres', 'SELECT count(*) FROM again WHERE id > 1000'),
		300,
		'blocks added again are right');
	$node->stop;
}

# The same with blocks that were exempt before the truncation: what is remembered
# of them does not count
{
	my $node = dw_quiet_node('exempt_before');

	$node->safe_psql('postgres', q{CREATE TABLE t (id int, f text)});
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $load =
	  q{INSERT INTO t SELECT i, repeat('a', 400) FROM generate_series(1, 500) i};
	cmp_ok(written_back($node, $load)->[0],
		'<=', 1, 'loaded: only the free space map is logged');
	$node->safe_psql('postgres', q{DELETE FROM t});
	$node->safe_psql('postgres', q{VACUUM t});
	is($node->safe_psql('postgres', q{SELECT pg_relation_size('t')}),
		0, 'truncated');
	cmp_ok(written_back($node, $load)->[0],
		'>', 20, 'loaded again: all is logged');
	$node->stop;
}

done_testing();
