# Copyright (c) 2025, PostgreSQL Global Development Group

# Home writes are made by several processes, without the flush lock.  Newer versions of
# pages wait for older ones; a process that must find no home write under way waits for
# all of them.  A write that does not come back blocks the process that makes it, and
# those that need its pages, and no other.

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
use Time::HiRes qw(time);

dw_require_injection_points();

# A row to a page; pages are written home one by one.  Table f is where writes do not
# come back.
my $conf = q{
io_combine_limit = 1
allow_in_place_tablespaces = on
};
my $rows = q{SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 100) i};
my $point = 'doublewrite-home-write';
my $node;

sub sql
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub new_node
{
	my ($name, $more) = @_;

	$node = dw_quiet_node($name, conf => $conf . ($more // ''));
	sql("CREATE TABLESPACE frozen LOCATION ''");
	sql(qq{
		CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
		CREATE TABLE f (LIKE t INCLUDING ALL) TABLESPACE frozen;
		CREATE TABLE f2 (LIKE t INCLUDING ALL) TABLESPACE frozen;
		INSERT INTO t $rows;
		INSERT INTO f $rows;
		INSERT INTO f2 $rows});
	sql('VACUUM t, f, f2');
	sql('CHECKPOINT');
	return;
}

# Lock rows, one on each page, and stage these pages
sub stage
{
	my ($rel, $from, $to) = @_;

	sql(qq{
		DO 'BEGIN PERFORM FROM $rel WHERE id BETWEEN $from AND $to FOR UPDATE; END';
		SELECT dw_evict('$rel')});
	return;
}

sub flush
{
	return sql(q{SELECT dw_flush_batch(false)});
}

sub in_use
{
	return sql('SELECT in_use FROM dw_state()');
}

sub home_pages
{
	return sql('SELECT home_pages FROM dw_stats()');
}

# From now on writes to the tablespace do not come back
sub freeze
{
	sql("SELECT dw_block_homes_in(oid) FROM pg_tablespace WHERE spcname = 'frozen'"
	);
	return;
}

sub thaw
{
	sql("SELECT points_clear('$point')");
	return;
}

# A session that flushes is blocked by the write of a page of f
sub blocked_writer
{
	my ($from, $to) = @_;

	sql(q{SELECT dw_drain()});
	freeze();
	stage('f', $from, $to);
	my $writer = dw_start($node, 'writer', 'SELECT dw_flush_batch(false)');
	ok( $node->poll_query_until(
			'postgres', "SELECT points_hits('$point') > 0"),
		'a write is under way');
	return $writer;
}

# ... for longer than others would wait for it
sub lost_writer
{
	my $writer = blocked_writer(@_);

	sql('SELECT pg_sleep(1.1)');
	return $writer;
}

new_node('main');

# --- No other process needs to wait for it

{
	my $writer = lost_writer(1, 1);

	stage('t', 1, 8);
	my $before = home_pages();
	is(flush(), 't', 'a batch goes home beside it');
	is(home_pages(), $before + 8, '... all of it');
	is(in_use(), 1, 'a page is on its way');

	# a newer version of a page waits for the older one (R4)
	stage('f', 1, 1);
	is(flush(), 'f', 'a newer version of the page is not taken');
	is(in_use(), 2, '... and waits');

	# other runs of the tablespace return to the stage
	stage('f2', 1, 5);
	is(flush(), 't', 'a batch of others in its tablespace is taken');
	is(in_use(), 7, '... and returns to the stage');
	is(home_pages(), $before + 8, '... without having been written');
	is(sql(q{SELECT count(*) FROM f2}), 100, 'its pages can be read');
	my $batches = sql('SELECT batches FROM dw_stats()');
	sql('SELECT dw_flush_batch(true)');
	is(sql('SELECT batches FROM dw_stats()'),
		$batches, '... and are in no batch before a write has come back');

	# a sync cycle ends, and frees nothing
	my $low_water = sql('SELECT low_water_logged FROM dw_state()');
	sql('SELECT dw_sync_cycle()');
	is(sql('SELECT low_water_logged FROM dw_state()'),
		$low_water, 'a sync cycle frees nothing');

	# relations elsewhere, and those whose pages are not being written
	sql(q{ALTER TABLE t SET TABLESPACE pg_default; CREATE TABLE other AS SELECT 1 AS i; DROP TABLE other}
	);
	sql('DROP TABLE f2');
	is(in_use(), 2, 'a relation in the same place can be dropped');

	my $path = sql(q{SELECT pg_relation_filepath('f')});
	my @waiting = map { dw_start($node, $_->[0], $_->[1]) } (
		[ drop => 'DROP TABLE f' ],
		[ drain => 'SELECT dw_drain(false)' ],
		[ reader => "SELECT dw_hold_home_writes('$path')" ]);
	ok(dw_waits_for($node, $_, 'DoubleWriteHome'), "$_ waits")
	  foreach qw(drop drain reader);
	my $checkpoint = dw_start($node, 'checkpoint', 'CHECKPOINT');
	ok( $node->poll_query_until(
			'postgres',
			"SELECT wait_event = 'DoubleWriteHome' FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
		),
		'a checkpoint waits');
	stage('t', 11, 18);
	is(flush(), 't', 'a batch goes home beside all of these');
	sql(q{SELECT dw_hold_home_writes(pg_relation_filepath('t'))});
	pass('another file can be read');
	thaw();
	dw_finish($writer, @waiting, $checkpoint);
	is(in_use(), 0, 'all is home when the write has come back');
}
$node->stop;

# --- Unlogged relations concern no checkpoint, and rely on no log

foreach my $mode (qw(double_writes full_pages off))
{
	new_node("unlogged_$mode", "io_torn_pages_protection = $mode\n");
	sql('ALTER TABLE f SET UNLOGGED');
	sql('VACUUM f');
	sql(q{CHECKPOINT; SELECT dw_evict('f'), dw_drain()});
	my $writer = lost_writer(1, 1);
	stage('t', 1, 8);
	my $low_water = sql('SELECT low_water_logged FROM dw_state()');
	sql('SELECT dw_sync_cycle()');
	cmp_ok(sql('SELECT low_water_logged FROM dw_state()'),
		'>', $low_water, "$mode: a sync cycle frees the log")
	  if $mode eq 'double_writes';
	sql('CHECKPOINT');
	is(in_use(), 1, "$mode: a checkpoint completes beside the write");
	my $before = sql('SELECT redo_lsn FROM pg_control_checkpoint()');
	sql('INSERT INTO t SELECT 101; CHECKPOINT');
	isnt(sql('SELECT redo_lsn FROM pg_control_checkpoint()'),
		$before, '... and the next one');
	my $other = $mode eq 'off' ? 'double_writes' : 'off';
	$node->append_conf('postgresql.conf',
		"io_torn_pages_protection = $other");
	$node->reload;
	ok( $node->poll_query_until(
			'postgres',
			$other eq 'off'
			? 'SELECT NOT armed FROM dw_state()'
			: 'SELECT armed FROM dw_state()'),
		"$mode: a switch to $other is made beside it");
	thaw();
	dw_finish($writer);
	sql('SELECT dw_drain()');
	is(sql('SELECT count(*) FROM f'), 100, '... and nothing is lost');
	$node->stop;
}

# --- A run that a process has claimed, and does not show yet, is under way as well (R10)

{
	my $claimed = 'doublewrite-run-claimed';
	new_node('claimed', "io_torn_pages_protection = off\n");
	sql('SELECT dw_drain()');
	stage('t', 1, 1);
	my $writer = dw_start(
		$node, 'writer',
		qq{SELECT injection_points_set_local(); SELECT injection_points_attach('$claimed', 'wait');
		SELECT dw_flush_batch(false)});
	ok(dw_waits_for($node, 'writer', $claimed), 'a run is claimed');
	$node->append_conf('postgresql.conf',
		'io_torn_pages_protection = double_writes');
	$node->reload;
	ok( $node->poll_query_until(
			'postgres',
			"SELECT wait_event = 'DoubleWriteHome' FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
		),
		'a switch to double_writes waits for it');
	dw_wake($node, $claimed);
	dw_finish($writer);
	ok($node->poll_query_until('postgres', 'SELECT armed FROM dw_state()'),
		'... and goes on when it is home');
	$node->stop;
}

# --- More pages of such a tablespace than the stage takes

{
	new_node('many');
	my $writer = lost_writer(1, 1);
	my $evictor = dw_start($node, 'evictor',
		q{UPDATE f2 SET v = 1; SELECT dw_evict('f2')});
	ok(dw_waits_for($node, 'evictor', 'DoubleWriteHome'),
		'a process that stages too many waits');

	# with the log in use, it does not write past the stage (R2)
	sql('SELECT pg_sleep(2.1)');
	ok(dw_waits_for($node, 'evictor', 'DoubleWriteHome'), '... however long');
	foreach my $turn (1 .. 3)
	{
		sql(q{UPDATE t SET v = v + 1; SELECT dw_evict('t')});
	}
	is(sql('SELECT min(v), max(v) FROM t'),
		'3|3', 'pages of others find room');
	thaw();
	dw_finish($writer, $evictor);
	sql('SELECT dw_drain()');
	is(in_use(), 0, 'all is home when the write has come back');
	sql('SELECT dw_evict_all()');
	is(sql('SELECT min(v), max(v), count(*) FROM f2'),
		'1|1|100', 'nothing is lost');

	# pages that were not tried need no patience when writes come back
	sql('VACUUM f, f2');
	sql('CHECKPOINT');
	$writer = lost_writer(1, 1);
	stage('f2', 1, 5);
	is(flush(), 't', 'a batch of others in the tablespace is taken');
	is(in_use(), 6, '... and returns to the stage');
	thaw();
	dw_finish($writer);
	sql('SELECT dw_sync_cycle()');
	is(sql('SELECT next_batch - low_water_logged FROM dw_state()'),
		1, '... and keep nothing in the log');
	is(flush(), 't', 'the next batch has them when a write has come back');
	is(in_use(), 0, '... and all are home');
	$node->stop;
}

# --- All slots that pages in general can get are being written, and no write comes back

{
	new_node('slots', "double_write_stage_size = 128kB\n");
	sql(q{SELECT dw_drain()});
	freeze();
	stage('f', 1, 15);
	my @writers =
	  map { dw_start($node, "writer $_", 'SELECT dw_flush_batch(false)') }
	  1 .. 15;
	ok( $node->poll_query_until(
			'postgres', "SELECT points_hits('$point') > 0"),
		'writes are under way');
	is(in_use(), 15, '... of all pages that find room');
	sql(q{UPDATE t SET v = v + 1; SELECT dw_evict('t')});
	is(sql('SELECT min(v), max(v), count(*) FROM t'),
		'1|1|100', 'pages of others find room');
	thaw();
	dw_finish(@writers);
	sql('SELECT dw_drain()');
	is(in_use(), 0, 'all is home when writes have come back');
	$node->stop;
}

# --- Many processes write there at once: half of those that can write at all get stuck

{
	new_node('crowd',
		"max_connections = 100\ndouble_write_stage_size = 2MB\n");
	sql('SELECT dw_drain()');
	freeze();
	stage('f', 1, 90);
	my $gate = dw_start($node, 'gate', 'SELECT pg_advisory_lock(1)');
	my $script = PostgreSQL::Test::Utils::tempdir() . '/carry.sql';
	append_to_file($script,
		"SELECT pg_advisory_lock_shared(1);\nSELECT dw_carry_runs();\n");
	my $crowd = IPC::Run::start(
		[
			'pgbench', '-n', '-c', '80',
			'-t', '1', '-f', $script,
			'-h', $node->host, '-p', $node->port,
			'postgres'
		],
		'>',
		\my $out,
		'2>',
		\my $err);
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT count(*) = 80 FROM pg_stat_activity WHERE wait_event = 'advisory'}
		),
		'many processes are about to write');
	my $writer = dw_start($node, 'writer', 'SELECT dw_flush_batch(false)');
	ok( $node->poll_query_until(
			'postgres', "SELECT points_hits('$point') > 0"),
		'one does, and is stuck');
	$gate->query('SELECT pg_advisory_unlock(1)');
	stage('t', 1, 8);
	my $before = home_pages();
	is(flush(), 't', 'a batch of others is taken');
	ok( $node->poll_query_until(
			'postgres',
			"SELECT home_pages >= $before + 8 FROM dw_stats(), dw_carry_runs()"
		),
		'... and goes home');
	cmp_ok(sql("SELECT points_hits('$point')"),
		'<=', 64, 'no more than half of the table is taken');
	thaw();
	dw_finish($writer, $gate);
	ok($crowd->finish, 'all go on when writes come back');
	sql('SELECT dw_drain()');
	is(in_use(), 0, '... and all is home');
	$node->stop;
}

# --- Without a log, pages of other files that keep the stage full concern no other page

foreach my $mode (qw(full_pages off))
{
	my $small =
	  "io_torn_pages_protection = $mode\ndouble_write_stage_size = 128kB\n";

	# a process that writes is stopped: the others must not wait for it
	new_node("stopped_$mode", $small);
	sql("CREATE TABLE o (LIKE t INCLUDING ALL); INSERT INTO o $rows");
	sql(q{CHECKPOINT; SELECT dw_drain()});
	stage('t', 1, 1);
	my $writer = dw_start(
		$node, 'writer',
		qq{SELECT injection_points_set_local(); SELECT injection_points_attach('$point', 'wait');
		SELECT dw_flush_batch(false)});
	ok( dw_waits_for($node, 'writer', $point),
		"$mode: a process that writes is stopped");
	sql('SELECT pg_sleep(1.1)');
	sql(q{UPDATE o SET v = 1 WHERE id <= 40; SELECT dw_evict('o')});
	pass('... and others go on');

	# but a newer version of its page must not overtake it (R4)
	stage('o', 1, 15);
	sql('SELECT pg_sleep(1.1)');
	my $newer = dw_start($node, 'newer',
		q{UPDATE t SET v = 1 WHERE id = 1; SELECT dw_evict('t')});
	ok( dw_waits_for($node, 'newer', 'DoubleWriteHome'),
		'... except with a newer version of its page');
	sql('SELECT pg_sleep(2.1)');
	ok(dw_waits_for($node, 'newer', 'DoubleWriteHome'), '... however long');
	dw_wake($node, $point);
	dw_finish($writer, $newer);
	sql(q{CHECKPOINT; SELECT dw_evict_all()});
	is(sql('SELECT sum(v), count(*) FROM t'),
		'1|100', '... which goes home after it');
	is(sql('SELECT sum(v), count(*) FROM o'),
		'40|100', '... and lose nothing');
	$node->stop;

	# no page of the stage can be written home
	new_node("failed_$mode", $small);
	sql("CREATE TABLE o (LIKE t INCLUDING ALL); INSERT INTO o $rows");
	sql('CREATE UNLOGGED TABLE u AS SELECT 1 AS v');
	sql(q{VACUUM o; CHECKPOINT; SELECT dw_drain()});
	my $file =
	  $node->data_dir . '/' . sql(q{SELECT pg_relation_filepath('o')});
	sql(q{DO 'BEGIN PERFORM FROM o WHERE id = 1 FOR UPDATE; END'});
	rename($file, "$file.away") or die "could not rename: $!";
	sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'frozen'}
	);
	stage('f', 1, 15);
	sql('SELECT dw_flush_batch(false)');
	sql(q{SELECT dw_evict('o'), dw_flush_batch(false)});
	is(in_use(), 16, "$mode: no page of the stage can be written home");
	sql(q{UPDATE t SET v = 1; SELECT dw_evict('t')});
	pass('... and others go home');

	# not before WAL up to their LSN is flushed, as others do, too, now and then (R1)
	my $path = sql(q{SELECT pg_relation_filepath('t')});
	my $session = $node->background_psql('postgres');
	my ($ahead, $covered) = ('f', '');
	$session->query_safe('BEGIN');
	for (my $id = 1; $id <= 10 && $ahead eq 'f'; $id++)
	{
		my ($block) = sql("SELECT ctid FROM t WHERE id = $id") =~ /^\((\d+),/;
		$session->query_safe("SELECT FROM t WHERE id = $id FOR UPDATE");
		my $before = $node->lsn('flush');
		my ($after) =
		  sql(q{SELECT dw_evict('t'); SELECT pg_current_wal_flush_lsn()}) =~
		  /(\S+)$/;
		my $lsn = sprintf(
			'%X/%X',
			unpack(
				'L L', read_block($node, place_of_block($node, $path, $block))
			));
		($ahead, $covered) = split(
			/\|/,
			sql("SELECT '$lsn'::pg_lsn > '$before', '$lsn'::pg_lsn <= '$after'"
			));
	}
	$session->query_safe('COMMIT');
	$session->quit;
	is($ahead, 't', '... with a WAL location not flushed before');
	is($covered, 't', '... which is flushed then');

	# but not while a tool reads the file (R9a)
	my $reading = 'test-doublewrite-holding';
	my $reader = dw_start(
		$node, 'reader',
		qq{SELECT injection_points_set_local(); SELECT injection_points_attach('$reading', 'wait');
		SELECT dw_hold_home_writes('$path')});
	ok(dw_waits_for($node, 'reader', $reading), '... a tool reads a file');
	my $evictor = dw_start($node, 'evictor',
		q{DO 'BEGIN PERFORM FROM t WHERE id <= 3 FOR UPDATE; END'; SELECT dw_evict('t')}
	);
	ok( dw_waits_for($node, 'evictor', 'DoubleWriteFlush'),
		'... to which no page goes home meanwhile');
	dw_wake($node, $reading);
	dw_finish($reader, $evictor);

	# One that fails may be there in part, and is not in the stage: no tool reads it (R9a).
	my $read = "SELECT length(pg_read_binary_file('$path')) > 0";
	sql("SELECT points_fail_at('$point', 'EIO', 1, 1000000)");
	dw_fails(
		$node,
		q{UPDATE u SET v = 2; SELECT dw_evict('u')},
		qr/could not write blocks/,
		'... or fail');
	is(sql($read), 't', '... which does no harm if the page is not logged');
	dw_fails(
		$node,
		q{UPDATE t SET v = 2; SELECT dw_evict('t')},
		qr/could not write blocks/,
		'... or if it is');
	dw_fails(
		$node, $read,
		qr/HINT:  Run CHECKPOINT/,
		'... but no tool reads it');
	sql(q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'frozen'}
	);
	sql(q{UPDATE t SET v = 1; SELECT dw_evict('t')});
	dw_fails(
		$node, $read,
		qr/HINT:  Run CHECKPOINT/,
		'... until a checkpoint has been completed');
	rename("$file.away", $file) or die "could not rename: $!";
	thaw();
	sql(q{CHECKPOINT; SELECT dw_evict_all()});
	is(sql($read), 't', '... which it is when pages can be written');
	is(sql('SELECT sum(v), count(*) FROM t'),
		'100|100', '... and lose nothing');
	is(sql('SELECT count(*) FROM o'), 100, '... nor do these');
	$node->stop;
}

# --- A slow device is not a frozen one

{
	new_node('slow', "double_write_stage_size = 128kB\n");
	my ($low_water, $seconds);

	# a write that takes five is taken for lost
	foreach my $attempt (1 .. 5)
	{
		my $begun = time();
		my $writer = lost_writer(1, 1);
		$low_water = sql('SELECT low_water_logged FROM dw_state()');
		my $cycle = dw_start($node, 'cycle', 'SELECT dw_sync_cycle()');
		ok( dw_waits_for($node, 'cycle', 'DoubleWriteHome'),
			'a sync cycle waits for a write of more than a second');
		sql('SELECT pg_sleep(1.5)');
		thaw();
		dw_finish($writer);
		$seconds = time() - $begun;
		dw_finish($cycle);
		last if $seconds < 5;
	}
  SKIP:
	{
		skip 'this machine is too slow for a write of less than five seconds',
		  1
		  if $seconds >= 5;
		cmp_ok(sql('SELECT low_water_logged FROM dw_state()'),
			'>', $low_water, '... and frees the log');
	}

	sql("SELECT dw_block_homes_in(oid, true) FROM pg_tablespace WHERE spcname = 'frozen'"
	);
	my @sessions = map {
		dw_start(
			$node,
			"session $_",
			"UPDATE f SET v = 1 WHERE id % 3 = $_ AND id <= 9; SELECT dw_evict('f')"
		)
	} 0 .. 2;
	push @sessions,
	  map { dw_start($node, "$_", $_) }
	  ('SELECT dw_drain()', 'SELECT dw_sync_cycle()', 'CHECKPOINT');
	dw_finish(@sessions);
	thaw();
	sql('CHECKPOINT');
	is(in_use(), 0,
		'checkpoints and others complete where each write takes that long');
	is(sql('SELECT sum(v) FROM f'), 9, '... and nothing is lost');
	$node->stop;
}

# --- The background writer is the one that is blocked, in each mode

foreach my $mode (qw(double_writes full_pages off))
{
	new_node(
		"bgwriter_$mode", qq{
io_torn_pages_protection = $mode
double_write_stage_size = 128kB
bgwriter_delay = 10ms
});
	sql('CHECKPOINT');
	freeze();
	sql(q{SELECT injection_points_detach('doublewrite-background-flush')});
	stage('f', 1, 1);
	ok( $node->poll_query_until(
			'postgres', "SELECT points_hits('$point') > 0"),
		"$mode: a write is under way");
	sql('SELECT pg_sleep(1.1)');
	foreach my $turn (1 .. 3)
	{
		sql(q{UPDATE t SET v = v + 1; SELECT dw_evict('t')});
	}
	is(sql('SELECT min(v), max(v), count(*) FROM t'),
		'3|3|100', '... and others go on without the background writer');
	thaw();
	sql('CHECKPOINT');
	sql('SELECT dw_evict_all()');
	is(sql('SELECT min(v), max(v), count(*) FROM t'),
		'3|3|100', '... and lose nothing');
	$node->stop;
}

# --- Errors are values until a process needs the page (R11)

{
	new_node('errors');
	stage('t', 71, 78);
	my $before = home_pages();
	my $log = -s $node->logfile;
	sql("SELECT points_fail_at('$point', 'EIO', 3, 1)");
	is(flush(), 't', 'a batch goes home');
	is(home_pages(), $before + 7, '... except a page');
	is(in_use(), 1, '... which stays');
	ok($node->log_contains('could not write blocks', $log),
		'... and is reported');
	is(flush(), 'f', 'it is not tried again with others');
	sql("SELECT points_clear('$point'); SELECT points_fail_at('$point', 'EIO', 1, 1)"
	);
	my ($ret, undef, $stderr) = $node->psql('postgres', 'SELECT dw_drain()');
	like(
		$stderr,
		qr/could not write blocks/,
		'a process that needs it gets the error');
	sql('SELECT dw_drain()');
	is(in_use(), 0, 'then it is home');
	$node->stop;
}

# --- An error that is thrown ends a home write, or the process: its pages may be torn, and
# --- need a copy

sub thrown
{
	my ($exits) = @_;

	new_node($exits ? 'exits' : 'thrown');
	stage('t', 71, 78);
	sql("SELECT injection_points_attach('$point', 'error')");
	my ($ret, undef, $stderr) = $node->psql('postgres',
		"SET exit_on_error = $exits; SELECT dw_flush_batch(false)");
	like(
		$stderr,
		$exits ? qr/server closed the connection/ : qr/error triggered/,
		'an error ends a home write'
		  . (
			$exits
			? ', and the process, which does not wait for its client'
			: ''));
	sql("SELECT injection_points_detach('$point')");
	is(in_use(), 8, '... whose page stays in the stage');
	sql('SELECT dw_hold_home_writes()');
	my $logged = sql('SELECT logged FROM dw_stats()');
	sql('SELECT dw_sync_cycle()');
	is( sql('SELECT logged FROM dw_stats()'),
		$logged + 1,
		'... and keeps a copy in the log');
	sql('SELECT dw_drain()');
	is(in_use(), 0, 'then all are home');
	is(sql('SELECT count(*) FROM t'), 100, '... and nothing is lost');
	$node->stop;
	return;
}

thrown($_) foreach 0, 1;

# --- A backend that finds the stage full writes as much as it needs

{
	new_node('full', "double_write_stage_size = 128kB\n");
	my $before = home_pages();
	stage('t', 1, 14);
	stage('t', 21, 24);
	my $got = home_pages() - $before;
	cmp_ok($got, '>=', 1,
		'a process that finds the stage full writes itself');
	cmp_ok($got, '<', 14, '... until there is room, not all');
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all is home');
	$node->stop;
}

# --- The time that a session waits for its evictions is its write time

foreach my $mode (qw(double_writes full_pages off))
{
	new_node("time_$mode", "io_torn_pages_protection = $mode\n");
	sql('SET track_io_timing = on; UPDATE t SET v = 1; SELECT dw_evict_all()'
	);
	sql('SELECT pg_stat_reset()');
	my $plan = sql(
		q{
		SET track_io_timing = on;
		UPDATE t SET v = 2;
		EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, FORMAT JSON) SELECT dw_evict('t')});
	like(
		$plan,
		qr/"Shared Written Blocks": [1-9]/,
		"$mode: blocks are written");
	like(
		$plan,
		qr/"Shared I\/O Write Time": (?!0\.000)/,
		'... and that takes time');
	sql('SELECT pg_stat_force_next_flush()');
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT blk_write_time > 0 FROM pg_stat_database WHERE datname = 'postgres'}
		),
		'... in the statistics, too');
	$node->stop;
}

# --- What a sync cycle has called back goes before what has never been in the log

{
	new_node('recalled',
		"double_write_stage_size = 16MB\nshared_buffers = 16MB\n");
	stage('t', 1, 8);
	dw_leave_runs($node);
	stage('t', 9, 100);
	stage('f', 1, 100);
	stage('f2', 1, 100);
	cmp_ok(in_use(), '>=', 300, '... beside more pages than a batch takes');
	sql('SELECT dw_sync_cycle()');
	is(flush(), 't', 'a batch is flushed');
	my $relfilenode = sql(q{SELECT pg_relation_filenode('t')});
	my @copies = grep { m{/$relfilenode/0/[0-7]$} }
	  keys %{ dw_live_copies(dw_read_log($node)) };
	is(scalar @copies, 8, '... which has the pages that were called back');
	$node->stop;
}

# --- Power fails while runs are on their way

foreach my $where (
	[ 'doublewrite-home-sent', 1 ],
	[ 'doublewrite-home-run-written', 3 ],
	[ 'doublewrite-home-written', 1 ])
{
	my ($name, $nth) = @$where;

	note "crash at $name";
	new_node("crash_$name" =~ tr/-/_/r);
	my $old = dw_snapshot($node);
	sql(q{UPDATE t SET v = 1 WHERE id <= 20; SELECT dw_evict('t')});
	sql("SELECT points_crash_at('$name', $nth)");
	my $offset = -s $node->logfile;
	dw_psql_until_crash($node, 'SELECT dw_flush_batch(false)');
	dw_wait_for_crash($node, $offset);
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 10, 'pages are torn that are in the log');
	dw_start_after_crash($node, $torn);
	is(sql(q{SELECT count(*), sum(v) FROM t}), '100|20', 'nothing is lost');
	$node->stop;
}

done_testing();
