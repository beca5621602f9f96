# Copyright (c) 2025, PostgreSQL Global Development Group

# Copies of pages that a drop or truncation takes away: no process reads them any
# more (R6, R7), but until the removal is durable they stay in the log, if home
# may be torn (R3).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

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

my $setup = q{
	CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
	INSERT INTO t SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 100) i;
	CHECKPOINT};

# Run SQL in a session of its own, which may wait or fail.
sub background
{
	my ($node, $sql) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$session->query_until(qr/started/, "\\echo started\n$sql;\n");
	return $session;
}

# Copies of pages of a table in the live range of the log
sub live_copies_of
{
	my ($node, $path) = @_;
	my ($rel) = $path =~ /(\d+)$/;

	return
	  scalar(grep { $_->{rel} == $rel && $_->{fork} == 0 }
		  values %{ dw_live_copies(dw_read_log($node)) });
}

# Nothing is live but what is logged next
sub log_is_free
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		'SELECT low_water_logged >= next_batch - 1 FROM dw_state()');
}

# --- A batch that an error has left outlives the truncation of its pages

{
	my $node =
	  dw_quiet_node('outlived', conf => 'double_write_stage_size = 8MB');

	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION pg_visibility;
		CREATE TABLE t (id int PRIMARY KEY, v int) WITH (fillfactor = 50);
		INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i});
	$node->safe_psql('postgres', $_)
	  foreach (
		'VACUUM t',
		'CHECKPOINT',
		'UPDATE t SET v = 1 WHERE id <= 100',
		'VACUUM t',
		q{SELECT dw_evict('t'), points_fail_at('doublewrite-log-write', 'EIO', 1, 2)}
	  );
	isnt($node->psql('postgres', 'SELECT dw_drain()'),
		0, 'batch is left by an error');
	$node->safe_psql('postgres', $_)
	  foreach (
		q{SELECT pg_truncate_visibility_map('t')},
		'DELETE FROM t WHERE id % 2 = 0',
		q{SELECT dw_evict('t')});

	my $count = sub {
		my ($off) = @_;

		return $node->safe_psql(
			'postgres', qq{
			SET enable_bitmapscan = off; SET enable_indexscan = on;
			SET enable_$off = off;
			SELECT count(*) FROM t WHERE id > 0});
	};
	is($count->('indexonlyscan'), 10000, 'rows by the heap');
	is($count->('seqscan'), 10000, 'rows by visibility map and index');
	$node->safe_psql('postgres', 'SELECT dw_drain()');
	is($count->('seqscan'), 10000, '... and when all is home');
	$node->stop;
}

# --- The same block is added again and staged anew beside its discarded copy

{
	my $node = dw_quiet_node('added_again');

	$node->safe_psql('postgres', $_)
	  foreach (
		$setup,
		'UPDATE t SET v = 1',
		'DELETE FROM t',
		q{SELECT dw_drain(), dw_evict('t'), points_fail_at('doublewrite-log-synced', 'EIO')}
	  );
	isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
		0, 'batch is left by an error');
	$node->safe_psql('postgres', $_)
	  foreach (
		'VACUUM t',
		q{INSERT INTO t SELECT i, 2, repeat('y', 1000) FROM generate_series(1, 50) i},
		q{SELECT dw_evict('t')});
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), min(v), max(v) FROM t'),
		'50|2|2',
		'new pages are read');

	# once more, with two generations of discarded copies
	$node->safe_psql('postgres', $_)
	  foreach (
		'DELETE FROM t',
		'VACUUM t',
		q{INSERT INTO t SELECT i, 3, repeat('z', 1000) FROM generate_series(1, 50) i},
		q{SELECT dw_evict('t'), dw_drain()});
	is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
		0, 'stage is empty');
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), min(v), max(v) FROM t'),
		'50|3|3',
		'new pages are home');
	$node->stop;
}

# --- A page that may be torn at home is removed: the only good copy stays in
# the log until the removal is durable

my %removals = (
	'dropped' => 'DROP TABLE t',
	'truncated' => 'VACUUM t',
	'dropped in a batch' => 'DROP TABLE t');

foreach my $what (sort keys %removals)
{
	my $in_batch = $what =~ /batch/;
	my ($name) = $what =~ /^(\w+)/;
	my $node = dw_quiet_node($name . ($in_batch ? '_batch' : ''));

	$node->safe_psql('postgres', $setup);
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
	my $old = dw_snapshot($node);
	$node->safe_psql('postgres', 'UPDATE t SET v = 1 WHERE id < 50');
	$node->safe_psql('postgres', 'DELETE FROM t') if $name eq 'truncated';
	$node->safe_psql(
		'postgres', q{
		SELECT dw_drain(), dw_evict('t'), points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)}
	);

	my ($flusher, $remover);
	if ($in_batch)
	{
		$node->{dw_held} = 'test-points-fail';
		$node->safe_psql('postgres',
			"SELECT injection_points_attach('test-points-fail', 'wait')");
		$flusher = background($node, 'SELECT dw_flush_batch()');
		dw_wait_until_held($node);
		$remover = background($node, $removals{$what});
		$node->poll_query_until(
			'postgres',
			q{SELECT count(*) > 0 FROM pg_stat_activity
			  WHERE query LIKE 'DROP%' AND wait_event LIKE 'DoubleWrite%'}
		) or die 'DROP does not wait';
		dw_release_flusher($node);
		dw_finish($flusher, $remover);
	}
	else
	{
		isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
			0, "$what: home write failed");
		$node->safe_psql('postgres', $removals{$what});
	}
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-home-write'), dw_drain()});
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	$node->stop('immediate');

	cmp_ok(live_copies_of($node, $path),
		'>', 0, "$what: copies are still live");

	# the removal was not durable
	open(my $fh, '>:raw', $node->data_dir . "/$path") or die "$path: $!";
	print $fh $old->{$path};
	close($fh);
	my $torn = dw_tear($node, $old, only => qr/^\Q$path\E$/);
	cmp_ok($torn->{logged}, '>', 0, "$what: pages were torn");
	dw_start_after_crash($node, $torn);

	# and when it is durable, they go
	$node->safe_psql('postgres', 'CHECKPOINT');
	is(log_is_free($node), 't', "$what: log is free after a checkpoint");
	$node->stop;
}

# --- The copies go when the removal is durable: by a checkpoint, when space is
# needed, and before the log is given up

{
	my $node =
	  dw_quiet_node('released', conf => 'double_write_buffer_size = 16MB');
	my $remove_torn = sub {
		$node->safe_psql(
			'postgres', q{
			UPDATE t SET v = 1 WHERE id < 50;
			SELECT dw_drain(), dw_evict('t'), points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)}
		);
		isnt($node->psql('postgres', 'SELECT dw_flush_batch()'),
			0, 'home write failed');
		$node->safe_psql('postgres', 'DROP TABLE t');
		$node->safe_psql('postgres',
			q{SELECT points_clear('doublewrite-home-write'), dw_drain(), dw_sync_cycle()}
		);
		is(log_is_free($node), 'f', 'copies of removed pages are kept');
	};

	$node->safe_psql('postgres', $setup);
	# what the checkpointer does for the log would settle the removal as well
	$node->poll_query_until('postgres',
		'SELECT last_segno - segno >= 2 FROM dw_state()')
	  or die 'no segments are ready';
	$remove_torn->();
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	is(log_is_free($node), 't', 'not after a checkpoint');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE fill (id int, filler text STORAGE PLAIN);
		INSERT INTO fill SELECT i, repeat('x', 6000) FROM generate_series(1, 1200) i}
	);
	$node->safe_psql('postgres', $setup);
	$remove_torn->();
	my $mark =
	  $node->safe_psql('postgres', 'SELECT low_water_logged FROM dw_state()');
	$node->safe_psql(
		'postgres', q{
		UPDATE fill SET id = id + 1;
		SELECT dw_evict_all(), dw_drain()});
	ok( $node->poll_query_until(
			'postgres', "SELECT low_water_logged > $mark FROM dw_state()"),
		'not when half of the log is in use');

	# the checkpointer has synced all removals, and then there is one more
	my $point = 'doublewrite-switching-off';
	$node->safe_psql('postgres', $setup);
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	$node->append_conf('postgresql.conf',
		q{io_torn_pages_protection = 'off'});
	$node->reload;
	$node->wait_for_event('checkpointer', $point);
	$remove_torn->();
	dw_wake($node, $point);
	ok( $node->poll_query_until(
			'postgres', 'SELECT NOT armed FROM dw_state()'),
		'not when the log is given up');
	$node->stop;
}

# --- A truncation is forgotten when the log holds no copy from before it

{
	my $node = dw_quiet_node(
		'forgotten', conf => qq{
wal_level = minimal
max_wal_senders = 0
});
	my $cycles = sub {
		my ($table, $checkpoint) = @_;
		my $session = $node->background_psql('postgres');

		$session->query_safe(
			qq{
			BEGIN; CREATE TABLE $table (i int); INSERT INTO $table VALUES (1);
			TRUNCATE $table; INSERT INTO $table SELECT generate_series(1, 10000)});
		$node->safe_psql('postgres', 'CHECKPOINT') if $checkpoint;
		$node->safe_psql('postgres',
			q{UPDATE t SET v = v + 1; SELECT dw_evict('t'), dw_drain()});
		my $before =
		  $node->safe_psql('postgres', 'SELECT sync_cycles FROM dw_stats()');
		$session->query_safe('COMMIT');
		$session->quit;
		return $node->safe_psql('postgres',
			'SELECT sync_cycles FROM dw_stats()') - $before;
	};

	$node->safe_psql('postgres', $setup);
	cmp_ok($cycles->('one', 0),
		'>', 0, 'commit after a truncation empties the log');
	is($cycles->('two', 1), 0, '... but not after a checkpoint');
	$node->stop;
}

done_testing();
