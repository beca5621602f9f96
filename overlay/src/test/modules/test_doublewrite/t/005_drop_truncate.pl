
# Copyright (c) 2025, PostgreSQL Global Development Group

# Files that are dropped, truncated, and written again while the stage or the
# log holds copies of their former pages (R5, R7).

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

my $conf = qq{
shared_buffers = 16MB
double_write_buffer_size = 64MB
double_write_stage_size = 1MB
bgwriter_lru_maxpages = 0
};
my $node = dw_new_node('replica', conf => $conf);

# Copies of pages of a file in the live log
sub copies_of
{
	my ($n, $path) = @_;

	return
	  grep { (dw_home_path($n, $_))[0] eq $path }
	  values %{ dw_live_copies(dw_read_log($n)) };
}

sub value
{
	my ($n, $sql) = @_;

	return $n->safe_psql('postgres', $sql);
}

$node->start;
dw_extensions($node);

# --- Truncated or dropped while staged, and while on the way home

foreach my $in_flight (0, 1)
{
	my $what = $in_flight ? 'in a batch' : 'staged';

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE dropped (a int, f text);
		INSERT INTO dropped SELECT i, repeat('d', 500)
			FROM generate_series(1, 150) i;
		CREATE TABLE truncated (LIKE dropped);
		INSERT INTO truncated SELECT * FROM dropped;
		CREATE TABLE other (a int);
		INSERT INTO other VALUES (1);
		CHECKPOINT;
		UPDATE dropped SET a = a + 1;
		UPDATE truncated SET a = a + 1;
		UPDATE other SET a = a + 1;
		DELETE FROM truncated;
	});
	my %path = map { $_ => dw_path_of($node, $_) } qw(dropped truncated);

	dw_hold_flusher($node,
		$in_flight ? 'doublewrite-home-write' : 'doublewrite-log-synced');
	$node->safe_psql('postgres',
		q{SELECT dw_evict('dropped'), dw_evict('truncated')})
	  if $in_flight;
	$node->safe_psql('postgres', q{SELECT dw_evict('other')});
	my $flusher = $node->background_psql('postgres');
	$flusher->query_until(qr/started/,
		"\\echo started\nSELECT dw_flush_batch();\n");
	dw_wait_until_held($node);
	$node->safe_psql('postgres',
		q{SELECT dw_evict('dropped'), dw_evict('truncated')})
	  if !$in_flight;

	my $dropper = $node->background_psql('postgres');
	$dropper->query_until(qr/started/,
		"\\echo started\nDROP TABLE dropped; VACUUM truncated;\nSELECT 'finis' || 'hed';\n"
	);
	$node->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'DoubleWriteHome' AND query ~ 'DROP'}
	  )
	  or die "DROP does not wait"
	  if $in_flight;
	$dropper->query_until(qr/finished/, '') if !$in_flight;
	dw_release_flusher($node);
	$dropper->query_until(qr/finished/, '') if $in_flight;
	$dropper->quit;
	$flusher->quit;

	cmp_ok(
		value($node, 'SELECT discarded FROM dw_stats()'),
		'>',
		20 * ($in_flight + 1),
		"$what: copies were discarded");
	$node->safe_psql('postgres', 'SELECT dw_drain()');
	is(-s $node->data_dir . "/$path{truncated}",
		0, "$what: truncated file stays empty");
	ok( !-s $node->data_dir . "/$path{dropped}",
		"$what: dropped file stays dropped");
	$node->safe_psql('postgres', 'DROP TABLE truncated, other; CHECKPOINT');
}

# --- Copies in the log when their pages go

my $tsdir = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', $_)
  foreach (
	"CREATE TABLESPACE gone LOCATION '$tsdir'",
	"CREATE DATABASE db_gone",
	"CREATE DATABASE db_in_space TABLESPACE gone");
$node->safe_psql($_, 'CREATE EXTENSION test_doublewrite CASCADE')
  foreach ('db_gone', 'db_in_space');
$node->safe_psql(
	'postgres', q{
	CREATE TABLE shrunk (id int PRIMARY KEY, f text);
	INSERT INTO shrunk SELECT i, repeat('s', 500)
		FROM generate_series(1, 2000) i;
	CREATE TABLE dropped (a int, f text);
	INSERT INTO dropped SELECT * FROM shrunk;
	CREATE TABLE spaced (a int, f text) TABLESPACE gone;
	INSERT INTO spaced SELECT * FROM shrunk;
	CHECKPOINT;
});
my $old = dw_snapshot($node);

$node->safe_psql(
	'postgres', q{
	UPDATE shrunk SET f = repeat('t', 500);
	UPDATE dropped SET f = repeat('t', 500);
	UPDATE spaced SET f = repeat('t', 500);
	SELECT dw_evict_all();
	SELECT dw_drain();
});
my %path = map { $_ => dw_path_of($node, $_) } qw(shrunk dropped spaced);

# cut the file, have it grow again, with other pages
$node->safe_psql('postgres', $_)
  foreach (
	q{DELETE FROM shrunk WHERE id > 10},
	q{VACUUM shrunk},
	q{INSERT INTO shrunk SELECT i, repeat('u', 300)
		FROM generate_series(3001, 4500) i},
	q{DROP TABLE dropped},
	q{DROP TABLE spaced},
	q{CREATE TABLE cut (a int, f text);
	  INSERT INTO cut SELECT id, f FROM shrunk;
	  SELECT dw_evict('shrunk'), dw_evict('cut');
	  SELECT dw_drain();
	  DELETE FROM cut},
	q{VACUUM cut});
cmp_ok(-s $node->data_dir . "/$path{shrunk}",
	'<', 1_500_000, 'file was truncated and has grown again');
is($node->safe_psql('postgres', 'SELECT sync_cycles FROM dw_stats()'),
	0, 'no sync cycle meanwhile');
$node->stop('immediate');

cmp_ok(scalar(copies_of($node, $path{$_})),
	'>', 20, "copies of $_ in the log")
  foreach ('shrunk', 'dropped', 'spaced');
my $torn = dw_tear($node, $old, unlogged_too => 1);
cmp_ok($torn->{$_}, '>', 0, "$_ pages were torn")
  foreach ('logged', 'unlogged');
my $line = dw_start_after_crash($node, $torn);
cmp_ok($line->{missing}, '>', 50, 'copies without a home');

my $shrunk = q{SELECT count(*), sum(id), min(f) = repeat('t', 500),
	max(f) = repeat('u', 300) FROM shrunk};
is( value($node, $shrunk),
	'1510|' . (55 + 1500 * 3750.5) . '|t|t',
	'truncated table is right');
is(value($node, 'SELECT count(*) FROM cut'), 0, 'empty table is right');

# --- Drop database and tablespace

foreach my $db ('db_gone', 'db_in_space')
{
	$node->safe_psql(
		$db, q{
		CREATE TABLE t AS SELECT i, repeat('x', 500) FROM generate_series(1, 500) i;
		CHECKPOINT;
		UPDATE t SET i = i + 1;
		SELECT dw_evict_all();
		SELECT dw_drain();
	});
	$node->safe_psql($db, 'UPDATE t SET i = i + 1');
	$node->safe_psql($db, q{SELECT dw_evict('t')});
	$node->safe_psql('postgres', "DROP DATABASE $db");
}
$node->safe_psql('postgres', 'DROP TABLESPACE gone');
$node->stop('immediate');
$torn = dw_tear($node, $old);
dw_start_after_crash($node, $torn);
is( value($node, $shrunk),
	'1510|' . (55 + 1500 * 3750.5) . '|t|t',
	'all is well after databases were dropped');

# The same, with the crash before the drops get into a checkpoint: redo drops
# what it has created, evicting pages all the time, and crashes, too.
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "CREATE TABLESPACE gone LOCATION '$tsdir'");
$node->safe_psql('postgres',
	"CREATE TABLE spaced (a int, f text) TABLESPACE gone");
foreach my $i (1 .. 5)
{
	$node->safe_psql(
		'postgres', qq{
		BEGIN;
		INSERT INTO spaced SELECT i, repeat('x', 500) FROM generate_series(1, 500) i;
		CREATE TABLE churn AS SELECT * FROM spaced;
		COMMIT;
		UPDATE churn SET a = a + 1;
		DELETE FROM churn WHERE a > 100 + $i;
	});
	$node->safe_psql('postgres', 'VACUUM churn');
	$node->safe_psql('postgres',
		q{INSERT INTO churn SELECT * FROM spaced; TRUNCATE spaced});
	$node->safe_psql('postgres', 'DROP TABLE churn');
}
$node->safe_psql('postgres', 'DROP TABLE spaced');
$node->safe_psql('postgres', 'CREATE TABLE last AS SELECT * FROM shrunk');
$node->stop('immediate');
$node->append_conf('postgresql.conf',
	"shared_buffers = 128kB\ndouble_write_stage_size = 128kB");
foreach my $crash ('page-staged:300', 'log-synced:20', 'home-run-written:200')
{
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf',
		"test_points.crash_at = 'doublewrite-$crash'");
	ok(!dw_poll_start($node), "crash of redo at $crash");
	dw_wait_for_crash($node, $offset);
	$torn = dw_tear($node, $old);
}
$node->append_conf('postgresql.conf', "test_points.crash_at = ''");
dw_start_after_crash($node, $torn);
is(value($node, 'SELECT count(*) FROM last'), 1510, 'redo got to the end');
$node->safe_psql('postgres', 'DROP TABLESPACE gone');
dw_check_amcheck($node);
dw_check_stopped($node);
$node->clean_node;

# --- A large stage: a removal looks at the slots that have been in use, and at no others

{
	my $large =
	  dw_quiet_node('large', conf => "double_write_stage_size = 256MB\n");
	my $stage =
	  q{DO 'BEGIN PERFORM FROM large FOR UPDATE; END'; SELECT dw_evict('large')};
	my $looked_at = 'SELECT dw_slots_looked_at()';

	$large->safe_psql(
		'postgres', q{
		CREATE TABLE large AS SELECT i, repeat('l', 500) FROM generate_series(1, 3000) i;
		CHECKPOINT});
	$large->safe_psql('postgres', $stage);
	my $before = $large->safe_psql('postgres', $looked_at);
	cmp_ok(
		$before, '>=',
		value($large, 'SELECT in_use FROM dw_state()'),
		'large stage: a removal looks at all slots that are in use');
	cmp_ok(
		$before, '<',
		value($large, 'SELECT slots / 8 FROM dw_state()'),
		'... and not at all that there are');
	$large->safe_psql('postgres', "SELECT dw_drain(); $stage")
	  foreach (1 .. 10);
	cmp_ok(
		value($large, 'SELECT staged FROM dw_stats()'),
		'>',
		2 * $before,
		'... though many more pages have been staged');
	cmp_ok(
		value($large, $looked_at),
		'<',
		2 * $before,
		'... which use the same slots again');
	$large->stop;
}

# --- Relations that skip WAL: nothing but the files holds what was committed

$node = dw_new_node(
	'minimal',
	conf => $conf . qq{
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
});
$node->start;
dw_extensions($node);

# --- A truncation is a critical section, and may have to sync a directory itself

{
	my $dir = PostgreSQL::Test::Utils::tempdir();

	$node->safe_psql('postgres', $_)
	  foreach (
		"CREATE TABLESPACE critical LOCATION '$dir'",
		'CREATE TABLE critical (a int) TABLESPACE critical',
		'CREATE TABLE normal (a int)');
	foreach my $table ('critical', 'normal', 'pg_database')
	{
		is( $node->psql(
				'postgres', "SELECT dw_sync_directory_critical('$table')"),
			0,
			"directory of $table can be synced in a critical section");
	}
	$node->safe_psql('postgres', 'DROP TABLE critical, normal');
	$node->safe_psql('postgres', 'DROP TABLESPACE critical');
}

my $fill = q{INSERT INTO skip SELECT i, md5(i::text), repeat('1', 300)
	FROM generate_series(1, 1000) i;
	SELECT dw_evict_all();
	SELECT dw_drain();};
my $create = qq{BEGIN;
	CREATE TABLE skip (id int PRIMARY KEY, m text, f text);
	CREATE INDEX skip_m ON skip (m);
	CREATE INDEX skip_hash ON skip USING hash (m);
	CREATE INDEX skip_gin ON skip USING gin ((ARRAY[id, id % 10]));
	$fill};
my %commits = (
	'filled again' => qq{$create TRUNCATE skip;
		INSERT INTO skip SELECT i, md5(i::text), repeat('2', 300)
			FROM generate_series(2001, 2400) i;
		COMMIT},
	'left empty' => qq{$create TRUNCATE skip; COMMIT},
	'filled less' => qq{$create TRUNCATE skip;
		INSERT INTO skip VALUES (3000, md5('3000'), 'z');
		COMMIT},
	'two versions' => qq{$create
		UPDATE skip SET f = repeat('3', 300), m = m || 'x' WHERE id < 300;
		COMMIT},
	'subtransaction' => qq{$create SAVEPOINT s;
		TRUNCATE skip;
		INSERT INTO skip VALUES (4000, md5('4000'), 'z');
		RELEASE SAVEPOINT s; COMMIT},
	'rolled back to savepoint' => qq{$create SAVEPOINT s;
		TRUNCATE skip;
		INSERT INTO skip VALUES (4000, md5('4000'), 'z');
		ROLLBACK TO SAVEPOINT s; COMMIT},
	'truncated in a later transaction' => qq{$create COMMIT;
		BEGIN; TRUNCATE skip; $fill TRUNCATE skip;
		INSERT INTO skip VALUES (5000, md5('5000'), 'z');
		COMMIT},
	'copied' => qq{$create TRUNCATE skip;
		CREATE TABLE skip2 (LIKE skip); DROP TABLE skip2;
		COPY skip FROM PROGRAM 'seq 6001 6300 | sed "s/\$/\tmmm\tfff/"';
		COMMIT},
	'clustered' => qq{$create DELETE FROM skip WHERE id % 3 = 0;
		CLUSTER skip USING skip_m; COMMIT});

my $state = q{SELECT count(*), sum(id), min(id), max(id), min(m), max(m),
	count(DISTINCT f), sum(hashtext(f)::bigint) FROM skip};
foreach my $what (sort keys %commits)
{
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS skip');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', $commits{$what});
	my $before = value($node, $state);

	# crash at once; and again with more of it written
	$node->stop('immediate');
	ok(dw_poll_start($node), "$what: server starts");
	is(value($node, $state), $before, "$what: committed work is there");
	foreach my $check (
		q{SELECT count(verify_heapam) FROM verify_heapam('skip')},
		q{SELECT bt_index_check('skip_pkey', true)},
		q{SELECT bt_index_check('skip_m', true)},
		q{SELECT gin_index_check('skip_gin')})
	{
		my ($ret, $stdout, $stderr) =
		  $node->psql('postgres', $check, on_error_die => 0);
		is("$ret $stderr", '0 ', "$what: $check");
	}
	is( value(
			$node,
			q{SET enable_seqscan = off; SET enable_bitmapscan = off;
			  SELECT count(*) FROM skip s WHERE EXISTS (SELECT FROM skip WHERE id = s.id) AND EXISTS (SELECT FROM skip WHERE m = s.m)}
		),
		(split(/\|/, $before))[0],
		"$what: indexes find all");
	my ($ret, $stdout, $stderr) = $node->psql(
		'postgres',
		q{INSERT INTO skip SELECT i, md5(i::text), 'more' FROM generate_series(10001, 10100) i},
		on_error_die => 0);
	is("$ret $stderr", '0 ', "$what: rows can be added");
}
dw_check_amcheck($node);
dw_check_stopped($node);

done_testing();
