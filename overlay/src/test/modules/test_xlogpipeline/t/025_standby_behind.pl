
# Copyright (c) 2025, PostgreSQL Global Development Group

# A standby that is behind looks far ahead in WAL, also while queries run on it, and
# asks for few blocks at a time.  One that keeps up, or is delayed on purpose, does not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use File::Basename;
use File::Copy;
use List::Util qw(sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

# Requests that may be under way, and blocks that are changed
my $REQUESTS = 4;
my $PAGES = 2000;

# Change the pages of a table in random order, half of them in another segment of WAL
# than the others.  Both are near the begin of it: its end is not handed over to the pipeline
# if it is short.
sub change
{
	my ($node, $name) = @_;

	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$node->safe_psql(
		'postgres', qq{
		DO \$\$
		DECLARE
			place tid;
			half int;
		BEGIN
			FOR half IN 0 .. 1 LOOP
				FOR place IN SELECT ctid FROM $name WHERE id % 2 = half ORDER BY hashint4(id) LOOP
					UPDATE $name SET v = v + 1 WHERE ctid = place;
				END LOOP;
				PERFORM pg_logical_emit_message(false, 'test', repeat('m', 1000))
					FROM generate_series(1, 1000);
			END LOOP;
		END
		\$\$;
	});
	return;
}

# Have the standby receive what the sub does on the primary, and not replay it before it
# has all of it.  Returns the windows of WAL in which it looked ahead:
# [from, to, blocks found].
sub fall_behind
{
	my ($primary, $standby, $work) = @_;
	my $offset = -s $standby->logfile;

	xlp_pause($standby);
	$work->();
	$primary->wait_for_catchup($standby, 'flush');
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$primary->wait_for_catchup($standby);
	return windows($standby, $offset);
}

sub windows
{
	my ($standby, $offset) = @_;
	my $log = slurp_file($standby->logfile, $offset);
	my @windows;

	push @windows, [ $1, $2, $3 ]
	  while $log =~
	  /looked ahead in WAL from (\S+) to (\S+), found (\d+) blocks/g;
	note join(', ', map { "$_->[0] to $_->[1]: $_->[2]" } @windows);
	return @windows;
}

# Query for the blocks that a kind of process has read
sub blocks_read
{
	my ($kind) = @_;
	return "SELECT (SELECT sum(reads) FROM pg_stat_io
		WHERE backend_type = '$kind' AND object = 'relation')";
}

# Sums of all that is changed
sub sums
{
	my ($node) = @_;
	my $tables = $node->safe_psql('postgres',
		"SELECT relname FROM pg_class WHERE relname ~ '^t_' AND relkind = 'r' ORDER BY 1"
	);

	return join(
		"\n",
		map {
			"$_ "
			  . $node->safe_psql('postgres',
				"SELECT count(*), sum(v) FROM $_")
		  }
		  split(/\n/, $tables));
}

my $primary = xlp_primary('primary');
xlp_page_images($primary, 0);
$primary->restart;
# One row a page, and room for a new version of it
$primary->safe_psql(
	'postgres', qq{
	CREATE TABLE $_ (id int, v int, filler text) WITH (fillfactor = 40);
	ALTER TABLE $_ ALTER filler SET STORAGE PLAIN;
	INSERT INTO $_ SELECT i, 0, repeat('x', 3000) FROM generate_series(1, $PAGES) i;
}) foreach qw(t_one t_two t_three t_gone t_cut);
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
$primary->backup('far');

# --- Behind by several windows.  A range of WAL may begin before the window that has begun.

my $far = PostgreSQL::Test::Cluster->new('far');
$far->init_from_backup($primary, 'far', has_streaming => 1);
$far->append_conf('postgresql.conf',
	xlp_conf('on') . "shared_buffers = 1MB\n");
$far->start;
$primary->wait_for_catchup($far);
my @windows = fall_behind(
	$primary, $far,
	sub {
		foreach (qw(t_one t_two t_three t_cut t_gone))
		{
			change($primary, $_);
			$primary->safe_psql(
				'postgres',
				q{SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000)))
				FROM generate_series(1, 7000)});
		}
	});
my $found = sum0(map { $_->[2] } @windows);
cmp_ok(scalar(@windows), '>', 1, 'several windows');
cmp_ok($found, '<=', 5.5 * $PAGES, '... look at each block once');
$far->stop;

$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on')
	  . "maintenance_io_concurrency = $REQUESTS\nshared_buffers = 1MB\n");
$standby->start;
$primary->wait_for_catchup($standby);

# --- Nearly keeping up

@windows = fall_behind(
	$primary, $standby,
	sub {
		$primary->safe_psql(
			'postgres', q{
			SELECT pg_switch_wal();
			UPDATE t_one SET v = v + 1 WHERE id % 10 = 0;
			SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000)))
				FROM generate_series(1, 300)});
	});
is(scalar(@windows), 0, 'does not look ahead if it is behind by little');

# --- Behind.  A range of WAL is a segment at most; a window is not.

$standby->safe_psql('postgres', q{SELECT pg_stat_reset_shared('io')});
@windows = fall_behind($primary, $standby, sub { change($primary, 't_two') });
$found = sum0(map { $_->[2] } @windows);
cmp_ok($found, '>=', $PAGES, 'behind: looks ahead in all blocks');
cmp_ok($found, '<=', 1.1 * $PAGES, '... once');
my @from = map { hex((split m{/}, $_->[0])[1]) >> 20 } @windows;
my @to = map { hex((split m{/}, $_->[1])[1]) >> 20 } @windows;
ok((grep { $from[$_] != $to[$_] } 0 .. $#windows),
	'... beyond the end of a segment');
my $most = 0.9 * $PAGES;
my $few = 0.1 * $PAGES;
ok( $standby->poll_query_until(
		'postgres', blocks_read('background worker') . " >= $most"),
	'... which are read ahead of redo');
is($standby->safe_psql('postgres', blocks_read('startup') . " < $few"),
	't', '... and not by it');
is(sums($standby), sums($primary), '... and replays all');

# --- What is dropped, truncated or made anew meanwhile

@windows = fall_behind(
	$primary, $standby,
	sub {
		change($primary, $_) foreach qw(t_gone t_cut);
		$primary->safe_psql(
			'postgres', q{
			DELETE FROM t_cut WHERE id >= 100;
			VACUUM t_cut;
			DROP TABLE t_gone;
			CREATE TABLE t_brief AS SELECT * FROM t_cut;
			TRUNCATE t_brief;
			INSERT INTO t_brief SELECT * FROM t_cut;
			CREATE DATABASE copied STRATEGY wal_log;
			DROP DATABASE copied;
		});
		change($primary, 't_brief');
	});
cmp_ok(scalar(@windows), '>', 0, 'removals: looks ahead');
is(sums($standby), sums($primary), '... and replays all');

# --- Sessions that are in the way of replay: it cancels them, and goes on.

$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE TABLE pinned AS SELECT i AS id FROM generate_series(1, 20) i',
	'CREATE TABLE locked (id int)',
	'BEGIN; INSERT INTO pinned VALUES (0); ROLLBACK',
	'SELECT pg_current_xact_id()');
$primary->wait_for_catchup($standby);
$standby->append_conf('postgresql.conf',
	'max_standby_streaming_delay = 100ms');
$standby->reload;
my @sessions;
my $pids = '';
foreach my $held (
	'DECLARE c CURSOR FOR SELECT id FROM pinned; FETCH c',
	'LOCK TABLE locked IN ACCESS SHARE MODE',
	'SELECT count(*) FROM t_one')
{
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$pids .= ',' . $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; $held");
	push @sessions, $session;
}
@windows = fall_behind(
	$primary, $standby,
	sub {
		$primary->safe_psql('postgres', $_)
		  foreach (
			'SELECT pg_switch_wal()',
			'VACUUM (FREEZE) pinned',
			'ALTER TABLE locked ADD v int');
		change($primary, 't_one');
		$primary->safe_psql('postgres', 'VACUUM t_one');
		change($primary, 't_two');
	});
cmp_ok(scalar(@windows), '>', 0, 'conflicts: looks ahead');
ok( $standby->poll_query_until(
		'postgres', q{
		SELECT confl_bufferpin = 1 AND confl_lock = 1 AND confl_snapshot = 1
			FROM pg_stat_database_conflicts WHERE datname = 'postgres'}),
	'... cancels the session of each');
is( $standby->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE pid IN (0$pids)"),
	0,
	'... these three');
is(sums($standby), sums($primary), '... and replays all');
$_->quit foreach @sessions;

# --- Logical decoding on a standby that is behind, while it replays and afterwards

my $publisher = xlp_primary('publisher');
xlp_page_images($publisher, 0);
$publisher->append_conf('postgresql.conf', 'wal_level = logical');
$publisher->restart;
$publisher->safe_psql(
	'postgres', qq{
	CREATE TABLE t_decoded AS
		SELECT i AS id, 0 AS v, repeat('x', 500) AS filler
		FROM generate_series(1, $PAGES) i});
$publisher->backup('base');
my $decoder = PostgreSQL::Test::Cluster->new('decoder');
$decoder->init_from_backup($publisher, 'base', has_streaming => 1);
$decoder->append_conf(
	'postgresql.conf',
	xlp_conf('on') . q{
shared_buffers = 1MB
hot_standby_feedback = on
wal_receiver_status_interval = 1s
});
$decoder->start;
$publisher->poll_query_until('postgres',
	'SELECT backend_xmin IS NOT NULL FROM pg_stat_replication');
$decoder->create_logical_slot_on_standby($publisher, $_, 'postgres')
  foreach qw(meanwhile afterwards);
$publisher->safe_psql('postgres',
	q{SELECT pg_create_logical_replication_slot('primary', 'test_decoding')});

my $decoded = $decoder->basedir . '/decoded';
my $receiver;
@windows = fall_behind(
	$publisher,
	$decoder,
	sub {
		change($publisher, 't_decoded');
		$publisher->safe_psql('postgres',
			'ALTER TABLE t_decoded ADD w text; UPDATE t_decoded SET w = v WHERE id < 100'
		);
		change($publisher, 't_decoded');
		$publisher->safe_psql('postgres',
			'ALTER TABLE t_decoded DROP filler; DELETE FROM t_decoded WHERE id < 50'
		);
		$receiver = IPC::Run::start(
			[
				'pg_recvlogical', '--start',
				'--slot' => 'meanwhile',
				'--dbname' => $decoder->connstr('postgres'),
				'--endpos' => $publisher->lsn('flush'),
				'--option' => 'include-xids=0',
				'--option' => 'skip-empty-xacts=1',
				'--file' => $decoded
			]);
	});
cmp_ok(scalar(@windows), '>', 0, 'decoding: looks ahead');
is(sums($decoder), sums($publisher), '... and replays all');

sub decode
{
	my ($node, $slot) = @_;
	return $node->safe_psql(
		'postgres',
		"SELECT data FROM pg_logical_slot_get_changes('$slot', NULL, NULL,
			'include-xids', '0', 'skip-empty-xacts', '1')");
}
my $changes = decode($publisher, 'primary');
is( scalar(() = $changes =~ /^table public.t_decoded: UPDATE:/mg),
	2 * $PAGES + 99,
	'... which are many changes');
ok(decode($decoder, 'afterwards') eq $changes, '... decoded afterwards');
ok($receiver->finish, '... and meanwhile');
ok(slurp_file($decoded) eq "$changes\n", '... which gives the same');
$decoder->stop;
$publisher->stop;

# --- Delayed

$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 1');
$standby->reload;
$standby->poll_query_until('postgres',
	"SELECT current_setting('recovery_min_apply_delay') = '1ms'");
@windows = fall_behind($primary, $standby, sub { change($primary, 't_one') });
is(scalar(@windows), 0, 'delayed: does not look ahead');
is(sums($standby), sums($primary), '... and replays all');

# --- Delayed, without queries: it finds all WAL since the backup in its directory.

my $cold = PostgreSQL::Test::Cluster->new('cold');
$cold->init_from_backup($primary, 'base', has_streaming => 1);
$cold->append_conf('postgresql.conf',
	xlp_conf('on') . "hot_standby = off\nrecovery_min_apply_delay = 1\n");
foreach my $segment (glob($primary->data_dir . '/pg_wal/0000*'))
{
	copy($segment, $cold->data_dir . '/pg_wal/' . basename($segment))
	  or die $!;
}
$cold->start;
$primary->wait_for_catchup($cold);
is(scalar(windows($cold, 0)),
	0, 'delayed, without queries: does not look ahead');
$cold->stop;

# --- Promoted while it is behind, as it is delayed

$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = '1d'");
$standby->reload;
$standby->poll_query_until('postgres',
	"SELECT current_setting('recovery_min_apply_delay') = '1d'");
# Only commits wait.
$primary->safe_psql('postgres', 'UPDATE t_one SET v = v + 1 WHERE id = 1');
change($primary, 't_three');
$primary->wait_for_catchup($standby, 'flush');
my $sums = sums($primary);
$primary->stop;
my $offset = -s $standby->logfile;
$standby->promote;
is(sums($standby), $sums, 'promoted: has all that was received');
cmp_ok(
	sum0(map { $_->[2] } windows($standby, $offset)),
	'>=',
	0.5 * $PAGES,
	'... and has looked ahead');
my ($blocks, $runs, $at_once) = slurp_file($standby->logfile) =~
  /announced (\d+) blocks, and \d+ in between, in (\d+) runs, with at most (\d+) requests under way/;
cmp_ok(
	$blocks, '>=',
	3.5 * $PAGES,
	'blocks of four tables have been announced');
cmp_ok($runs, '<', $blocks / 5, '... in runs');
cmp_ok($at_once, '<=', $REQUESTS, '... of which few were under way');
cmp_ok($at_once, '>', 1, '... but several');
unlike(
	slurp_file($standby->logfile),
	qr/has failed|has ended/,
	'worker does not fail');

done_testing();
