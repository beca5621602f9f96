# Copyright (c) 2025, PostgreSQL Global Development Group

# Pages are written atomically where storage has proved that it can, and pass
# through the log elsewhere (A1 to A5).  That pg_default can is pretended here;
# 039 has the real thing.

use strict;
use warnings FATAL => 'all';

use Fcntl;
use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

dw_require_injection_points();

# Whether storage is good for it can be pretended, direct I/O cannot.
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/try";
	my $direct = eval { O_DIRECT };
	my $accepted = defined $direct
	  && sysopen(my $fh, $file, O_RDWR | O_CREAT | $direct);

	unlink $file;
	plan skip_all => 'the file system of this test refuses direct I/O'
	  unless $accepted;
}

my $conf = q{
test_doublewrite.pretend_atomic = on
log_min_messages = debug1
};
my $node = dw_quiet_node('main', mode => 'atomic_writes', conf => $conf);

$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION pg_doublewrite_stats;
	CREATE TABLE t AS SELECT i, 0 AS v FROM generate_series(1, 100) i;
	CREATE TABLE u AS SELECT * FROM t;
	CREATE TABLE w AS SELECT * FROM t;
	CREATE TABLE big (i int, v int, filler text STORAGE PLAIN);
	INSERT INTO big SELECT i, 0, repeat('x', 7000) FROM generate_series(1, 64) i;
	-- a row on each page, with room for a new version
	CREATE TABLE runs (v int, filler text STORAGE PLAIN) WITH (fillfactor = 40);
	INSERT INTO runs SELECT 0, repeat('x', 3000) FROM generate_series(1, 32);
	CHECKPOINT});

# What a command adds to some counters, as a reference to a hash.
sub difference
{
	my ($sql) = @_;
	my $counters =
	  'SELECT atomic_pages, atomic_writes, logged, home_pages FROM dw_stats()';
	my @before = split(/\|/, $node->safe_psql('postgres', $counters));
	my ($rc, undef, $stderr) = $node->psql('postgres', $sql);
	my @after = split(/\|/, $node->safe_psql('postgres', $counters));
	my %result = (failed => $rc != 0, error => $stderr);

	@result{qw(pages writes logged home)} =
	  map { $after[$_] - $before[$_] } 0 .. 3;
	return \%result;
}

# Change the first page of a table and bring it home.
sub change
{
	my ($table) = @_;

	return difference(
		"UPDATE $table SET v = v + 1 WHERE i = 1; SELECT dw_evict('$table'); SELECT dw_drain()"
	);
}

sub pages_of
{
	my ($table) = @_;
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('$table')");

	return read_block($node, $path, 0);
}

# ---------------------------------------------------------------------
# Which way pages take
# ---------------------------------------------------------------------

my $before = pages_of('t');
my $d = change('t');
is_deeply(
	[ @$d{qw(pages writes logged home)} ],
	[ 1, 1, 0, 1 ],
	'a page is written atomically');
isnt(pages_of('t'), $before, '... and is home');

$d = difference(
	q{UPDATE big SET v = v + 1; SELECT dw_evict('big'); SELECT dw_drain()});
cmp_ok($d->{pages}, '>=', 64, 'many pages are written atomically');
cmp_ok($d->{writes}, '<', $d->{pages} / 2, 'neighbours in one write');
is($d->{logged}, 0, 'none through the log');

# the flusher makes them all, with no other home write beside them (A3)
$node->safe_psql(
	'postgres', q{
	CREATE TABLE whole (LIKE runs INCLUDING STORAGE) WITH (fillfactor = 40);
	INSERT INTO whole SELECT 0, repeat('x', 3000) FROM generate_series(1, 100)});
# several writes under way at once; one of them that is not made harms no other
my $offset;
my $all = q{CHECKPOINT; UPDATE runs SET v = v + 1; SELECT dw_evict('runs')};
$node->safe_psql(
	'postgres', qq{
	SELECT injection_points_attach('doublewrite-atomic-in-flight', 'notice');
	$all;
	SELECT points_fail_at('doublewrite-atomic-write', 'ENOSPC', 2)});
$d = difference('SELECT dw_drain()');
SKIP:
{
	skip 'only Linux has them', 1 if $^O ne 'linux';
	like(
		$d->{error},
		qr/doublewrite-atomic-in-flight/,
		'several writes are under way at once');
}
is_deeply(
	[ @$d{qw(pages writes logged home)} ],
	[ 24, 3, 8, 32 ],
	'... and if one is not made, its pages pass through the log');
$node->safe_psql('postgres',
	qq{$all; SELECT points_fail_at('test-doublewrite-unreadable', 'EIO')});
$offset = -s $node->logfile;
$d = difference('SELECT dw_drain()');
is_deeply(
	[ @$d{qw(failed pages logged home)} ],
	[ !!0, 24, 8, 32 ],
	'... and if one of them fails in the kernel, the others are waited for');
like(
	slurp_file($node->logfile, $offset),
	qr/atomically: Bad address/,
	'... which is logged');
$node->safe_psql('postgres',
	q{SELECT injection_points_detach('doublewrite-atomic-in-flight')});

# pg_authid is in pg_global, where atomic writes are made in software
$d = difference(
	q{ALTER ROLE CURRENT_USER CONNECTION LIMIT 100; SELECT dw_evict('pg_authid'); SELECT dw_drain()}
);
cmp_ok($d->{logged}, '>=', 1,
	'a page where atomicity is but software passes through the log');
is($d->{pages}, 0, '... and is not written atomically (A1)');

is( $node->safe_psql(
		'postgres', q{
	SELECT tablespace, proof, unit_bytes, pages_atomic > 60, pages_logged > 0, refusals
	FROM pg_atomic_write_status ORDER BY tablespace}),
	"pg_default|hardware|65536|t|t|2\npg_global|software|16384|f|t|0",
	'view shows how pages are written, and the largest write that needs no copies'
);
is( $node->safe_psql(
		'postgres', 'SELECT in_force, requested FROM pg_double_write_mode'),
	'atomic_writes|atomic_writes',
	'view shows the mode');

# ---------------------------------------------------------------------
# Files are synced by checkpoints (A4)
# ---------------------------------------------------------------------

$node->safe_psql('postgres', 'CHECKPOINT');
$offset = -s $node->logfile;
change('t');
my $path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
$node->safe_psql('postgres', 'CHECKPOINT');
like(
	slurp_file($node->logfile, $offset),
	qr/checkpoint sync: number=\d+ file=\Q$path\E /,
	'a file that was written atomically is synced by the next checkpoint');

# ---------------------------------------------------------------------
# Refusals (A2) and errors (R11)
# ---------------------------------------------------------------------

my $refused = $node->safe_psql('postgres',
	q{SELECT refusals FROM pg_atomic_write_status WHERE tablespace = 'pg_default'}
);
my %refusals = (EINVAL => 't', EPERM => 'w');
foreach my $error (sort keys %refusals)
{
	my $table = $refusals{$error};

	$path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('$table')");
	$offset = -s $node->logfile;
	$node->safe_psql('postgres',
		qq{SELECT points_fail_at('doublewrite-atomic-write', '$error')});
	$before = pages_of($table);
	$d = change($table);
	is_deeply(
		[ @$d{qw(pages logged home)} ],
		[ 0, 1, 1 ],
		"$error: a page whose write was refused passes through the log");
	isnt(pages_of($table), $before, '... and is home');
	like(
		slurp_file($node->logfile, $offset),
		qr/file "\Q$path\E" does not take atomic writes/,
		'... which is logged');
	$d = change($table);
	is($d->{pages}, 0, '... and its file is not tried again');
}
$d = change('u');
is_deeply([ @$d{qw(pages logged)} ], [ 1, 0 ], 'other files are');
is( $node->safe_psql(
		'postgres',
		q{SELECT refusals FROM pg_atomic_write_status WHERE tablespace = 'pg_default'}
	),
	$refused + 2,
	'the view counts refusals');

# several pages at once that are refused say nothing of single ones
$offset = -s $node->logfile;
$node->safe_psql('postgres',
	"$all; SELECT points_fail_at('doublewrite-atomic-write', 'EINVAL')");
$d = difference('SELECT dw_drain()');
is_deeply(
	[ @$d{qw(pages logged)} ],
	[ 24, 8 ],
	'pages that were refused together pass through the log');
like(
	slurp_file($node->logfile, $offset),
	qr/written one by one now/,
	'... which is logged');
unlike(
	slurp_file($node->logfile, $offset),
	qr/does not take atomic writes/,
	'... and does not bar the file');
$node->safe_psql('postgres', $all);
$d = difference('SELECT dw_drain()');
is_deeply(
	[ @$d{qw(pages writes logged)} ],
	[ 32, 32, 0 ],
	'... whose pages are written one by one from then on');
is( $node->safe_psql(
		'postgres',
		q{SELECT unit_bytes FROM pg_atomic_write_status WHERE tablespace = 'pg_default'}
	),
	8192,
	'... as the view says');

# whatever the reason, it fails no process
foreach my $error (qw(EIO ENOSPC EAGAIN))
{
	$offset = -s $node->logfile;
	$node->safe_psql('postgres',
		qq{CHECKPOINT; SELECT points_fail_at('doublewrite-atomic-write', '$error')}
	);
	$d = change('u');
	is_deeply(
		[ @$d{qw(failed pages logged home)} ],
		[ !!0, 0, 1, 1 ],
		"$error: a page that could not be written atomically passes through the log"
	);
	like(
		slurp_file($node->logfile, $offset),
		qr/could not write to file ".*" atomically/,
		'... which is logged');
	$d = change('u');
	is_deeply(
		[ @$d{qw(pages logged)} ],
		[ 1, 0 ],
		'... and newer versions are written atomically again');
}

# nor does it if its file cannot be synced by the checkpointer, nor at once (A4)
$node->safe_psql(
	'postgres', q{
	CHECKPOINT;
	SELECT points_fail_at('doublewrite-atomic-sync-request', 'EAGAIN'), points_fail_at('doublewrite-file-sync', 'EMFILE')}
);
$d = change('u');
is_deeply(
	[ @$d{qw(failed pages logged home)} ],
	[ !!0, 0, 1, 1 ],
	'a page whose sync cannot be asked for passes through the log');

# a newer version that is staged meanwhile takes the log for both
$node->safe_psql(
	'postgres', q{
	CHECKPOINT;
	SELECT points_fail_at('doublewrite-atomic-write', 'ENOSPC');
	UPDATE u SET v = v + 1 WHERE i = 1;
	SELECT dw_evict('u');
	SELECT dw_flush_batch(false)});
$d = change('u');
is_deeply(
	[ @$d{qw(pages logged home)} ],
	[ 0, 1, 1 ],
	'so does the version that takes its place');

# a short write must not happen; if it does, home is torn
$node->safe_psql('postgres',
	q{CHECKPOINT; SELECT points_fail_at('doublewrite-atomic-short', 'EIO')});
$node->safe_psql('postgres',
	q{UPDATE u SET v = v + 1; SELECT dw_evict('u'); SELECT dw_flush_batch(false)}
);
$d = difference('SELECT dw_flush_batch(false)');
is($d->{home}, 0, 'a page that was written in part counts as failed');
$d = difference('SELECT dw_drain()');
is_deeply(
	[ @$d{qw(failed pages logged home)} ],
	[ !!0, 0, 1, 1 ],
	'... and passes through the log');

# what it is repaired from then is an older copy, if the log has one, which stays (R3)
$node->safe_psql('postgres',
	q{CHECKPOINT; SELECT points_fail_at('doublewrite-atomic-write', 'ENOSPC')}
);
$d = change('u');
is($d->{logged}, 1, 'a page has a copy in the log');
$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-atomic-short', 'EIO')});
$node->safe_psql('postgres',
	q{UPDATE u SET v = v + 1; SELECT dw_evict('u'); SELECT dw_flush_batch(false)}
);
my $sum = $node->safe_psql('postgres', 'SELECT sum(v) FROM u');
$d = difference('SELECT dw_sync_cycle()');
is($d->{logged}, 1,
	'a sync cycle does not free it before there is a newer one');
$node->stop('immediate');
dw_start_after_crash($node, { pages => [], logged => 1, unlogged => 0 });
is($node->safe_psql('postgres', 'SELECT sum(v) FROM u'),
	$sum, 'the page is repaired after a crash');

# ---------------------------------------------------------------------
# Drops wait for atomic writes under way, not for the device of the log (R7, R11)
# ---------------------------------------------------------------------

# Drop a table while the flusher, which has a page of it to be written atomically and another
# one that needs the log, is held; returns what the session does then.
sub drop_while_held
{
	my ($point) = @_;

	$node->safe_psql('postgres',
		'CREATE TABLE removed AS SELECT * FROM t; CHECKPOINT');
	dw_hold_flusher($node, $point);
	$node->safe_psql(
		'postgres', q{
		UPDATE removed SET v = v + 1;
		ALTER ROLE CURRENT_USER CONNECTION LIMIT 100;
		SELECT dw_evict('removed'), dw_evict('pg_authid')});
	my $flusher = dw_start($node, 'flusher', 'SELECT dw_flush_batch(false)');
	ok( dw_waits_for($node, 'flusher', $point),
		"the flusher is held at $point");
	my $drop = dw_start($node, 'drop', 'DROP TABLE removed');
	my $result = '';
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$result = $node->safe_psql(
			'postgres', q{
			SELECT CASE WHEN state = 'idle' THEN 'has ended' WHEN wait_event = 'DoubleWriteHome' THEN 'waits' END
			FROM pg_stat_activity WHERE application_name = 'drop' AND query ~ 'DROP'});
		last if $result ne '';
		usleep(100_000);
	}
	dw_release_flusher($node);
	dw_finish($flusher, $drop);
	return $result;
}

is(drop_while_held('doublewrite-log-written'),
	'has ended', 'a drop does not wait for the log');
is(drop_while_held('doublewrite-home-write'),
	'waits', '... it waits for an atomic write under way');

# ---------------------------------------------------------------------
# Looking at tablespaces
# ---------------------------------------------------------------------

$node->safe_psql(
	'postgres', q{
	SET allow_in_place_tablespaces = on;
	CREATE TABLESPACE again LOCATION '';
	CREATE TABLE a (i int, v int) TABLESPACE again;
	INSERT INTO a VALUES (1, 0);
	CHECKPOINT;
	SELECT points_fail_at('doublewrite-atomic-probe-failed', 'EMFILE')});
my $proof =
  q{SELECT proof FROM pg_atomic_write_status WHERE tablespace = 'again'};
$d = change('a');
is_deeply(
	[ @$d{qw(failed logged)} ],
	[ !!0, 1 ],
	'where looking fails, the log is used');
is($node->safe_psql('postgres', $proof), 'failed',
	'... and the view says so');
change('a');
is($node->safe_psql('postgres', $proof),
	'not offered', '... until it is looked at again');

# a checkpoint writes to both tablespaces in turn
$node->safe_psql(
	'postgres', q{
	CREATE TABLE logged (LIKE whole INCLUDING STORAGE) WITH (fillfactor = 40) TABLESPACE again;
	INSERT INTO logged SELECT 0, repeat('x', 3000) FROM generate_series(1, 250)}
);
$offset = -s $node->logfile;
my $many = "SET allow_in_place_tablespaces = on;\n";
$many .=
  "CREATE TABLESPACE s$_ LOCATION ''; CREATE TABLE s$_ (i int, v int) TABLESPACE s$_; INSERT INTO s$_ VALUES (1, 0);\n"
  foreach (1 .. 64);
$node->safe_psql('postgres', $many . 'CHECKPOINT');
$d = difference(
	join(' ', map { "UPDATE s$_ SET v = 1;" } 1 .. 64) . 'CHECKPOINT');
is_deeply(
	[ @$d{qw(failed pages)} ],
	[ !!0, 0 ],
	'more tablespaces than can be known');
cmp_ok($d->{logged}, '>=', 64, '... take the log');
my @reports =
  slurp_file($node->logfile, $offset) =~ /more than 64 tablespaces/g;
is(scalar(@reports), 1, '... as is reported once');

# one that is dropped makes room for another
my $left = $node->safe_psql('postgres',
	q{SELECT min(tablespace) FROM pg_atomic_write_status WHERE proof = 'not looked at'}
);
$node->safe_psql('postgres', 'DROP TABLE a, logged; DROP TABLESPACE again');
change($left);
is( $node->safe_psql(
		'postgres',
		qq{SELECT proof, pages_logged FROM pg_atomic_write_status WHERE tablespace = '$left'}
	),
	'not offered|1',
	'a tablespace that is left over takes the place of one that is dropped');

# ---------------------------------------------------------------------
# What is counted
# ---------------------------------------------------------------------

$node->safe_psql('postgres',
	'CHECKPOINT; SELECT pg_stat_reset_double_writes()');
$offset = -s $node->logfile;
$node->safe_psql('postgres', q{UPDATE big SET v = v + 1; CHECKPOINT});
like(
	slurp_file($node->logfile, $offset),
	qr/\b0 double-written, (?!0 )\d+ atomically,/,
	'checkpoints report pages written atomically');

# ---------------------------------------------------------------------
# Nothing is remembered over a restart (A5)
# ---------------------------------------------------------------------

$node->stop;
$node->adjust_conf('postgresql.conf', 'test_doublewrite.pretend_atomic',
	'off');
$node->adjust_conf('postgresql.conf', 'debug_atomic_writes_in_software',
	'off');
$node->start;
is( $node->safe_psql(
		'postgres',
		q{SELECT proof, pages_atomic IS NULL FROM pg_atomic_write_status WHERE tablespace = 'pg_default'}
	),
	'not looked at|t',
	'after a restart nothing is known');
# looking fails, so that this means the same where storage is atomic
$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-atomic-probe-failed', 'EMFILE')});
$d = change('t');
is_deeply(
	[ @$d{qw(pages logged)} ],
	[ 0, 1 ],
	'what has gone is not relied on');
is( $node->safe_psql(
		'postgres',
		q{SELECT proof FROM pg_atomic_write_status WHERE tablespace = 'pg_default'}
	),
	'failed',
	'... for it was looked at again');
$node->stop;

# ---------------------------------------------------------------------
# wal_level = minimal: no older copy may be put over a newer page
# ---------------------------------------------------------------------

$node->append_conf('postgresql.conf',
	"wal_level = minimal\nmax_wal_senders = 0\n");
$node->adjust_conf('postgresql.conf', 'test_doublewrite.pretend_atomic',
	'on');
$node->start;
$d = change('t');
is_deeply(
	[ @$d{qw(pages logged)} ],
	[ 1, 0 ],
	'with wal_level = minimal, pages are written atomically while the log is empty'
);
$node->safe_psql('postgres',
	q{ALTER ROLE CURRENT_USER CONNECTION LIMIT 99; SELECT dw_evict('pg_authid'); SELECT dw_drain()}
);
$d = change('t');
is($d->{pages}, 0, '... but not while it has copies');
$node->safe_psql('postgres', 'CHECKPOINT');
$d = change('t');
is($d->{pages}, 1, '... and again after a checkpoint');
$node->stop;

# ---------------------------------------------------------------------
# Crashes under load, which lose atomic writes that were not synced, whole
# ---------------------------------------------------------------------

$node = dw_new_node(
	'load',
	mode => 'atomic_writes',
	conf =>
	  "double_write_buffer_size = 1GB\ntest_doublewrite.pretend_atomic = on\n"
);
$node->start;
dw_workload_setup($node);
foreach my $step (
	[ 'atomic-written', 100 ],
	[ 'home-run-written', 150 ],
	[ 'log-synced', 40 ],
	[ 'checkpoint-drained', 2 ],
	[ 'checkpoint-marked', 2 ])
{
	my ($point, $nth) = @$step;
	my $checkpoint = $point =~ /^checkpoint/;

	note "crash at $point";
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	$offset = -s $node->logfile;
	$node->safe_psql('postgres',
		"SELECT points_crash_at('doublewrite-$point', $nth)")
	  if !$checkpoint;
	dw_workload_start($node);

	if ($checkpoint)
	{
		dw_wait_for_pages($node, 300);
		$node->safe_psql('postgres',
			"SELECT points_crash_at('doublewrite-$point')");
		$node->psql('postgres', 'CHECKPOINT');
	}
	dw_wait_for_crash($node, $offset);
	dw_workload_finish($node);

	# a checkpoint that has synced files has made the writes durable
	cmp_ok(dw_lose($node, $old, qr/^base/), '>', 0, 'pages were lost')
	  if $point ne 'checkpoint-marked';
	my $torn = dw_tear($node, $old);
	dw_start_after_crash($node, $torn);
	dw_check($node);
	$node->start;
}
$node->stop;

done_testing();
