
# Copyright (c) 2025, PostgreSQL Global Development Group

# What a primary answers to READ_PAGE, and what it holds up meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# Of READ_PAGE: after the look at the length, then either of these
my ($LOOKED, $READ, $COPIED) = map { "read-page-$_" } qw(looked read copied);
my $BLOCK = 3;

my $node = dw_quiet_node(
	'primary',
	init => { allows_streaming => 1 },
	conf => q{
instant_recovery = on
recovery_workers = 1
});
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION pg_buffercache;
	CREATE TABLE t (i int PRIMARY KEY, v int) WITH (fillfactor = 50);
	INSERT INTO t SELECT g, 0 FROM generate_series(1, 2000) g;
	CREATE TABLE other (i int);
	CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS i;
	VACUUM t;
	CHECKPOINT;
});
my $file = $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
my ($database) = $file =~ m{base/(\d+)/};

sub request
{
	my ($table, $block) = @_;

	return
		"1663/$database/"
	  . $node->safe_psql('postgres', "SELECT pg_relation_filenode('$table')")
	  . "/0/$block 0/1000028 1";
}

# Returns the page, in hexadecimal, as of when, and the timeline.
sub read_page
{
	my ($table, $block) = @_;
	my ($rc, $stdout, $stderr) = $node->psql(
		'postgres',
		"READ_PAGE '" . request($table, $block) . "'",
		replication => 'true');

	is($stderr, '', "block $block of $table is read");
	return split /\|/, $stdout;
}

sub refused
{
	my ($request, $complaint, $name) = @_;
	my (undef, undef, $stderr) =
	  $node->psql('postgres', "READ_PAGE '$request'", replication => 'true');

	like($stderr, $complaint, "refused: $name");
	return;
}

sub attach
{
	my ($point, $action) = @_;

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', '$action')");
	return;
}

# What a session waits for that has begun with something; nothing if that has ended.
sub outcome_of
{
	my ($name) = @_;
	my $session =
	  "FROM pg_stat_activity WHERE application_name = '$name' AND query !~ '^SET'";

	$node->poll_query_until('postgres',
		"SELECT state = 'idle' OR wait_event ~ '^Buffer' $session")
	  or die "$name: nothing comes of it";
	return $node->safe_psql('postgres',
		"SELECT wait_event $session AND state <> 'idle'");
}

# A standby asks.
sub begin_asking
{
	my $session = $node->background_psql(
		'postgres',
		replication => 'true',
		on_error_stop => 0);

	$session->query_until(qr/asks/,
		"\\echo asks\nREAD_PAGE '" . request('t', $BLOCK) . "';\n");
	return $session;
}

# ... and the walsender comes to an injection point.
sub asks
{
	my ($point) = @_;

	attach($point, 'wait');
	my $session = begin_asking();
	$node->wait_for_event('walsender', $point);
	return $session;
}

sub answered
{
	my ($session, $point) = @_;

	dw_wake($node, $point);
	$session->query('IDENTIFY_SYSTEM');
	return $session;
}

# --- What is answered

{
	my ($page, $as_of, $timeline) = read_page('t', $BLOCK);

	is( $page,
		unpack('H*', read_block($node, $file, 8192 * $BLOCK)),
		'... as it is at home');
	is($timeline, '1', '... on this timeline');
	is( $node->safe_psql(
			'postgres', "SELECT count(*) FROM pg_buffercache
				WHERE relfilenode = pg_relation_filenode('t') AND relblocknumber = $BLOCK"
		),
		'1',
		'... and in a buffer, where it was');
}

# the WAL writer would flush WAL for it
my @stopped = dw_stop_processes($node, 'walwriter');
$node->safe_psql('postgres',
	'SET synchronous_commit = off; UPDATE t SET v = v + 1 WHERE i <= 1000');
my ($changed, $later) = read_page('t', $BLOCK);
is( $node->safe_psql(
		'postgres', "SELECT pg_current_wal_flush_lsn() >= '$later'"),
	't',
	'... and all WAL until then is durable');
kill('CONT', @stopped);
$node->safe_psql('postgres', 'SELECT dw_evict_all()');
is((read_page('t', $BLOCK))[0], $changed, '... the same from the stage');
$node->safe_psql('postgres', 'CHECKPOINT');
is( $changed,
	unpack('H*', read_block($node, $file, 8192 * $BLOCK)),
	'... so is the page with its last change');

$node->safe_psql('postgres', 'SELECT dw_evict_all()');
read_page('t', $BLOCK);
is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM pg_buffercache
			WHERE relfilenode = pg_relation_filenode('t') AND relblocknumber = $BLOCK"
	),
	'0',
	'... and in no buffer if it was in none');

is((read_page('t', 100000))[0], '', '... which is none beyond the end');

# --- What is refused

refused(
	'1663/5/1259/0/0 FF/0 1',
	qr/not in this server's history/,
	'the future');
refused(
	'1663/5/1259/0/0 0/1000028 7',
	qr/not in this server's history/,
	'another timeline');
refused($_, qr/invalid page "$_"/, 'no page')
  foreach (
	'pg_class',
	'1663/5/0/0/0 0/1000028 1',
	'1664/5/1262/0/0 0/1000028 1',
	'1663/5/1259/0/0 0/1000028 1 and more');
refused(request('unlogged', 0), qr/is unlogged/, 'an unlogged relation');

$node->append_conf('postgresql.conf', 'ignore_checksum_failure = on');
$node->reload;
refused(
	request('t', $BLOCK),
	qr/"ignore_checksum_failure" is on/,
	'pages that may be damaged');
$node->append_conf('postgresql.conf', 'ignore_checksum_failure = off');
$node->stop;
my $good = read_block($node, $file, 8192 * $BLOCK);
my $bad = $good;
substr($bad, 4000, 4) = 'rot!';
write_block($node, $file, 8192 * $BLOCK, $bad);
$node->start;
refused(
	request('t', $BLOCK),
	qr/invalid page in block $BLOCK of relation "$file"/,
	'a damaged page');
$node->stop;
$bad = $good;
substr($bad, 0, 4) = pack('L', 0xFF);
substr($bad, 8, 2) = pack('S', dw_checksum($bad, $BLOCK));
write_block($node, $file, 8192 * $BLOCK, $bad);
$node->start;
refused(
	request('t', $BLOCK),
	qr/beyond the end of WAL/,
	'a page from nowhere');
$node->stop;
write_block($node, $file, 8192 * $BLOCK, $good);
$node->start;

# --- No hint is set while the page is copied: with checksums that may change its LSN.

{
	$node->safe_psql('postgres', 'SELECT count(*) FROM t');
	my $asking = asks($COPIED);
	my $reading = dw_start($node, 'reading', 'SELECT count(*) FROM t');

	is(outcome_of('reading'), 'BufferContent', 'a reader waits for the copy');
	answered($asking, $COPIED)->quit;
	dw_finish($reading);
}

# --- A page that is in no buffer is read while the walsender has the I/O of one.  That
# --- keeps other processes from the page, and from nothing else.

$node->safe_psql('postgres', 'CREATE TABLE short (i int)');
foreach
  my $sql ('UPDATE t SET v = v + 1', 'SELECT count(*) FROM t', 'DROP TABLE t')
{
	$node->safe_psql('postgres', 'SELECT dw_evict_all()');
	my $asking = asks($READ);
	my $other = begin_asking();
	is( $node->safe_psql(
			'postgres',
			'DROP TABLE short; CHECKPOINT; CREATE TABLE short (i int)'),
		'',
		"a table is dropped, and a checkpoint made, while a page is read");

	my $waiting = dw_start($node, 'waiting', $sql);
	is(outcome_of('waiting'), 'BufferIo', "... and waits: $sql");
	answered($asking, $READ)->quit;
	$other->query('IDENTIFY_SYSTEM');
	is($other->{stderr}, '', '... another standby is answered as well');
	$other->quit;
	dw_finish($waiting);
}

# --- The table is truncated between the look at its length and the read.  That is an error.
# --- The invalid buffer that is left is taken for a new page.

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (i int, f text);
	INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 100) g;
	DELETE FROM t;
	SELECT dw_evict_all()});
{
	my $asking = asks($LOOKED);

	$node->safe_psql('postgres', 'VACUUM (FREEZE) t');
	is($node->safe_psql('postgres', q{SELECT pg_relation_size('t')}),
		'0', 'a table is truncated before the page is read');
	answered($asking, $LOOKED);
	like($asking->{stderr}, qr/could not read blocks/, '... an error');
	$asking->quit;
	$node->safe_psql('postgres',
		q{INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 100) g}
	);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t'),
		'100', '... it is filled again');
}
read_page('t', $BLOCK);

# --- Removals do not wait for redo of the page.

$node->safe_psql('postgres', 'SELECT count(*) FROM t; CHECKPOINT');
$node->safe_psql('postgres', 'UPDATE t SET i = i + 1');
$node->stop('immediate');
$node->append_conf('postgresql.conf',
	"test_points.fail_at = 'instant-recovery-only-demands:EIO'");
ok(dw_poll_start($node),
	'server starts, and no page of the table has been redone');
{
	my $redone = 'instant-recovery-page-redone';

	attach($redone, 'wait');
	my $asking = $node->background_psql(
		'postgres',
		replication => 'true',
		on_error_stop => 0);
	$asking->query_until(qr/asks/,
		"\\echo asks\nREAD_PAGE '" . request('t', $BLOCK) . "';\n");
	$node->wait_for_event('recovery worker', $redone);
	my $drop = dw_start($node, 'drop', 'DROP TABLE other');
	is(outcome_of('drop'), '',
		'a table is dropped while a standby waits for redo of its page');
	answered($asking, $redone)->quit;
	dw_finish($drop);
}
$node->append_conf('postgresql.conf', "test_points.fail_at = ''");
$node->safe_psql('postgres',
	"SELECT injection_points_detach('instant-recovery-only-demands')");

$node->stop;

done_testing();
