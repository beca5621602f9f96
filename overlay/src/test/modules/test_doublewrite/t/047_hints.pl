# Copyright (c) 2025, PostgreSQL Global Development Group

# Of a heap page in which only hints have changed since the last checkpoint, the log
# gets a note.  With it a start tells a page torn by such a write, which needs but a
# new checksum, from one that is damaged.

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
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $rows = 2000;

# A quiet server with a table whose rows no session has looked at since they were
# committed, all of it durable
sub node_with_rows
{
	my ($name, %params) = @_;
	my $node = dw_quiet_node($name, %params);

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE t (id int, v int, filler text);
		INSERT INTO t SELECT i, 0, repeat('x', 100) FROM generate_series(1, $rows) i;
		SELECT dw_evict_all(), dw_drain();
		CHECKPOINT});
	return $node;
}

sub pages
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		q{SELECT pg_relation_size('t') / 8192});
}

# What write-back of the table counts after statements, or calls: copies, notes and the
# like, pages in the epoch
sub counts_of
{
	my ($node, @statements) = @_;
	my $counters = 'SELECT logged, only_hints, in_epoch FROM dw_stats()';

	# what these statements read of the catalogs they write hints to, too
	$node->safe_psql('postgres', q{SELECT dw_evict_all(), dw_drain()});
	foreach my $statement (@statements)
	{
		ref($statement)
		  ? $statement->()
		  : $node->safe_psql('postgres', $statement);
	}
	my @before = split /\|/, $node->safe_psql('postgres', $counters);
	$node->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	return [ map { $after[$_] - $before[$_] } 0 .. 2 ];
}

my $look = 'SELECT count(*) FROM t';
# a row more, which leaves nothing to be pruned
my $change = q{INSERT INTO t VALUES (0, 0, '')};

sub check_rows
{
	my ($node, $what) = @_;

	is( $node->safe_psql(
			'postgres', 'SELECT count(nullif(id, 0)), sum(id) FROM t'),
		"$rows|" . $rows * ($rows + 1) / 2,
		"$what: nothing lost");
	return;
}

# Hints, and nothing else
{
	my $node = node_with_rows('hints');
	my $old = dw_snapshot($node);
	my $pages = pages($node);
	my $bytes =
	  $node->safe_psql('postgres', 'SELECT log_bytes FROM dw_stats()');

	is_deeply(
		counts_of($node, $look),
		[ 0, $pages, 0 ],
		'hints: each page is noted');
	cmp_ok(
		$node->safe_psql('postgres', 'SELECT log_bytes FROM dw_stats()') -
		  $bytes,
		'<',
		$pages * BLCKSZ,
		'hints: the log gets less than a copy of each');
	$node->stop('immediate');
	command_like(
		[ 'pg_doublewrite', 'list', '--pages', $node->data_dir ],
		qr/block 0, LSN \S+, hints only/,
		'hints: listed as such');
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{noted}, '>=', $pages, 'hints: each page is torn');
	command_checks_all(
		[ 'pg_doublewrite', 'dry-run', $node->data_dir ],
		0, [qr/^ +$pages +0 +0 +base/m],
		[qr/^$/], 'hints: dry run would restore each page');
	dw_start_after_crash($node, $torn);
	check_rows($node, 'hints');

	# a page that is changed after it was noted, in the same epoch
	is_deeply(counts_of($node, $change), [ 1, 0, 0 ], 'a change is copied');
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply(counts_of($node, $look), [ 0, 1, 0 ], 'its hints are noted');
	is_deeply(
		counts_of($node, $change),
		[ 1, 0, 0 ],
		'a change after hints is copied');
	is_deeply(
		counts_of($node, $look),
		[ 0, 0, 1 ],
		'... and covers hints after it');
	$node->stop('immediate');
	dw_start_after_crash($node, dw_tear($node, $old));
	check_rows($node, 'changes');

	# a note does not outlive the sync of its page, nor keeps it from that
	$node->safe_psql('postgres', "$change; CHECKPOINT");
	is_deeply(
		counts_of($node, $look),
		[ 0, 1, 0 ],
		'noted before a sync cycle');
	my $cycle = q{SELECT sync_cycle_files FROM dw_stats()};
	my $files = $node->safe_psql('postgres', $cycle);
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	cmp_ok($node->safe_psql('postgres', $cycle),
		'>', $files, 'the cycle syncs its file');
	$node->stop('immediate');
	is(scalar(keys %{ dw_live_notes(dw_read_log($node)) }),
		0, '... and frees the note');
	dw_start_after_crash($node, undef);
	$node->stop;
}

# A change of which no record was reported, and hints
{
	my $node = node_with_rows('unreported');

	is_deeply(
		counts_of($node, q{SELECT dw_dirty('t')}, $look),
		[ pages($node), 0, 0 ],
		'unreported: each page is copied');

	# Redo would not bring it back on an older copy.  Extensions rely on that.
	is_deeply(
		counts_of($node, q{SELECT dw_dirty('t')}),
		[ pages($node), 0, 0 ],
		'unreported again: each page is copied again');

	# ... and that FlushOneBuffer() writes to the file
	my $home = 'SELECT home_pages FROM dw_stats()';
	my $pages = $node->safe_psql('postgres', $home);
	is( $node->safe_psql(
			'postgres',
			"SELECT dw_dirty('t'); SELECT dw_flush_one('t'); $home"),
		"\n\n" . ($pages + 1),
		'FlushOneBuffer() has the page written home');

	# ... and that pages of temporary relations may be logged
	is( $node->safe_psql(
			'postgres', q{
			CREATE TEMPORARY TABLE private AS SELECT 1 AS i;
			SELECT dw_log_page('private');
			SELECT i FROM private}),
		"\n1",
		'a page of a temporary relation is logged');
	$node->stop;

	# ... also if the change was in a version that never went home
	$node = node_with_rows('unreported_staged');
	is_deeply(
		counts_of($node, q{SELECT dw_dirty('t'), dw_evict('t')}, $look),
		[ pages($node), 0, 0 ],
		'unreported, staged: each page is copied');
	$node->stop;

	# ... or in one that was logged, and called back by a sync cycle that frees its copy,
	# when there was a newer one
	$node = node_with_rows('unreported_recalled',
		conf => "double_write_stage_size = 8MB\n");
	is_deeply(
		counts_of(
			$node,
			q{SELECT dw_dirty('t'), dw_evict('t')},
			sub { dw_leave_runs($node) },
			$look,
			q{SELECT dw_evict('t')},
			'SELECT dw_sync_cycle()'),
		[ pages($node), 0, 0 ],
		'unreported, recalled: each page is copied');
	$node->stop;
}

# A page that reads right at home is written nevertheless, as its sync may have failed;
# and a start that crashes then is made once more
{
	my $node = node_with_rows('again');
	my $old = dw_snapshot($node);

	counts_of($node, $look);
	$node->stop('immediate');
	is(dw_expected_restored($node), 0, 'again: no page is torn');
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = 'doublewrite-restore-run'\n");
	my $offset = -s $node->logfile;
	$node->start(fail_ok => 1);
	dw_wait_for_crash($node, $offset);
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''\n");
	dw_start_after_crash($node, dw_tear($node, $old));
	check_rows($node, 'again');
	$node->stop;
}

# A restore reads and writes noted pages as it does others: there must not be more of
# them than the log has room for copies
{
	my $node = dw_quiet_node('many');

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int, filler text);
		ALTER TABLE t ALTER filler SET STORAGE PLAIN;
		INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 9000) i;
		SELECT dw_evict_all(), dw_drain();
		CHECKPOINT});
	my $cycles =
	  $node->safe_psql('postgres', 'SELECT sync_cycles FROM dw_stats()');
	cmp_ok(pages($node), '>', 1024,
		'many notes: pages for more than half of the log');
	is(counts_of($node, $look)->[0], 0, 'many notes: no copies');
	ok( $node->poll_query_until(
			'postgres', "SELECT sync_cycles > $cycles FROM dw_stats()"),
		'many notes: a sync cycle frees them');
	$node->stop;
}

# A change since the last checkpoint, after hints or before: a note would not do
my @cases =
  ([ 'changed_last', $look, $change ], [ 'changed_first', $change, $look ]);
foreach my $case (@cases)
{
	my ($what, @statements) = @$case;
	my $node = node_with_rows($what);
	my $old = dw_snapshot($node);

	is_deeply(
		counts_of($node, @statements),
		[ 1, pages($node) - 1, 0 ],
		"$what: that page is copied, the others are noted");
	$node->stop('immediate');
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0, "$what: that page is torn");
	dw_start_after_crash($node, $torn);
	check_rows($node, $what);
	$node->stop;
}

# While a copy is live that an epoch before has made, home may be torn in more than
# hints: it goes before a newer note
{
	my $node = node_with_rows('copy_first');
	my $pages = pages($node);
	my $point = 'doublewrite-sync-cycle';

	is_deeply(
		counts_of($node, q{SELECT dw_dirty('t')}),
		[ $pages, 0, 0 ],
		'copy first: a change that is no hint is copied');
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $session = dw_start($node, 'cycle', 'SELECT dw_sync_cycle()');
	$node->wait_for_event('client backend', $point);
	is_deeply(
		counts_of($node, $look),
		[ 0, $pages, 0 ],
		'copy first: hints after it are noted');
	$node->stop('immediate');
	$session->{run}->finish;

	my $log = dw_read_log($node);
	my $damaged = 0;
	foreach my $copy (values %{ dw_live_copies($log) })
	{
		my ($path, $offset) = dw_home_path($node, $copy);

		write_block($node, $path, $offset + BLCKSZ / 2,
			"\xA5" x (BLCKSZ / 2));
		$damaged++;
	}
	cmp_ok($damaged, '>=', $pages, 'copy first: pages are torn');
	dw_start_after_crash($node, undef);
	check_rows($node, 'copy first');
	$node->stop;
}

# A page that could not be written home still needs its copy: later hints are covered
# by that
{
	my $node = node_with_rows('home_fails');

	$node->safe_psql('postgres', q{SELECT dw_dirty('t'), dw_evict('t')});
	$node->safe_psql('postgres',
		q{SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)}
	);
	my ($ret) = $node->psql('postgres', 'SELECT dw_drain()');
	isnt($ret, 0, 'home write failed');
	$node->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-home-write')});
	my $counters = 'SELECT logged + in_epoch, only_hints FROM dw_stats()';
	my @before = split /\|/, $node->safe_psql('postgres', $counters);
	$node->safe_psql('postgres', $look);
	$node->safe_psql('postgres', q{SELECT dw_evict('t'), dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	cmp_ok($after[0] - $before[0],
		'>=', pages($node), 'its hints are covered by a copy');
	is($after[1], $before[1], '... and not noted');
	$node->stop;
}

# A page that could not be written home for its hints needs its note, or from a sync
# cycle on a copy
{
	my $node = node_with_rows('noted_home_fails');
	my $old = dw_snapshot($node);

	$node->safe_psql('postgres', q{SELECT dw_evict_all(), dw_drain()});
	$node->safe_psql('postgres', $look);
	$node->safe_psql(
		'postgres', q{SELECT dw_evict('t');
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)});
	my ($ret) = $node->psql('postgres', 'SELECT dw_drain()');
	isnt($ret, 0, 'home write of hints failed');
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	$node->stop('immediate');
	my $torn = dw_tear($node, $old, only => qr/^base/);
	cmp_ok($torn->{logged} + $torn->{noted},
		'>=', 1, '... and may have torn pages');
	dw_start_after_crash($node, $torn);
	check_rows($node, '...');
	$node->stop;
}

# Redo does not say what it changes, whether a standby writes its own hints, as without
# checksums, or not
foreach my $checksums (1, 0)
{
	my $primary = dw_quiet_node(
		"primary_$checksums",
		checksums => $checksums,
		init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new("standby_$checksums");

	$primary->safe_psql(
		'postgres', qq{
		CREATE TABLE t (id int, v int, filler text);
		INSERT INTO t SELECT i, 0, repeat('x', 100) FROM generate_series(1, $rows) i}
	);
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	foreach my $round (1, 2)
	{
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
		$standby->safe_psql('postgres', $look);
		$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres',
			q{SELECT dw_evict('t'); SELECT dw_drain()});
	}
	cmp_ok(
		$standby->safe_psql('postgres', 'SELECT logged FROM dw_stats()'),
		'>=',
		pages($standby),
		"standby, checksums $checksums: what redo has changed is copied");
	$standby->stop;
	$primary->stop;
}

# What is redone after clients have got in WAL has as well, so that copies which the crash has
# left in the log cover it
{
	my $point = 'instant-recovery-only-demands';
	my $node = node_with_rows(
		'redone', conf => q{
instant_recovery = on
recovery_workers = 1
});
	my $pages = pages($node);
	my $lock = 'SELECT count(*) FROM (SELECT FROM t FOR UPDATE)';

	is_deeply(
		counts_of($node, $lock),
		[ $pages, 0, 0 ],
		'redone: each page is copied');
	# a checkpoint has to wait for the other table, at which no session looks
	$node->safe_psql('postgres',
		"$lock; CREATE TABLE other AS SELECT 1 AS i");
	$node->stop('immediate');
	$node->append_conf('postgresql.conf',
		"test_points.fail_at = '$point:EIO'\n");
	ok(dw_poll_start($node), 'redone: server starts');
	is_deeply(
		counts_of($node, $look),
		[ 0, 0, $pages ],
		'redone: the copies before the crash cover it');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	check_rows($node, 'redone');
	$node->stop;
}

# So they do if a session changes the first page of a hash bucket, to which other records
# refer that are not followed
{
	my $node = dw_quiet_node('bucket');
	my $counters = 'SELECT logged, in_epoch FROM dw_stats()';

	$node->safe_psql('postgres', $_)
	  foreach (
		q{CREATE TABLE h (k int, n int);
		CREATE INDEX h_k_idx ON h USING hash (k);
		INSERT INTO h SELECT 1, i FROM generate_series(1, 1000) i},
		'CHECKPOINT',
		q{SELECT dw_dirty('h_k_idx'); SELECT dw_evict_all(), dw_drain()});
	foreach my $rows ('n > 990', 'n < 10')
	{
		$node->safe_psql('postgres', "DELETE FROM h WHERE $rows");
		$node->safe_psql('postgres', 'VACUUM h');
	}
	my @before = split /\|/, $node->safe_psql('postgres', $counters);
	$node->safe_psql('postgres',
		q{SELECT dw_evict('h_k_idx'); SELECT dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	is($after[0], $before[0], 'bucket: no page is copied again');
	cmp_ok($after[1], '>', $before[1], '... as copies cover them');
	$node->stop;
}

# Hints of other access methods are theirs to know
{
	my $node = node_with_rows('index');

	$node->safe_psql(
		'postgres', q{
		CREATE INDEX i ON t (id);
		DELETE FROM t WHERE id <= 100;
		SELECT dw_evict_all(), dw_drain();
		CHECKPOINT});
	$node->safe_psql(
		'postgres', q{
		SET enable_seqscan = off;
		SET enable_bitmapscan = off;
		SELECT count(*) FROM t WHERE id <= 100});
	my $counters = 'SELECT logged, only_hints FROM dw_stats()';
	my @before = split /\|/, $node->safe_psql('postgres', $counters);
	$node->safe_psql('postgres', q{SELECT dw_evict('i'), dw_drain()});
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	is_deeply(
		[ map { $after[$_] - $before[$_] } 0, 1 ],
		[ 1, 0 ],
		'index: a page with dead items is copied');
	$node->stop;
}

# Without WAL for new tables, what WAL does not know is more than hints
{
	my $node = node_with_rows(
		'minimal', conf => q{
wal_level = minimal
max_wal_senders = 0
});

	is_deeply(
		counts_of($node, $look),
		[ pages($node), 0, 0 ],
		'wal_level = minimal: each page is copied');
	$node->stop;
}

# Without checksums a page torn in its hints is as good as any
{
	my $node = node_with_rows('no_checksums', checksums => 0);
	my $pages = pages($node);
	my $old = dw_snapshot($node);
	my $writes = q{SELECT log_writes FROM dw_stats()};
	my $before = $node->safe_psql('postgres', $writes);

	is_deeply(
		counts_of($node, $look),
		[ 0, $pages, 0 ],
		'no checksums: not copied');
	is($node->safe_psql('postgres', $writes),
		$before, 'no checksums: nothing is noted');
	$node->stop('immediate');
	my $torn = dw_tear($node, $old, unlogged_too => 1);
	cmp_ok($torn->{unlogged}, '>=', $pages, 'no checksums: pages are torn');
	dw_start_after_crash($node, $torn);
	check_rows($node, 'no checksums');
	$node->stop;
}

# A page that is damaged in more than hints a note does not make right
{
	my $node = node_with_rows('damaged');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});

	counts_of($node, $look);
	$node->stop('immediate');
	my $page = read_block($node, $path, BLCKSZ);
	substr($page, 6000, 1) = ~substr($page, 6000, 1);
	write_block($node, $path, BLCKSZ, $page);
	foreach my $options ([], ['--pages'])
	{
		command_checks_all(
			[ 'pg_doublewrite', 'dry-run', @$options, $node->data_dir ],
			0,
			[qr/total/],
			[
				qr/^[^\n]*block 1 of file "\Q$path\E" would be left alone[^\n]*\n$/
			],
			'damaged: dry run says so');
	}
	my $offset = -s $node->logfile;
	ok(dw_poll_start($node), 'damaged: server starts');
	like(
		slurp_file($node->logfile, $offset),
		qr/double-write log: left alone 1 pages that do not fit their notes, the first of them block 1 of relation "\Q$path\E"/,
		'damaged: and says so');
	is(read_block($node, $path, BLCKSZ),
		$page, 'damaged: the page is left alone');
	my ($ret, undef, $err) = $node->psql('postgres', $look);
	isnt($ret, 0, 'damaged: a reader gets an error');
	like($err, qr/invalid page in block 1/, '... in the usual way');
	$node->stop;
}

# A page with a note that its file has lost and got again, as after a truncation
{
	my $node = node_with_rows('added');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	counts_of($node, $look);
	$node->stop('immediate');
	write_block($node, $path, BLCKSZ, "\0" x BLCKSZ);
	command_checks_all([ 'pg_doublewrite', 'dry-run', $node->data_dir ],
		0, [qr/total/], [qr/^$/], 'added: dry run leaves it alone');
	my $offset = -s $node->logfile;
	ok(dw_poll_start($node), 'added: server starts');
	unlike(slurp_file($node->logfile, $offset),
		qr/left alone/, 'added: without a word');
	is( read_block($node, $path, BLCKSZ),
		"\0" x BLCKSZ,
		'added: the page is left alone');
	$node->stop;
}

done_testing();
