
# Copyright (c) 2025, PostgreSQL Global Development Group

# A page of a standby has rotted.  Redo that needs it says what to do; the page of the
# primary is fetched, and replay goes on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../../test/modules/test_doublewrite/t";

use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

my $BLOCK = 7;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, extra => ['--data-checksums']);
$primary->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = double_writes
autovacuum = off
wal_keep_size = 1GB
shared_buffers = 16MB
});
$primary->start;
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION amcheck;
	CREATE ROLE sender REPLICATION LOGIN;
	CREATE TABLE t (i int PRIMARY KEY, v int, f text) WITH (fillfactor = 50);
	INSERT INTO t SELECT g, 0, repeat('x', 100) FROM generate_series(1, 20000) g;
});
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->backup('base');
my $file =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('t')");

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE i % 100 = 0');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');

sub page
{
	my ($node) = @_;

	return read_block($node, $file, $BLOCK * BLCKSZ);
}

# The command, of the standby and its primary unless told otherwise
sub fetch_page
{
	my (%arg) = @_;

	return [
		'pg_doublewrite', 'fetch-page',
		'--relation' => $arg{relation} // $file,
		'--block' => $arg{block} // $BLOCK,
		'--source-server' => ($arg{source} // $primary)->connstr('postgres')
		  . ($arg{user} // ''),
		@{ $arg{more} // [] },
		$arg{data} // $standby->data_dir
	];
}

sub refused
{
	my ($name, $complaint, %arg) = @_;
	my $before = page($standby);

	command_fails_like(fetch_page(%arg), $complaint, "refused: $name");
	ok(page($standby) eq $before, '... and nothing is changed');
	return;
}

# Start the standby and wait until it has stopped by itself.  It may do so before or
# after it has let clients in.
sub start_in_vain
{
	my $begun = -s $standby->logfile;

	system_or_bail(
		'pg_ctl', '--no-wait',
		'--pgdata' => $standby->data_dir,
		'--log' => $standby->logfile,
		'start');
	$standby->wait_for_log(
		qr/starting PostgreSQL.*database system is (shut down|ready to accept connections)/s,
		$begun);
	die 'the server has opened'
	  if $standby->log_contains('ready to accept connections', $begun);
	watchdog_until('the standby has stopped',
		sub { !-f $standby->data_dir . '/postmaster.pid' });
	return;
}

my $sums = q{SELECT count(*), sum(v) FROM t};

sub same_sums
{
	my ($name) = @_;

	return is($standby->safe_psql('postgres', $sums),
		$primary->safe_psql('postgres', $sums), $name);
}

# --- What is no page that can be fetched

refused('a server that runs', qr/a server seems to be running/);
$standby->stop;
refused('a page that is not damaged',
	qr/is not damaged: its checksum is right/);
refused(
	'a path out of the data directory',
	qr/is not the path of a relation/,
	relation => "../primary/$file");
refused(
	'a file with a number of its own',
	qr/is not the path of a relation/,
	relation => "$file.1");
refused(
	'a block beyond the end',
	qr/has no block 100000|could not open file/,
	block => 100000);
refused('no number', qr/invalid block number/, block => '7x');
command_fails_like(
	[ 'pg_doublewrite', 'fetch-page', $standby->data_dir ],
	qr/needs --relation, --block and --source-server/,
	'refused: no page is named');

# --- Redo meets the damaged page.

# The standby has WAL, but can't ask the primary: that would replace the page.
$standby->start;
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until('postgres',
	q{SELECT pg_get_wal_replay_pause_state() = 'paused'})
  or die 'replay is not paused';
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
$standby->stop;
$standby->append_conf('postgresql.conf', "primary_conninfo = ''\n");
write_block($standby, $file, $BLOCK * BLCKSZ + 4000, 'rot' x 100);
my $offset = -s $standby->logfile;
start_in_vain();
my $log = slurp_file($standby->logfile, $offset);
like($log, qr/FATAL: .*invalid page in block $BLOCK of relation "$file"/,
	'replay ends');
like(
	$log,
	qr/HINT: .*pg_doublewrite fetch-page --relation=$file --block=$BLOCK/,
	'... and says what to do');

# --- Servers that are not the primary, or not now

my $other = PostgreSQL::Test::Cluster->new('other');
$other->init(allows_streaming => 1, extra => ['--data-checksums']);
$other->start;
refused(
	'another cluster',
	qr/the other server has system identifier/,
	source => $other);
$other->stop;
refused(
	'a server that is down',
	qr/connection to server .* failed/,
	source => $other);
command_fails_like(
	fetch_page(
		data => $other->data_dir,
		relation => 'base/1/1259',
		block => 0),
	qr/is not that of a standby/,
	'refused: a cluster that is no standby');

# The backup, started as a primary: it ends where the backup was made.
my $past = PostgreSQL::Test::Cluster->new('past');
$past->init_from_backup($primary, 'base');
$past->start;
refused(
	'what is older than the standby',
	qr/is not in this server's history/,
	source => $past);
$past->stop;

my $sibling = PostgreSQL::Test::Cluster->new('sibling');
$sibling->init_from_backup($primary, 'base', has_streaming => 1);
$sibling->start;
$primary->wait_for_catchup($sibling);
refused('another standby', qr/recovery is in progress/, source => $sibling);
$sibling->promote;
refused(
	'a primary on another timeline',
	qr/the primary is on timeline 2, but this standby on timeline 1/,
	source => $sibling);
$sibling->stop;

$primary->stop;
my $good = page($primary);
write_block($primary, $file, $BLOCK * BLCKSZ + 4000, 'rot' x 100);
$primary->start;
refused('a page that is damaged there, too',
	qr/invalid page in block $BLOCK/);
write_block($primary, $file, $BLOCK * BLCKSZ + 4000,
	substr($good, 4000, 300));

# --- The page is from the future of the standby.  Reading it has set hints in it for a
# --- transaction that ended later than its last change.

my $before = dw_control($standby, 'Minimum recovery ending location');
$primary->safe_psql(
	'postgres', q{
	BEGIN;
	UPDATE t SET v = v + 1;
	CREATE TABLE later AS SELECT generate_series(1, 10000);
	COMMIT;
});
$primary->safe_psql('postgres', 'SELECT count(*) FROM t');
my $ended =
  $primary->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$primary->safe_psql('postgres', 'CHECKPOINT');
command_like(
	fetch_page(user => ' user=sender'),
	qr/^Block $BLOCK of relation "$file", with LSN \S+, is that of the primary now/,
	'page is fetched');
ok(page($standby) eq page($primary), '... as it is on the primary');
my $after = dw_control($standby, 'Minimum recovery ending location');
is( $primary->safe_psql(
		'postgres',
		"SELECT '$after'::pg_lsn >= '$ended' AND '$after'::pg_lsn > '$before'
			AND pg_current_wal_flush_lsn() >= '$after'"),
	't',
	'... and the standby takes queries only after all that the page depends on'
);

# --- Without what makes it a standby it has not got that far.

my $signal = $standby->data_dir . '/standby.signal';
rename($signal, "$signal.away") or die $!;
foreach my $start (1, 2)
{
	$offset = -s $standby->logfile;
	start_in_vain();
	$log = slurp_file($standby->logfile, $offset);
	like(
		$log,
		qr/FATAL: .*WAL ends before consistent recovery point/,
		"start $start without standby.signal fails");
	like($log, qr/HINT: .*standby\.signal/, '... and says what to do');
}
rename("$signal.away", $signal) or die $!;

# --- Replay goes on.

$standby->enable_streaming($primary);
$standby->start;
$primary->wait_for_catchup($standby);
same_sums('replay goes on, with all rows');
is( $standby->safe_psql(
		'postgres', q{SELECT count(*) FROM verify_heapam('t')}),
	'0',
	'... an intact heap');
is( $standby->safe_psql('postgres', q{SELECT bt_index_check('t_pkey', true)}),
	'',
	'... and an intact index');

# --- A page of zeroes

$standby->stop;
write_block($standby, $file, $BLOCK * BLCKSZ, "\0" x BLCKSZ);
command_like(
	fetch_page(),
	qr/is that of the primary now/,
	'zeroes are replaced');

# --- By force, of a page whose checksum is right

command_like(fetch_page(more => ['--force']),
	qr/is that of the primary now/, 'forced');
$standby->start;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
$primary->wait_for_catchup($standby);
same_sums('... and replay goes on');
$standby->promote;
same_sums('... up to a promotion');

done_testing();
