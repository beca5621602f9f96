
# Copyright (c) 2025, PostgreSQL Global Development Group

# Clients get in before pages have been redone.  They see no page with records that
# wait, in whatever way they look for it; what works on files waits for all; and
# when the server crashes again in between, nothing is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

# Workers redo what is asked for, and nothing else.
my $POINT = 'instant-recovery-only-demands';

my $opening = qr/opening before redo: (\d+) pages are pending/;
my $complete = qr/redo is complete/;

sub set
{
	my ($node, $setting, $value) = @_;

	$node->append_conf('postgresql.conf', "$setting = '$value'");
	return;
}

sub kill9
{
	my ($node) = @_;

	$node->stop('immediate');
	return;
}

# Start after a crash; pages are pending until let_go().
sub start_pending
{
	my ($node) = @_;
	my $offset = -s $node->logfile;

	set($node, 'test_points.fail_at', "$POINT:EIO");
	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	like(slurp_file($node->logfile, $offset), $opening, '... before redo');
	return $offset;
}

sub let_go
{
	my ($node, $offset) = @_;

	set($node, 'test_points.fail_at', '');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
	$node->wait_for_log($complete, $offset);
	return;
}

sub is_pending
{
	my ($node, $offset, $test_name) = @_;

	unlike(slurp_file($node->logfile, $offset), $complete, $test_name);
	return;
}

# A session that runs a command until it is allowed to end.
sub in_background
{
	my ($node, $sql, $event) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n\\echo ended\n");
	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$event' AND backend_type = 'client backend'"
	) or die "no session waits: $sql";
	return $session;
}

my $node = dw_new_node(
	'instant', conf => q{
instant_recovery = on
recovery_workers = 2
max_prepared_transactions = 2
autovacuum = off
});
$node->start;
dw_workload_setup($node);
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION IF NOT EXISTS pg_visibility;
	CREATE EXTENSION IF NOT EXISTS injection_points;
	CREATE TABLE map (i int PRIMARY KEY, v int);
	INSERT INTO map SELECT g, 0 FROM generate_series(1, 20000) g;
	CREATE TABLE drop_me AS SELECT g FROM generate_series(1, 1000) g;
	CREATE TABLE cut_me AS SELECT g FROM generate_series(1, 1000) g;
	CREATE TABLE longer (g int, f text);
});
$node->safe_psql('postgres', "VACUUM $_") foreach ('map', 'drop_me');
$node->safe_psql('postgres', 'CHECKPOINT');
my $file = $node->data_dir . '/' . dw_path_of($node, 'longer');
my $length = -s $file;

# Bits of the visibility map are cleared, files become longer, pages change; then
# the same over and over, with crashes.
sub work
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		DELETE FROM map WHERE i % 100 = (SELECT count(*) FROM longer) / 3000;
		UPDATE map SET v = v + 1 WHERE i % 50 = 7;
		INSERT INTO longer SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g;
		UPDATE drop_me SET g = g + 1;
		UPDATE cut_me SET g = g + 1;
	});
	dw_workload_start($node, transactions => 300);
	dw_workload_finish($node);
	return;
}

sub counts
{
	my ($node, $scan) = @_;
	my %off = (
		seq =>
		  'enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off',
		index => 'enable_seqscan = off; SET enable_bitmapscan = off');

	return $node->safe_psql('postgres',
		"SET $off{$scan}; SELECT count(i), sum(i) FROM map WHERE i > 0; SELECT count(*), sum(length(f)) FROM longer"
	);
}

work($node);
my $expected = counts($node, 'seq');
my $checkpoint = "SELECT redo_lsn FROM pg_control_checkpoint()";
my $redo = $node->safe_psql('postgres', $checkpoint);

foreach my $round (1 .. 3)
{
	kill9($node);

	# A power cut may have left the file as it was synced last.
	truncate($file, $length) or die "$file: $!" if $round == 1;
	my $offset = start_pending($node);

	# Index-only scans first: they believe the visibility map.
	is(counts($node, 'index'), $expected, "round $round: index-only scans");
	is(counts($node, 'seq'), $expected, '... and sequential ones');
	is( $node->safe_psql(
			'postgres', "SELECT count(*) FROM pg_check_visible('map')"),
		0,
		'... and the map is right');
	dw_check_history($node);
	is_pending($node, $offset, '... while pages are pending');

	# The redo pointer stays; the next crash comes in the window.
	work($node);
	$expected = counts($node, 'seq');
	is($node->safe_psql('postgres', $checkpoint),
		$redo, '... redo pointer has not moved');
	is_pending($node, $offset, '... while pages are pending');
}

# Something there may be the reason, so it does not open like that again and again.
kill9($node);
my $offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts a fourth time');
like(
	slurp_file($node->logfile, $offset),
	qr/redo of pages is completed before clients get in\n.*The server has crashed 4 times/s,
	'... when all is redone');
is(counts($node, 'index'), $expected, '... and nothing is lost');
$node->safe_psql('postgres', 'CHECKPOINT');
$redo = $node->safe_psql('postgres', $checkpoint);
work($node);
$expected = counts($node, 'seq');

# What works on files of a relation has its pages redone first.  A checkpoint waits
# for all, and so does a process that reads files without knowing whose they are;
# they can be cancelled.
kill9($node);
$offset = start_pending($node);
my $dropped = $node->data_dir . '/' . dw_path_of($node, 'drop_me');
ok(-e "${dropped}_vm", 'a table has a visibility map');
my $checkpointing = in_background($node, 'CHECKPOINT', 'CheckpointStart');
my $cancelled =
  in_background($node,
	"SELECT pg_read_binary_file(pg_relation_filepath('longer'), 0, 8192)",
	'InstantRecoveryEnd');
$node->safe_psql(
	'postgres', q{
	SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE query LIKE '%pg_read_binary_file%' AND pid <> pg_backend_pid()});
$cancelled->query_until(qr/ended/, '');
$node->safe_psql(
	'postgres', q{
	DROP TABLE drop_me;
	TRUNCATE cut_me;
	REINDEX TABLE map;
	CLUSTER map USING map_pkey;
	CREATE TABLE drop_me (i int);
	BEGIN; CREATE TABLE rolled_back AS SELECT * FROM longer; ROLLBACK;
	ALTER TABLE longer SET UNLOGGED;
	ALTER TABLE longer SET LOGGED;
});
is_pending($node, $offset,
	'files of relations: while other pages are pending');

like(
	$node->safe_psql(
		'postgres', q{
		SELECT max(query) FROM pg_stat_activity WHERE backend_type = 'recovery worker'}
	),
	qr/^redoing pages, \d+ to go$/,
	'workers say how many pages are pending');

# A worker that is asked to end goes on.
$node->poll_query_until(
	'postgres', q{
	SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'recovery worker'}
) or die 'there are not two workers';
is( $node->safe_psql(
		'postgres', q{
	SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'recovery worker'}),
	2,
	'both workers are asked to end');
is(counts($node, 'index'), $expected, '... and still redo what is needed');
let_go($node, $offset);
$checkpointing->query_until(qr/ended/, '');
$_->quit foreach ($checkpointing, $cancelled);
is( $node->safe_psql(
		'postgres',
		'SELECT (SELECT count(*) FROM drop_me), (SELECT count(*) FROM cut_me)'
	),
	'0|0',
	'tables are empty, and stay so');
$node->safe_psql('postgres', 'ALTER TABLE drop_me RENAME i TO g');
isnt($node->safe_psql('postgres', $checkpoint),
	$redo, 'checkpoint has completed');
ok(!-e "${dropped}_vm", 'redo has not made a file of a dropped table again');

# A page is not seen while some of its records have been applied.
$node->safe_psql('postgres', 'UPDATE map SET v = v + 1 WHERE i = 8')
  foreach (1 .. 3);
my $v = $node->safe_psql('postgres', 'SELECT v FROM map WHERE i = 8');
# pages that no session asks for
$node->safe_psql('postgres',
	q{INSERT INTO longer SELECT g, 'aside' FROM generate_series(1, 20000) g});
kill9($node);
set($node, 'test_points.pause_at', 'instant-recovery-record-redone');
$offset = start_pending($node);
my $session = in_background($node, 'SELECT v FROM map WHERE i = 8',
	'InstantRecoveryPage');
$node->wait_for_log(
	qr/paused at injection point "instant-recovery-record-redone"/, $offset);
my $second = in_background($node, 'SELECT v FROM map WHERE i = 8',
	'InstantRecoveryPage');
ok( $node->poll_query_until(
		'postgres', q{
	SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'InstantRecoveryPage'}
	),
	'sessions wait for a page that is half redone');
append_to_file($node->data_dir . '/test_points.resume', '');
foreach my $waiting ($session, $second)
{
	is(($waiting->query_until(qr/ended/, '') =~ /^(\d+)$/m)[0],
		$v, '... and see it when it is done');
	$waiting->quit;
}
set($node, 'test_points.pause_at', '');

# Workers stand aside for a session that reads catalogs, but redo comes to its end.
set($node, 'test_points.fail_at', '');
$node->safe_psql(
	'postgres', qq{
	SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';
	SELECT injection_points_detach('$POINT');
	DO \$\$BEGIN
		WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'recovery worker') LOOP
			PERFORM count(*) FROM pg_class;
			PERFORM pg_stat_clear_snapshot();
		END LOOP;
	END\$\$});
$node->wait_for_log($complete, $offset);
pass('redo is complete though a session reads catalogs all the time');

# A worker that dies between two records of a page, or when it has redone it.
foreach my $where ('record', 'page')
{
	work($node);
	$expected = counts($node, 'seq');
	kill9($node);
	set($node, 'test_points.crash_at', "instant-recovery-$where-redone:50");
	$offset = -s $node->logfile;
	dw_poll_start($node);
	dw_wait_for_crash($node, $offset);
	set($node, 'test_points.crash_at', '');
	$offset = -s $node->logfile;
	ok(dw_poll_start($node), 'server starts again');
	is(counts($node, 'index'), $expected, '... and nothing is lost');
}

# A prepared transaction, and one that is under way, hold what they hold.
$node->safe_psql(
	'postgres', q{
	BEGIN; UPDATE map SET v = -1 WHERE i = 7; PREPARE TRANSACTION 'p'});
kill9($node);
$offset = start_pending($node);
is( $node->safe_psql(
		'postgres',
		"SELECT v >= 0 FROM map WHERE i = 7; COMMIT PREPARED 'p'; SELECT v FROM map WHERE i = 7"
	),
	"t\n-1",
	'prepared transaction');

# A fast stop waits for the last page, and leaves a cluster that was shut down.
set($node, 'test_points.fail_at', '');
$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
dw_check($node);

# Redo goes on past a checkpoint of which pg_control did not come to know.  A fast
# stop in analysis must not begin the next recovery there: pages were not redone.
$node->start;
$node->safe_psql('postgres', 'CREATE TABLE barrier AS SELECT 1');
work($node);
$node->safe_psql('postgres', 'DROP TABLE barrier');
work($node);
$expected = counts($node, 'seq');
$redo = $node->safe_psql('postgres', $checkpoint);
$node->safe_psql('postgres', "SELECT points_crash_at('checkpoint-logged')");
$node->psql('postgres', 'CHECKPOINT');
dw_wait_for_crash($node, 0);
set($node, 'test_points.pause_at', 'instant-recovery-analyzed');
$offset = -s $node->logfile;
run_log(
	[
		'pg_ctl', '--no-wait',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'start'
	]);
$node->wait_for_log(qr/paused at injection point "instant-recovery-analyzed"/,
	$offset);
set($node, 'test_points.pause_at', '');
run_log(
	[
		'pg_ctl', '--no-wait',
		'--pgdata' => $node->data_dir,
		'--mode' => 'fast',
		'stop'
	]);
$node->wait_for_log(qr/received fast shutdown request/, $offset);
append_to_file($node->data_dir . '/test_points.resume', '');
$node->wait_for_log(qr/database system is shut down/, $offset);
dw_wait_for_exit($node);
is(dw_control($node, "Latest checkpoint's REDO location"),
	$redo, 'stop in analysis: redo pointer has not moved');
ok(dw_poll_start($node), 'server starts');
is(counts($node, 'index'), $expected, '... and nothing is lost');
$node->stop;

# Without a worker all is redone before clients get in.
set($node, 'max_worker_processes', '0');
$node->start;
work($node);
kill9($node);
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts without workers');
like(
	slurp_file($node->logfile, $offset),
	qr/redo of pages is completed before clients get in/,
	'... when all is redone');
set($node, 'max_worker_processes', '8');
$node->restart;

# So it is when a checkpoint has to come first, with another wal_level.
work($node);
kill9($node);
set($node, 'wal_level', 'logical');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts with another wal_level');
like(
	slurp_file($node->logfile, $offset),
	qr/redo of pages is completed before clients get in/,
	'... when all is redone');
unlike(slurp_file($node->logfile, $offset), $opening, '... and not before');
dw_check($node);

# That a bit of the visibility map is set never comes with an image of the heap's page,
# if hints are not logged: WAL may have images all the same.
my $plain = dw_quiet_node(
	'plain',
	checksums => 0,
	conf => q{
autovacuum = off
instant_recovery = on
recovery_workers = 1
io_torn_pages_protection = full_pages
});
$plain->safe_psql('postgres', $_)
  foreach (
	'CREATE TABLE t AS SELECT generate_series(1, 1000) i; CREATE TABLE u AS SELECT 1 i',
	'CHECKPOINT', 'VACUUM t', 'INSERT INTO u VALUES (2)');
kill9($plain);
$offset = -s $plain->logfile;
ok(dw_poll_start($plain), 'server starts with images in WAL');
like(
	slurp_file($plain->logfile, $offset),
	qr/torn page protection: full_pages$/m,
	'... and does without the log');

# So it is if pages come again after all that are pending had to be redone: their images came
# before that.
$plain->append_conf('postgresql.conf', 'allow_in_place_tablespaces = on');
$plain->reload;
$plain->safe_psql('postgres', $_)
  foreach (
	'CHECKPOINT',
	'INSERT INTO u VALUES (3)',
	q{CREATE TABLESPACE barrier LOCATION ''},
	'INSERT INTO u VALUES (4)');
kill9($plain);
$offset = -s $plain->logfile;
ok(dw_poll_start($plain), 'server starts with images before a round of redo');
my $log = slurp_file($plain->logfile, $offset);
like(
	$log,
	qr/1 round of redo before clients get in/,
	'... of which there was one');
like(
	$log,
	qr/torn page protection: full_pages$/m,
	'... and does without the log again');

# A table grows into its second segment, shrinks, and grows again.  The crash undoes the truncation
# of that segment, not the one of the first: what was in there does not come back.
SKIP:
{
	skip 'segments are of another size', 3
	  if $plain->safe_psql('postgres', 'SHOW segment_size') ne '512kB';

	$plain->safe_psql('postgres', $_)
	  foreach (
		q{CREATE TABLE s (i int, f text) WITH (autovacuum_enabled = off);
		  ALTER TABLE s ALTER f SET STORAGE PLAIN;
		  INSERT INTO s SELECT g, repeat('x', 1000) FROM generate_series(1, 280) g},
		'CHECKPOINT',
		q{INSERT INTO s SELECT g, repeat('x', 1000) FROM generate_series(281, 560) g;
		  DELETE FROM s WHERE i > 300},
		'VACUUM s');
	my $blocks =
	  $plain->safe_psql('postgres', q{SELECT pg_relation_size('s') / 8192});
	cmp_ok($blocks, '<', 64,
		'a table has been truncated to its first segment');
	$plain->safe_psql('postgres',
		q{INSERT INTO s SELECT g, repeat('x', 1000) FROM generate_series(301, 530) g}
	);
	my $file = $plain->data_dir . '/' . dw_path_of($plain, 's');
	kill9($plain);
	truncate($file, $blocks * 8192) or die "could not truncate $file: $!";
	my $stale = substr(slurp_file($file), 0, 16 * 8192);
	open(my $segment, '>:raw', "$file.1") or die "could not open $file.1: $!";
	print $segment $stale;
	close($segment) or die "could not write $file.1: $!";
	ok(dw_poll_start($plain), 'server starts');
	is( $plain->safe_psql('postgres', 'SELECT count(*), sum(i) FROM s'),
		'530|' . 530 * 531 / 2,
		'... and the table has its rows, and no others');
}
# Redo of a hash index names the primary page of a bucket, which is torn, without reading it;
# a later record has its image.
$plain->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE h (i int, k int) WITH (autovacuum_enabled = off);
	  CREATE INDEX ON h USING hash (k);
	  INSERT INTO h SELECT g, 1 FROM generate_series(1, 1000) g},
	'CHECKPOINT',
	'DELETE FROM h WHERE i > 990', 'VACUUM (INDEX_CLEANUP ON) h',
	'DELETE FROM h WHERE i <= 10', 'VACUUM (INDEX_CLEANUP ON) h',
	'CREATE TABLE flushed ()');
my $bucket =
  $plain->safe_psql('postgres', q{SELECT pg_relation_filepath('h_k_idx')});
kill9($plain);
my $at = 0;
while (my $page = read_block($plain, $bucket, $at))
{
	# its flags, and the next block
	my ($next, $flag) = unpack('x4 L x4 S', substr($page, -16));
	last if $flag & 2 && $next != 0xffffffff;
	$at += BLCKSZ;
}
write_block($plain, $bucket, $at + BLCKSZ / 2, "\x5a" x 512);
ok(dw_poll_start($plain), 'server starts with a torn bucket');
is( $plain->safe_psql(
		'postgres',
		'SET enable_seqscan = off; SELECT count(*) FROM h WHERE k = 1'),
	'980',
	'... of which nothing is lost');

# A record that clears bits of the visibility map does not name its page if they were clear.  It
# is applied at once, when what is pending of its own page has been.  At home is what there was at
# the checkpoint.
$plain->append_conf('postgresql.conf',
	'io_torn_pages_protection = double_writes');
$plain->restart;
$plain->safe_psql('postgres', $_)
  foreach (
	'CREATE EXTENSION pg_visibility',
	'CREATE TABLE unmapped AS SELECT generate_series(1, 20000) i',
	'VACUUM unmapped',
	'CHECKPOINT',
	'DELETE FROM unmapped WHERE i % 3 = 0',
	'VACUUM unmapped',
	q{SELECT pg_truncate_visibility_map('unmapped')},
	'DELETE FROM unmapped WHERE i % 5 = 0');
kill9($plain);
ok(dw_poll_start($plain), 'server starts after a map was truncated');
is( $plain->safe_psql('postgres', 'SELECT count(*) FROM unmapped'),
	scalar(grep { $_ % 3 && $_ % 5 } (1 .. 20000)),
	'... and rows that were deleted before do not come back');
$plain->stop;

done_testing();
