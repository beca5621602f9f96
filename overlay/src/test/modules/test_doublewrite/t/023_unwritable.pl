# Copyright (c) 2025, PostgreSQL Global Development Group

# A tablespace that cannot be written: its pages fail processes that need them at
# home, and no others (R11); checkpoints fail (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# 64 slots; the log holds 2044 blocks
my $node = dw_quiet_node(
	'main', conf => q{
double_write_buffer_size = 16MB
max_wal_size = 10GB
bgwriter_delay = 50ms
test_doublewrite.quiet = off
bgwriter_lru_maxpages = 100
});
my %dir = map { $_ => dw_tablespace($node, $_) } qw(bad good);

foreach my $table (
	'b1 TABLESPACE bad',
	'b2 TABLESPACE bad',
	'b3 TABLESPACE bad',
	'g',
	'other')
{
	my ($name, $where) = $table =~ /^(\w+)(.*)/;
	my $rows = $where ? 50 : 300;

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (id int, v int, filler text STORAGE PLAIN) $where;
		INSERT INTO $name SELECT i, 0, repeat('x', 6000) FROM generate_series(1, $rows) i;
		VACUUM $name});
}
$node->safe_psql('postgres', 'CHECKPOINT');
my $old = dw_snapshot($node);

sub sql
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql);

	return $ret == 0 ? $stdout : "error: $stderr";
}

my $offset = -s $node->logfile;
sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
);

# --- A few pages that have failed

is(sql(q{UPDATE b1 SET v = 1 WHERE id <= 2; SELECT dw_evict('b1') > 0}),
	't', 'pages are staged');
like(
	sql('CHECKPOINT'),
	qr/^error: .*checkpoint request failed/,
	'a checkpoint fails');
like(
	sql('SELECT dw_drain()'),
	qr/^error: .*could not write blocks/,
	'... and a drain of all');
like(
	sql('ALTER TABLE b1 SET TABLESPACE good'),
	qr/^error: .*could not write blocks/s,
	'... and one of the relation');
is( sql(q{UPDATE g SET v = 1 WHERE id <= 5; ALTER TABLE g SET TABLESPACE good}
	),
	'',
	'a drain of another relation does not');
is(sql('SELECT min(v), max(v) FROM b1'), '0|1', 'the pages can be read');
my $file = sql(q{SELECT pg_relation_filepath('b1')});
like(
	sql("SELECT pg_read_binary_file('$file')"),
	qr/^error: .*could not write blocks/,
	'... but not from their file, where a half of one may stand (R9a)');

# --- More than there is room for

# as many relations as there are share the tablespace
like(
	join('',
		map { sql("UPDATE $_ SET v = 2; SELECT dw_evict('$_')") }
		  qw(b1 b2 b3)),
	qr/error: .*could not write blocks/s,
	'a backend that evicts more of such pages gets the error');
is(sql(q{UPDATE g SET v = 2; SELECT dw_evict('g') > 300}),
	't', 'pages of other files find room');
is(sql(q{UPDATE other SET v = 2; SELECT dw_evict('other') > 300}),
	't', '... as often as they come');
is(sql('SELECT min(v), max(v), count(*) FROM g'),
	'2|2|300', '... and can be read');

# --- The background writer goes on with other work

$offset = -s $node->logfile;
$node->wait_for_log(qr/LOG:  could not write blocks/, $offset);
my $sql = 'SELECT home_pages FROM dw_stats()';
my $before = sql($sql);
is(sql(q{UPDATE other SET v = 3; SELECT dw_evict('other') > 300}),
	't', 'others are evicted');
ok( $node->poll_query_until(
		'postgres', 'SELECT staged <= 64 AND in_use < 64 FROM dw_state()'),
	'some slots are free');
ok( $node->poll_query_until(
		'postgres', "SELECT home_pages > $before + 300 FROM dw_stats()"),
	'they have gone home');
my $bgwriter = sql(
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"
);
unlike(
	slurp_file($node->logfile, $offset),
	qr/\[$bgwriter\] ERROR/,
	'background writer meets no error');

# --- The log is freed nevertheless, also if it is filled several times

foreach my $v (4 .. 7)
{
	is( sql("UPDATE other SET v = $v; SELECT dw_evict('other') > 300; UPDATE g SET v = $v; SELECT dw_evict('g') > 300"
		),
		"t\nt",
		"pages of others are logged, turn $v");
	my $next = sql('SELECT next_batch FROM dw_state()');
	is( sql("SELECT dw_sync_cycle(); SELECT low_water_logged >= $next FROM dw_state()"
		),
		"\nt",
		'a sync cycle frees the log');
}
is(sql('SELECT log_full FROM dw_stats()'),
	0, 'no process had to wait for space');
is(sql('SELECT last_segno - first_segno < 5 FROM dw_state()'),
	't', 'log is within its bound');

# --- Copies of pages that have failed are there when the machine crashes

my %value = map { $_ => sql("SELECT sum(v) FROM $_") } qw(b1 b2 b3 g other);
$node->stop('immediate');
my $torn = dw_tear($node, $old, only => qr/^pg_tblspc/);
cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
dw_start_after_crash($node, $torn);
is(sql("SELECT sum(v) FROM $_"), $value{$_}, "$_: nothing is lost")
  foreach sort keys %value;

# --- When the device is well again, all is

sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
);
like(
	join('',
		map { sql("UPDATE $_ SET v = 8; SELECT dw_evict('$_')") }
		  qw(b1 b2 b3)),
	qr/error: .*could not write blocks/s,
	'pages fail');
sql(q{SELECT points_clear('doublewrite-home-write')});
ok( $node->poll_query_until('postgres', 'SELECT in_use = 0 FROM dw_state()'),
	'background writer writes back what has failed');
is(sql('CHECKPOINT'), '', 'a checkpoint succeeds');
is(sql("SELECT min(v), max(v) FROM b3"), '8|8', 'nothing is lost');

# --- Checkpoints leave unlogged relations out, unless they are to flush all

is( sql(q{
		CREATE UNLOGGED TABLE unlogged TABLESPACE bad AS SELECT * FROM g LIMIT 20;
		CHECKPOINT;
		SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad';
		UPDATE unlogged SET v = 9; SELECT dw_evict('unlogged') > 0}),
	"\nt",
	'pages of an unlogged relation are staged');
like(
	sql('SELECT dw_drain()'),
	qr/^error: .*could not write blocks/,
	'... and cannot be written');
is(sql('CHECKPOINT'), '', '... but a checkpoint succeeds');
like(
	sql('CREATE DATABASE copy STRATEGY file_copy'),
	qr/^error: .*checkpoint request failed/,
	'... except one that flushes all');

# ... nor do they keep the log in use
foreach my $mode (qw(full_pages double_writes off double_writes))
{
	my $from = -s $node->logfile;

	$node->append_conf('postgresql.conf',
		"io_torn_pages_protection = $mode\n");
	$node->reload;
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT setting = '}
			  . $mode
			  . q{' FROM pg_settings WHERE name = 'io_torn_pages_protection'}
		),
		"mode is set to $mode");
	is(sql('CHECKPOINT'), '', '... a checkpoint succeeds');
	$node->wait_for_log(
		{
			full_pages => qr/protection has switched to full-page images/,
			double_writes => qr/protection has switched to double writes/,
			off => qr/protection is off/
		}->{$mode},
		$from);
}
sql(q{SELECT points_clear('doublewrite-home-write'); DROP TABLE unlogged});

# --- A relation that cannot be written can be dropped

sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
);
like(
	join('',
		map { sql("UPDATE $_ SET v = 9; SELECT dw_evict('$_')") }
		  qw(b1 b2 b3)),
	qr/error: .*could not write blocks/s,
	'pages fail');
is(sql('DROP TABLE b1, b2, b3'), '', 'tables are dropped');
is(sql('CHECKPOINT'), '', 'then a checkpoint succeeds');
sql(q{SELECT points_clear('doublewrite-home-write')});

# --- Nor does a database need its pages to be written to be dropped.  Redo may have to
#     begin before its last changes: then it finds their copies, or the files are gone
#     and WAL says so.

my %crash = (
	nowhere => undef,
	'before files are removed' => 'doublewrite-database-discarded',
	'after that' => 'doublewrite-database-removed',
	'when their copies have been freed' => 'doublewrite-checkpoint-marked');

foreach my $where (sort keys %crash)
{
	my $name = 'd' . ($where =~ s/\W//gr);
	my $point = $crash{$where};

	$node->safe_psql('postgres', "CREATE DATABASE $name TABLESPACE bad");
	$node->safe_psql(
		$name, q{
		CREATE EXTENSION test_doublewrite CASCADE;
		CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 1000) i;
		CHECKPOINT});
	my $before = dw_snapshot($node);
	$node->safe_psql($name, q{UPDATE t SET v = 1; SELECT dw_evict('t')});
	sql('SELECT dw_drain()');
	sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
	);
	# the background writer may have tried so many by then that no more are taken
	$node->psql($name, q{UPDATE t SET v = 2; SELECT dw_evict('t')});
	like(
		sql('CHECKPOINT'),
		qr/^error: .*checkpoint request failed/,
		'a checkpoint fails');
	sql("SELECT points_crash_at('$point')") if $point;
	my ($ret) = $node->psql('postgres', "DROP DATABASE $name");
	if ($point)
	{
		isnt($ret, 0, "the server crashes $where");
		$node->stop('immediate', fail_ok => 1);
		my $lost =
		  dw_tear($node, $before, only => qr/^pg_tblspc/, unlogged_too => 1);
		cmp_ok($lost->{logged}, '>', 0, '... and pages are torn')
		  if $point =~ /discarded/;
		dw_start_after_crash($node, $lost);
		is( sql("SELECT datconnlimit FROM pg_database WHERE datname = '$name'"
			),
			-2,
			'the database is invalid');
		is(sql("DROP DATABASE $name"), '', '... and can be dropped');
	}
	else
	{
		is($ret, 0, 'a database is dropped');
		is(sql('CHECKPOINT'), '', 'then a checkpoint succeeds');
		sql(q{SELECT points_clear('doublewrite-home-write')});
	}
}
$node->stop;

# --- Relations filled without WAL, for which the log has to forget pages from
#     before a truncation, do not need pages of others at home

$node->append_conf(
	'postgresql.conf', q{
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
});
$node->start;
sql(q{CREATE TABLE b (id int, v int) TABLESPACE bad; INSERT INTO b VALUES (1, 0)}
);
sql('CHECKPOINT');
sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
);
sql(q{UPDATE b SET v = 1; SELECT dw_evict('b')});
like(
	sql('SELECT dw_drain()'),
	qr/^error: .*could not write blocks/,
	'a page has failed');
my $cycles = sql('SELECT cycles_done FROM dw_state()');
is( sql(q{BEGIN;
	CREATE TABLE loaded AS SELECT i AS id, repeat('x', 1000) AS filler FROM generate_series(1, 300) i;
	SELECT dw_evict('loaded') > 0;
	TRUNCATE loaded;
	INSERT INTO loaded SELECT i, repeat('y', 1000) FROM generate_series(1, 30) i;
	COMMIT}),
	't',
	'a load without WAL succeeds');
cmp_ok(sql('SELECT cycles_done FROM dw_state()'),
	'>', $cycles, '... and has made the log forget');
like(
	sql('SELECT dw_drain()'),
	qr/^error: .*could not write blocks/,
	'... though a page still fails');
$node->stop('immediate');
dw_start_after_crash($node);
is(sql('SELECT count(*), min(filler) = max(filler) FROM loaded'),
	'30|t', 'what was loaded is there');
is(sql('SELECT v FROM b'), 1, '... and so is what could not be written');
is(sql('CHECKPOINT'), '', 'then a checkpoint succeeds');
$node->stop;

# --- A sync cycle that such a load has run may have come while an error had left
#     a batch, and has freed nothing: another one has to

$node = dw_quiet_node(
	'left_batch', conf => q{
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
});
{
	my $space = PostgreSQL::Test::Utils::tempdir();
	my $point = 'doublewrite-sync-cycle';

	sql("CREATE TABLESPACE bad LOCATION '$space'");
	sql(q{CREATE TABLE b (id int, v int) TABLESPACE bad; INSERT INTO b VALUES (1, 0);
		CREATE TABLE other (id int, v int); INSERT INTO other VALUES (1, 0);
		CHECKPOINT});
	sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
	);
	sql(q{UPDATE b SET v = 1; SELECT dw_evict('b')});
	like(
		sql('SELECT dw_drain()'),
		qr/^error: .*could not write blocks/,
		'a page has failed');
	my $loader = $node->background_psql('postgres');
	$loader->query_safe(
		q{BEGIN;
		CREATE TABLE loaded AS SELECT i AS id, repeat('x', 1000) AS filler FROM generate_series(1, 300) i;
		SELECT dw_evict('loaded');
		TRUNCATE loaded;
		INSERT INTO loaded SELECT i, repeat('y', 1000) FROM generate_series(1, 30) i}
	);

	# The commit has decided to run a cycle, and waits for its turn.
	sql("SELECT injection_points_attach('$point', 'wait')");
	my $cycle = $node->background_psql('postgres');
	$cycle->query_until(qr/started/,
		"\\echo started\nSELECT dw_sync_cycle();\n");
	$node->wait_for_event('client backend', $point);
	$loader->query_until(qr/started/, "\\echo started\nCOMMIT;\n");
	$node->wait_for_event('client backend', 'DoubleWriteSync');

	# Only now is there a batch that keeps it from logging the failed page anew.
	sql(q{UPDATE other SET v = 1; SELECT dw_evict('other'), points_fail_at('doublewrite-log-write', 'EIO', 1, 2)}
	);
	like(
		sql('SELECT dw_flush_batch()'),
		qr/^error: .*could not write to double-write log/,
		'a batch is left');
	sql(q{SELECT points_clear('doublewrite-home-write')});
	dw_wake($node, $point);
	$loader->query_safe('SELECT 1');
	pass('a load without WAL succeeds');
	$_->quit foreach ($cycle, $loader);
	$node->stop('immediate');
	dw_start_after_crash($node);
	is( sql('SELECT count(*), min(filler), max(filler) FROM loaded'),
		join('|', 30, ('y' x 1000) x 2),
		'what was loaded is there');
	is(sql('SELECT b.v, other.v FROM b, other'),
		'1|1', '... and the others, too');
	$node->stop;
}

# A standby in full_pages need not write at a stop what it has not written until then.
{
	my $primary = dw_quiet_node(
		'full',
		mode => 'full_pages',
		init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('full_standby');

	$primary->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS i');
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('postgres', 'UPDATE t SET i = i + 1');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql(
		'postgres', q{
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000);
		SELECT dw_evict('t')});
	my $begun = -s $standby->logfile;
	$standby->stop('fast', fail_ok => 1);
	unlike(slurp_file($standby->logfile, $begun),
		qr/abnormal|ERROR/, 'a standby with an unwritable file stops');
	is( dw_control($standby, 'Database cluster state'),
		'shut down in recovery',
		'... as stock does');
	$standby->start;
	$primary->wait_for_replay_catchup($standby);
	is($standby->safe_psql('postgres', 'SELECT sum(i) FROM t'),
		501500, '... and has lost nothing');
	$standby->stop;
	$primary->stop;
}

done_testing();
