
# Copyright (c) 2025, PostgreSQL Global Development Group

# Several versions of one page: in the stage, where reads must find the newest
# (R6), and in the log, where the newest is the one that was logged last, for
# the LSN may be the same (R4).

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

# Without checksums, hint bits change a page and leave its LSN alone.
my $node = dw_new_node(
	'main',
	checksums => 0,
	conf => qq{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
});

$node->start;
dw_extensions($node);

sub stat_of
{
	my ($column) = @_;

	return $node->safe_psql('postgres', "SELECT $column FROM dw_stats()");
}

# --- Reads while newer versions are staged

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int);
	INSERT INTO t SELECT i, i FROM generate_series(1, 100) i;
	VACUUM t;
	CHECKPOINT;
	SELECT dw_evict_all();
	SELECT dw_drain();
});
my $path = dw_path_of($node, 't');
my $home = read_block($node, $path, 0);

dw_hold_flusher($node);
$node->safe_psql('postgres',
	q{UPDATE t SET v = 1000 WHERE id = 1; SELECT dw_evict('t')});
my $flusher = $node->background_psql('postgres');
$flusher->query_until(qr/started/,
	"\\echo started\nSELECT dw_flush_batch();\n");
dw_wait_until_held($node);

my $hits = stat_of('stage_hits');
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
	1000, 'page in a batch is read from the stage');
cmp_ok(stat_of('stage_hits'), '>', $hits, '... and counted');

$node->safe_psql('postgres',
	q{UPDATE t SET v = 2000 WHERE id = 1; SELECT dw_evict('t')});
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
	2000, 'newer version beside it is read');

my $replaced = stat_of('replaced');
$node->safe_psql('postgres',
	q{UPDATE t SET v = 3000 WHERE id = 1; SELECT dw_evict('t')});
cmp_ok(stat_of('replaced'), '>', $replaced, 'staged version is replaced');
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
	3000, 'newest version is read');
is( $node->safe_psql('postgres', 'SELECT sum(v) FROM t'),
	3000 + 5050 - 1,
	'... by a sequential scan, too');
ok(read_block($node, $path, 0) eq $home, 'all that while home is as it was');

dw_release_flusher($node);
$flusher->quit;
$node->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
ok(read_block($node, $path, 0) ne $home, 'then home is written');
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
	3000, 'home holds the newest version');

# --- Versions with the same LSN

$node->safe_psql(
	'postgres', q{
	CREATE TABLE h (id int);
	INSERT INTO h SELECT i FROM generate_series(1, 100) i;
	CHECKPOINT;
	UPDATE h SET id = -id WHERE id <= 50;
	SELECT dw_evict('h');
	SELECT dw_drain();
});

# Within an epoch the second version would need no copy.
$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')});
my $cycle = $node->background_psql('postgres', on_error_stop => 0);
$cycle->query_until(qr/started/, "\\echo started\nSELECT dw_sync_cycle();\n");
$node->wait_for_event('client backend', 'doublewrite-sync-cycle');
$node->safe_psql(
	'postgres', q{
	SELECT count(*) FROM h;
	SELECT dw_evict('h');
	SELECT dw_drain();
});
$path = dw_path_of($node, 'h');
$node->stop('immediate');
$cycle->{run}->finish;

my ($rel) = $path =~ /(\d+)$/;
my @copies = grep { $_->{rel} == $rel && $_->{fork} == 0 && $_->{blkno} == 0 }
  map { @{ $_->{entries} } } @{ dw_read_log($node)->{live} };

is(scalar(@copies), 2, 'log holds two versions');
is($copies[0]{lsn}, $copies[1]{lsn}, '... with the same LSN');
ok($copies[0]{page} ne $copies[1]{page}, '... which differ');
ok(read_block($node, $path, 0) eq $copies[1]{page}, 'the second is at home');

# Stop right after restore, to look at the page before anybody else does.
sub restored_page
{
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf',
		"test_points.crash_at = 'doublewrite-restored'");
	ok(!dw_poll_start($node), 'stopped after restore');
	dw_wait_for_crash($node, $offset);
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''");
	return read_block($node, $path, 0);
}

# home: as if the second write had not happened; mixed; garbage
my $mixed =
  substr($copies[0]{page}, 0, 4096) . substr($copies[1]{page}, 4096);
my %homes = (
	'older version' => $copies[0]{page},
	'mixture' => $mixed,
	'garbage' => 'garbage!' x 1024);

ok($mixed ne $copies[0]{page} && $mixed ne $copies[1]{page},
	'mixture differs from both');
foreach my $what (sort keys %homes)
{
	write_block($node, $path, 0, $homes{$what});
	ok( restored_page() eq $copies[1]{page},
		"$what at home: newest version restored");
}

write_block($node, $path, 0, $mixed);
dw_start_after_crash($node, { logged => 1 });
is( $node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM h'),
	'100|' . (5050 - 2 * 1275),
	'contents are right');
dw_check_amcheck($node);
dw_check_stopped($node);

# --- A page goes home as it is read from its slot, which another page takes

{
	my $reused = dw_quiet_node('reused');
	my $point = 'doublewrite-staged-found';
	my $in_use = 'SELECT in_use FROM dw_state()';

	$reused->safe_psql(
		'postgres', q{
		CREATE TABLE t AS SELECT 1 AS v;
		CREATE TABLE o AS SELECT 2 AS v;
		SELECT dw_evict_all(), dw_drain();
		UPDATE t SET v = 10;
		SELECT dw_evict('t')});
	is($reused->safe_psql('postgres', $in_use), 1, 'a page is staged');
	my $reader = dw_start(
		$reused, 'reader',
		qq{SELECT injection_points_set_local(); SELECT injection_points_attach('$point', 'wait');
		SELECT v FROM t});
	ok(dw_waits_for($reused, 'reader', $point), '... and has been found');
	$reused->safe_psql('postgres', 'SELECT dw_drain()');
	is($reused->safe_psql('postgres', $in_use), 0, '... but goes home');
	$reused->safe_psql('postgres',
		q{UPDATE o SET v = 20; SELECT dw_evict('o')});
	is($reused->safe_psql('postgres', $in_use),
		1, '... and another one is staged');
	dw_wake($reused, $point);
	like($reader->query('SELECT 1'),
		qr/^10$/m, 'a reader does not take it for the first one');
	$reader->quit;
	$reused->stop;
}

# --- A process that looks at files finds there what was staged

{
	my $moved = dw_quiet_node('moved',
		conf => "wal_level = minimal\nmax_wal_senders = 0\n");
	my $load = q{SELECT i AS id, 1 AS v FROM generate_series(1, 5000) i};

	dw_tablespace($moved, 'other');
	$moved->safe_psql('postgres', "CREATE TABLE t AS $load");
	$moved->safe_psql('postgres', 'CHECKPOINT');
	$moved->safe_psql(
		'postgres', q{
		UPDATE t SET v = 2;
		SELECT dw_evict('t');
		ALTER TABLE t SET TABLESPACE other});
	is($moved->safe_psql('postgres', 'SELECT min(v), count(*) FROM t'),
		'2|5000', 'ALTER TABLE SET TABLESPACE copies what was staged');

	# with a file large enough to be synced instead of being written to WAL
	$moved->safe_psql(
		'postgres', qq{
		SET wal_skip_threshold = 0;
		BEGIN;
		CREATE TABLE loaded AS $load;
		SELECT dw_evict('loaded');
		COMMIT});
	is($moved->safe_psql('postgres', 'SELECT staged FROM dw_state()'),
		0, 'what was loaded without WAL is home at the commit');
	$moved->stop('immediate');
	dw_start_after_crash($moved);
	is( $moved->safe_psql('postgres', 'SELECT min(v), count(*) FROM loaded'),
		'1|5000',
		'... and there after a crash');
	$moved->stop;
}

# Redo copies the files of a database, and the end of recovery init forks that redo
# has made
{
	my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	my $contents = q{SELECT min(v), count(*) FROM t};

	$primary->safe_psql('postgres', 'CREATE DATABASE template');
	$primary->safe_psql(
		'template', q{
		CREATE TABLE t AS SELECT i AS id, 1 AS v FROM generate_series(1, 5000) i});
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('template', 'UPDATE t SET v = 2');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT dw_evict_all()');
	cmp_ok($standby->safe_psql('postgres', 'SELECT staged FROM dw_state()'),
		'>', 20, 'pages are staged on the standby');
	$primary->safe_psql('postgres',
		'CREATE DATABASE copied TEMPLATE template STRATEGY file_copy');
	$primary->wait_for_replay_catchup($standby);
	is($standby->safe_psql('copied', $contents),
		'2|5000', 'redo of CREATE DATABASE copies what was staged');

	$primary->safe_psql('postgres',
		'CREATE UNLOGGED TABLE u (id int PRIMARY KEY)');
	$primary->wait_for_replay_catchup($standby);
	$standby->promote;
	is( $standby->safe_psql(
			'postgres', q{
			INSERT INTO u SELECT i FROM generate_series(1, 100) i;
			SET enable_seqscan = off;
			SELECT count(*) FROM u WHERE id > 50}),
		50,
		'promotion copies init forks that were staged');
	$_->stop foreach ($standby, $primary);
}

done_testing();
