
# Copyright (c) 2025, PostgreSQL Global Development Group

# The WAL pipeline never reads a page that an earlier record, not replayed yet,
# rebuilds: it may be torn on disk.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

# Write garbage over the second half of some blocks of a relation, which need not
# have so many yet.
sub tear
{
	my ($node, $path, $first, $end) = @_;

	foreach my $block ($first .. $end - 1)
	{
		my ($file, $offset) = place_of_block($node, $path, $block);

		append_to_file($node->data_dir . "/$file", '');
		write_block($node, $file, $offset + BLCKSZ / 2,
			"\x5a" x (BLCKSZ / 2));
	}
	return;
}

# A table with an index whose leaf pages are all full.  Returns the path of the
# index and the number of its blocks.
sub full_index
{
	my ($node, $name) = @_;

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (k numeric, filler text);
		INSERT INTO $name SELECT i, '' FROM generate_series(1, 120000) i;
		CREATE INDEX ${name}_k ON $name (k) WITH (fillfactor = 100);
		VACUUM;
		CHECKPOINT;
	});
	return (
		$node->safe_psql(
			'postgres', "SELECT pg_relation_filepath('${name}_k')"),
		$node->safe_psql(
			'postgres', "SELECT pg_relation_size('${name}_k') / 8192"));
}

# In random order, each leaf page is split by the first key inserted there, and the
# last ones go to its new right half: one record that reads the left page and
# rebuilds the right one, and others that change the right one.
sub split_leaves
{
	my ($node, $name, $checking) = @_;

	$node->safe_psql(
		'postgres', qq{
		DO \$\$
		DECLARE
			leaf int;
		BEGIN
			FOR leaf IN SELECT i FROM generate_series(1, 120000, 400) i
					ORDER BY hashint4(i) LOOP
				PERFORM set_config('wal_consistency_checking', '$checking', false);
				INSERT INTO $name VALUES (leaf + 0.5);
				PERFORM set_config('wal_consistency_checking', '', false);
				INSERT INTO $name
					SELECT leaf + i + 0.5 FROM generate_series(50, 350, 50) i;
			END LOOP;
		END
		\$\$;
	});
	return $node->safe_psql('postgres',
		"SELECT pg_relation_size('${name}_k') / 8192");
}

sub check_index
{
	my ($node, $name) = @_;

	is( $node->safe_psql(
			'postgres',
			"SET enable_seqscan = off; SELECT count(*) FROM $name WHERE k > 0"
		),
		122400,
		"$name: nothing is lost");
	return;
}

my $primary = xlp_primary('primary');
xlp_page_images($primary, 0);
$primary->restart;
$primary->safe_psql('postgres', 'CREATE EXTENSION injection_points');

# --- The rebuilt page has an image, which is not applied

my ($index, $first) = full_index($primary, 'checked');
my $end = split_leaves($primary, 'checked', 'btree');
$primary->stop('immediate');
$primary->backup_fs_cold('checked');
$primary->start;
cmp_ok($end - $first, '>', 200, "checked: most leaf pages are split");

my $node = PostgreSQL::Test::Cluster->new('checked');
$node->init_from_backup($primary, 'checked');
$node->append_conf('postgresql.conf', xlp_conf('on'));
tear($node, $index, $first, $end);
$node->start;
cmp_ok(xlp_decoded($node), '>', 0, "checked: pipeline has decoded");
unlike(
	slurp_file($node->logfile),
	qr/invalid page|has failed/,
	"checked: it has read no torn page");
check_index($node, 'checked');
$node->stop;
$node->clean_node;

# On a standby, the startup process itself reads the first record and waits.  Hand
# over the second one, and keep redo from applying it.
sub hold_redo
{
	my ($primary, $standby, $sql) = @_;

	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('xlogpipeline-record-ready', 'wait')"
	);
	$sql->();
	$primary->wait_for_catchup($standby, 'flush');
	$standby->poll_query_until('postgres',
		"SELECT pg_get_wal_replay_pause_state() = 'paused'")
	  or die;
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$standby->wait_for_event('walpipeline', 'xlogpipeline-record-ready');
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	return;
}

# The worker reads ahead as far as it can.
sub let_worker_go
{
	my ($standby) = @_;

	$standby->safe_psql(
		'postgres',
		"SELECT injection_points_detach('xlogpipeline-record-ready');
		 SELECT injection_points_wakeup('xlogpipeline-record-ready')");
	$standby->poll_query_until(
		'postgres',
		q{SELECT pg_get_wal_replay_pause_state() = 'paused' AND
			NOT EXISTS (SELECT FROM pg_stat_activity
				WHERE backend_type = 'walpipeline' AND
					wait_event NOT LIKE 'WalPipeline%')}) or die;
	return;
}

# --- The limit of I/Os is reached in the middle of a record

# The limit is an eighth of shared buffers: 16.  When settings are loaded, counting
# begins anew.
($index, $first) = full_index($primary, 'midway');
$primary->backup('midway');
my $standby = PostgreSQL::Test::Cluster->new('midway');
$standby->init_from_backup($primary, 'midway', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on')
	  . "shared_buffers = 1MB\nwal_pipeline_queue_size = 16MB\n");
$standby->start;
hold_redo(
	$primary, $standby,
	sub {
		$end = split_leaves($primary, 'midway', '');
		tear($standby, $index, $first, $end);
	});
let_worker_go($standby);
foreach (1 .. 10)
{
	my $prefetched = $standby->safe_psql('postgres',
		'SELECT prefetch FROM pg_stat_recovery_prefetch');

	$standby->reload;
	$standby->poll_query_until(
		'postgres', qq{
		SELECT prefetch > $prefetched OR
			NOT EXISTS (SELECT FROM pg_stat_activity
				WHERE backend_type = 'walpipeline')
		FROM pg_stat_recovery_prefetch}) or die;
}
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
unlike(
	slurp_file($standby->logfile),
	qr/invalid page|has failed/,
	'midway: no torn page has been read');
check_index($standby, 'midway');
$standby->stop;
$standby->clean_node;

# --- Prefetching is switched on before a record has been replayed that was
# --- passed on without it

xlp_page_images($primary, 1);
$primary->restart;
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE torn (id int, v int) WITH (fillfactor = 50);
	INSERT INTO torn SELECT i, 0 FROM generate_series(1, 10) i;
	CREATE TABLE filler (id int);
	VACUUM torn;
});
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('torn')");
$primary->backup('base');

$standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on') . "recovery_prefetch = off\n");
$standby->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$standby->stop;
tear($standby, $path, 0, 1);
my $offset = -s $standby->logfile;
$standby->start;

# The first record that is handed over is the image of the torn page.
hold_redo(
	$primary, $standby,
	sub {
		$primary->safe_psql(
			'postgres',
			"SELECT pg_logical_emit_message(false, 'test', 'first');
			 UPDATE torn SET v = 1 WHERE id = 1");
		$primary->safe_psql('postgres', 'UPDATE torn SET v = 2 WHERE id = 2');
		$primary->safe_psql('postgres',
			'INSERT INTO filler SELECT generate_series(1, 5000)');
	});
$standby->append_conf('postgresql.conf', 'recovery_prefetch = on');
$standby->reload;
$standby->poll_query_until('postgres',
	"SELECT setting = 'on' FROM pg_settings WHERE name = 'recovery_prefetch'")
  or die;
let_worker_go($standby);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
unlike(
	slurp_file($standby->logfile, $offset),
	qr/invalid page|has failed/,
	'switched on: no torn page has been read');
is($standby->safe_psql('postgres', 'SELECT sum(v) FROM torn'),
	3, 'switched on: image was applied to the torn page');
$standby->stop;

# --- Records refer to the primary pages of hash buckets, which redo would only lock;
# --- later ones have their images

# Tear the primary pages that have an overflow page; returns how many there are.
sub tear_buckets
{
	my ($node, $path) = @_;
	my $torn = 0;

	for (my $block = 0;; $block++)
	{
		my $page = read_block($node, place_of_block($node, $path, $block));

		last unless defined $page;
		my ($next, $flag) = unpack('x4 L x4 S', substr($page, -16));
		next unless $flag & 2 && $next != 0xffffffff;
		tear($node, $path, $block, $block + 1);
		$torn++;
	}
	return $torn;
}

$primary->safe_psql(
	'postgres', q{
	CREATE TABLE hashed (id int, k int);
	INSERT INTO hashed SELECT i, i % 50 FROM generate_series(1, 60000) i;
	CREATE INDEX hashed_k ON hashed USING hash (k);
	CHECKPOINT;
});
$path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('hashed_k')");
$primary->safe_psql('postgres',
	"DELETE FROM hashed WHERE $_; VACUUM (INDEX_CLEANUP ON) hashed")
  foreach ('id > 59000', 'id <= 1000');
$primary->stop('immediate');
$primary->backup_fs_cold('hashed');

$node = PostgreSQL::Test::Cluster->new('hashed');
$node->init_from_backup($primary, 'hashed');
$node->append_conf('postgresql.conf', xlp_conf('on'));
cmp_ok(tear_buckets($node, $path), '>', 10, 'hashed: buckets are torn');
$node->start;
cmp_ok(xlp_decoded($node), '>', 0, 'hashed: pipeline has decoded');
unlike(
	slurp_file($node->logfile),
	qr/invalid page|has failed/,
	'hashed: no torn page has been read');
is( $node->safe_psql(
		'postgres',
		'SET enable_seqscan = off; SELECT count(*) FROM hashed WHERE k = 7'),
	1160,
	'hashed: nothing is lost');
$node->stop;

done_testing();
