
# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo of a standby meets pages that have rotted, and the primary replaces them.  If it
# cannot, all goes on without them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

our $BLOCK = 7;
my $ANSWERED = 'page-fetch-answered';
my $UNREACHABLE = 'host=/nonexistent';
my ($file, $offset);
my $LOOKED = 'read-page-looked';
my $READ = 'aio-process-completion-before-shared';

my $primary = dw_new_node(
	'primary',
	init => { allows_streaming => 1 },
	conf => q{
wal_keep_size = 512MB
shared_buffers = 16MB
allow_in_place_tablespaces = on
log_replication_commands = on
});
$primary->start;
dw_extensions($primary);
$primary->safe_psql('postgres', 'CREATE DATABASE cut');
$primary->safe_psql('cut',
	'CREATE TABLE t AS SELECT generate_series(1, 100) AS i');
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION IF NOT EXISTS amcheck;
	CREATE EXTENSION IF NOT EXISTS pg_buffercache;
	CREATE EXTENSION IF NOT EXISTS pg_doublewrite_stats;
	CREATE EXTENSION IF NOT EXISTS pg_visibility;
	CREATE TABLE t (i int PRIMARY KEY, v int, f text) WITH (fillfactor = 50);
	INSERT INTO t SELECT g, 0, repeat('x', 100) FROM generate_series(1, 10000) g;
	CREATE TABLE u (LIKE t);
	INSERT INTO u SELECT * FROM t;
	CHECKPOINT;
});
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	"wal_retrieve_retry_interval = 100ms\n");
my $primary_conninfo = $primary->connstr . ' application_name=standby';
$standby->start;

# A page of this table, or of another fork of it, rots while the standby is stopped.  Returns what
# it was.
sub rot
{
	my ($table, $database, $fork) = @_;

	$file = $primary->safe_psql($database // 'postgres',
		"SELECT pg_relation_filepath('$table')")
	  . ($fork // '');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$standby->stop;
	my $good = read_block($standby, $file, $BLOCK * BLCKSZ);
	my $bad = $good;
	substr($bad, 4000, 300) = 'rot' x 100;
	write_block($standby, $file, $BLOCK * BLCKSZ, $bad);
	$standby->start;
	$offset = -s $standby->logfile;
	return $good;
}

# The standby crashes.  Redo meets zeroes in the page, then what is done here, and is not
# consistent until then.  With workers it is done page by page, in rounds.
sub zeroes_before_consistency
{
	my ($workers, $code) = @_;

	my $good = rot('t');
	$standby->stop;
	write_block($standby, $file, $BLOCK * BLCKSZ, $good);
	# no copy of the page in the log
	$standby->append_conf('postgresql.conf',
		"io_torn_pages_protection = off\nrecovery_workers = $workers\ninstant_recovery_memory = 64kB\n"
	);
	$standby->start;
	$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
	$code->();
	$primary->safe_psql('postgres', 'UPDATE u SET v = v + 1');
	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres',
		q{SELECT pg_buffercache_evict_relation('u')});
	$standby->stop('immediate');
	write_block($standby, $file, $BLOCK * BLCKSZ, "\0" x BLCKSZ);
	$offset = -s $standby->logfile;
	$standby->start;
	$standby->append_conf('postgresql.conf',
		"io_torn_pages_protection = double_writes\n");
	return;
}

# Have WAL arrive, but not be replayed, while the primary does something.
sub received_and_not_replayed
{
	my ($sql, $database) = @_;

	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$standby->poll_query_until('postgres',
		q{SELECT pg_get_wal_replay_pause_state() = 'paused'})
	  or die 'replay is not paused';
	$primary->safe_psql($database // 'postgres', $sql);
	$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
	return;
}

# The server may end before it has answered.
sub resume
{
	eval { $standby->psql('postgres', 'SELECT pg_wal_replay_resume()') };
	return;
}

sub conninfo_is
{
	my ($conninfo) = @_;

	$standby->safe_psql('postgres',
		"ALTER SYSTEM SET primary_conninfo = '$conninfo'; SELECT pg_reload_conf()"
	);
	return;
}

sub says
{
	my ($pattern, $name) = @_;

	ok($standby->wait_for_log($pattern, $offset), $name);
	return;
}

# The page fetcher is ended; then there is another one.
sub gives_up_asking
{
	my ($name) = @_;

	says(qr/terminating background worker "page fetcher"/, $name);
	$offset = -s $standby->logfile;
	return;
}

# The startup process has an answer, and does not use it yet.
sub hold_answer
{
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('$ANSWERED', 'wait')");
	resume();
	$standby->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = '$ANSWERED'"
	) or die 'no answer';
	return;
}

sub same
{
	my ($name) = @_;
	my $sums = 'SELECT count(*), sum(v) FROM t';

	$primary->wait_for_catchup($standby);
	$standby->poll_query_until('postgres',
		'SELECT pages_awaited = 0 FROM pg_fetched_pages')
	  or die 'a page is awaited';
	is( $standby->safe_psql('postgres', $sums),
		$primary->safe_psql('postgres', $sums),
		"$name: rows");
	is( $standby->safe_psql(
			'postgres', q{SELECT count(*) FROM verify_heapam('t')}),
		'0',
		"$name: heap");
	return;
}

sub unreadable
{
	my ($name) = @_;
	my (undef, undef, $stderr) =
	  $standby->psql('postgres', 'SELECT sum(v) FROM t');

	like($stderr, qr/invalid page in block $BLOCK/, $name);
	return;
}

# Sums of all rows that are not in the page
sub other_rows
{
	my ($node) = @_;
	my $next = $BLOCK + 1;

	return $node->safe_psql(
		'postgres', qq{
		SET enable_seqscan = off;
		SELECT count(*), sum(v) FROM (
			SELECT v FROM t WHERE ctid < '($BLOCK,0)' UNION ALL
			SELECT v FROM t WHERE ctid >= '($next,0)') AS others});
}

# A page has rotted on another standby.  That is stopped at the end.
sub with_another_standby
{
	my ($name, $code) = @_;
	my $kept = $standby;

	$standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf',
		"wal_retrieve_retry_interval = 100ms\ninstant_recovery = off\nio_method = sync\n"
	);
	$standby->start;
	$code->(rot('t'));
	$standby->stop;
	$standby = $kept;
	return;
}

# Redo passes over the page, and over no other.  Returns what other rows are then.
sub await_page
{
	my $next = $BLOCK + 1;

	received_and_not_replayed(
		"UPDATE t SET v = v + 1 WHERE ctid >= '($BLOCK,0)' AND ctid < '($next,0)'"
	);
	my $rows = other_rows($primary);
	conninfo_is($UNREACHABLE);
	resume();
	says(qr/could not connect to the primary to fetch a page/,
		'a page is awaited');
	return $rows;
}

sub begin_promotion
{
	system_or_bail(
		'pg_ctl', '--no-wait',
		'--pgdata' => $standby->data_dir,
		'promote');
	return;
}

# The standby is promoted without the page: that is an error, and stays one after a crash,
# and all else is there.
sub is_promoted
{
	my ($rows, $name) = @_;

	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'not promoted';
	my $log = slurp_file($standby->logfile, $offset);
	like(
		$log,
		qr/WARNING: .*before the primary has replaced block $BLOCK of relation "$file"/,
		"$name: says what is lost");
	like(
		$log,
		qr/checkpoint starting: end-of-recovery/,
		"$name: ... makes a full checkpoint");
	unreadable("$name: ... the page is an error");
	is(other_rows($standby), $rows, "$name: ... other rows are right");
	is( $standby->safe_psql(
			'postgres', 'INSERT INTO u VALUES (-1) RETURNING i'),
		'-1',
		"$name: ... rows can be written");
	$standby->stop('immediate');
	$standby->start;
	unreadable("$name: ... the page is an error after a crash");
	is(other_rows($standby), $rows, "$name: ... and others are right");
	return;
}

sub has_ended
{
	watchdog_until('the standby does not end',
		sub { return !-f $standby->data_dir . '/postmaster.pid' });
	$standby->{_pid} = undef;
	return;
}

# --- The primary is there.  So damaged pages are not used, whatever is set for them.

$standby->append_conf('postgresql.conf', "$_ = on\n")
  foreach (qw(zero_damaged_pages ignore_checksum_failure));
rot('t');
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
says(qr/block $BLOCK of relation "$file" was damaged, and has been replaced/,
	'replaced');
same('replaced');
is($standby->safe_psql('postgres', 'SELECT * FROM pg_fetched_pages'),
	'1|0|1', '... and counted');
unlike(
	slurp_file($standby->logfile, $offset),
	qr/zeroing out page|ignoring checksum failure|has failed/,
	'... neither used as it was, nor a reason for a process to fail');
$standby->append_conf('postgresql.conf', "$_ = off\n")
  foreach (qw(zero_damaged_pages ignore_checksum_failure));

# --- The page is nothing but zeroes.

rot('t');
$standby->stop;
write_block($standby, $file, $BLOCK * BLCKSZ, "\0" x BLCKSZ);
$standby->start;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
says(qr/block $BLOCK of relation "$file" was damaged, and has been replaced/,
	'zeroes are replaced');
same('zeroes');

# --- ... and met before consistency.  A copy of the database has them, too, also when it moves.

foreach my $workers (0, 2)
{
	my $way = $workers ? 'in rounds' : 'in order';

	zeroes_before_consistency(
		$workers,
		sub {
			$primary->safe_psql('template1', $_)
			  foreach (
				"CREATE DATABASE zeroes$workers TEMPLATE postgres STRATEGY file_copy",
				"CREATE TABLESPACE moved$workers LOCATION ''",
				"ALTER DATABASE zeroes$workers SET TABLESPACE moved$workers");
		});
	says(
		qr/block $BLOCK of relation "$file" was damaged, and has been replaced/,
		"zeroes before consistency, redo $way, are replaced");
	same("zeroes before consistency, redo $way");
	is( $standby->safe_psql(
			"zeroes$workers", 'SELECT count(*), sum(v) FROM t'),
		$primary->safe_psql(
			"zeroes$workers", 'SELECT count(*), sum(v) FROM t'),
		'... and those of a copy of the database');

	# ... and made anew by WAL since
	zeroes_before_consistency(
		$workers,
		sub {
			my $backup = $primary->background_psql('postgres');
			$backup->query_safe(q{SELECT pg_backup_start('images', true)});
			$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
			$backup->query_safe('SELECT pg_backup_stop(false)');
			$backup->quit;
		});
	same("zeroes made anew, redo $way");
	my $log = slurp_file($standby->logfile, $offset);
	unlike($log, qr/asking the primary/, '... are not replaced');
	($workers ? \&like : \&unlike)->(
		$log,
		qr/ \d+ rounds of redo.*Pages redone: \d+ by the startup process, [1-9]\d* by worker/s,
		"... redo $way");
}

# --- ... and read ahead by a session, which takes them for an empty page

rot('t');
$standby->append_conf('postgresql.conf',
	"max_standby_streaming_delay = -1\n");
$standby->stop;
write_block($standby, $file, $BLOCK * BLCKSZ, "\0" x BLCKSZ);
$standby->start;
received_and_not_replayed('UPDATE t SET v = v + 1');
my $reader = $standby->background_psql('postgres');
$reader->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM t');
$reader->query_safe('FETCH 10 FROM c')
  until $standby->safe_psql(
	'postgres', qq{
		SELECT pinning_backends > 0 FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('t')
			AND relforknumber = 0 AND relblocknumber = $BLOCK}) eq 't';
conninfo_is($UNREACHABLE);
resume();
ok( $standby->poll_query_until(
		'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event = 'BufferPin'"
	),
	'a page of zeroes in a buffer: replay does not go on with it there');
$reader->query_safe('COMMIT');
$reader->quit;
says(qr/could not connect to the primary to fetch a page/,
	'... and waits for the session');
unreadable('... which is the last one that takes it for empty');
conninfo_is($primary_conninfo);
same('a page of zeroes in a buffer');
$standby->append_conf('postgresql.conf',
	"max_standby_streaming_delay = 30s\n");
$standby->reload;

# --- A page of a visibility map.  No primary is needed, and WAL that sets bits is next.

{
	local $BLOCK = 0;

	$primary->safe_psql('postgres', 'VACUUM t');
	rot('t', undef, '_vm');
	received_and_not_replayed(
		q{UPDATE t SET v = v + 1 WHERE i <= 100; VACUUM t});
	conninfo_is($UNREACHABLE);
	resume();
	says(qr/cleared block $BLOCK of relation "$file", which was damaged/,
		'a map is cleared');
	conninfo_is($primary_conninfo);
	same('map');
	is( $standby->safe_psql(
			'postgres', q{SELECT count(*) FROM pg_check_visible('t')}),
		'0',
		'... and has no bit too many');
	unlike(
		slurp_file($standby->logfile, $offset),
		qr/asking the primary/,
		'... without the primary');
}

# --- It is not, and comes back.  Replay goes on meanwhile.

rot('t');
received_and_not_replayed(
	'UPDATE t SET v = v + 1; CREATE TABLE meanwhile (i int)');
conninfo_is($UNREACHABLE);
resume();
says(qr/could not connect to the primary to fetch a page/,
	'the primary is asked');
like(
	slurp_file($standby->logfile, $offset),
	qr/HINT: .*"pg_doublewrite fetch-page --relation=$file --block=$BLOCK"/,
	'... and there is another way');
ok( $standby->poll_query_until(
		'postgres', q{SELECT to_regclass('meanwhile') IS NOT NULL}),
	'... replay goes on');
is( $standby->safe_psql(
		'postgres', 'SELECT pages_awaited FROM pg_fetched_pages'),
	'1',
	'... the page is shown');
unreadable('... sessions get an error');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
ok( $standby->poll_query_until(
		'postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'}),
	'... replay can be paused');
# it logs what is running from time to time
my @idle = dw_stop_processes($primary, 'background writer');
conninfo_is($primary_conninfo);
resume();
same('primary is back, and idle');
kill('CONT', @idle);

# --- The page is from the future, its hints are newer than its last change, and the device
# --- gives back an old version of it now.

my $good = rot('t');
received_and_not_replayed(
	q{
	BEGIN;
	UPDATE t SET v = v + 1;
	CREATE TABLE later AS SELECT generate_series(1, 1000);
	CHECKPOINT;
	COMMIT;
	SELECT count(*) FROM t;
	UPDATE t SET v = v + 1;
	});
hold_answer();
my $redo = dw_control($standby, "Latest checkpoint's REDO location");
write_block($standby, $file, $BLOCK * BLCKSZ, $good);
unreadable('page from the future');
# replay stops before the commit
$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = 1h\n");
$standby->reload;
dw_wake($standby, $ANSWERED);
$standby->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'RecoveryApplyDelay'}
) or die 'replay is not delayed';
unreadable('... until replay has come there');
$standby->safe_psql('postgres', 'CHECKPOINT');
is(dw_control($standby, "Latest checkpoint's REDO location"),
	$redo, '... and no restartpoint until then');
$standby->stop('immediate');
my $bad = $good;
substr($bad, 4000, 300) = 'rot' x 100;
write_block($standby, $file, $BLOCK * BLCKSZ, $bad);
$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = 0\n");
$standby->start;
same('after a crash');

# --- The page is gone.

rot('u');
received_and_not_replayed(
	'UPDATE u SET v = v + 1; DROP TABLE u; CREATE TABLE u (LIKE t)');
resume();
same('dropped');
unlike(
	slurp_file($standby->logfile, $offset),
	qr/has been replaced/,
	'... not replaced');

# --- Its database is copied, and the copy moved, while the device has an old version of the
# --- page.  The primary replaces all three.

my $old = rot('t');
received_and_not_replayed('UPDATE t SET v = v + 1');
$primary->safe_psql('template1',
	"CREATE DATABASE copy TEMPLATE template1 STRATEGY file_copy");
$primary->safe_psql(
	'template1', q{
	SELECT pg_terminate_backend(pid, 180000) FROM pg_stat_activity WHERE datname = 'postgres';
	CREATE DATABASE copied TEMPLATE postgres STRATEGY file_copy;
	CREATE TABLESPACE elsewhere LOCATION '';
	ALTER DATABASE copied SET TABLESPACE elsewhere});
hold_answer();
write_block($standby, $file, $BLOCK * BLCKSZ, $old);
dw_wake($standby, $ANSWERED);
same('its database is copied');
is( $standby->safe_psql('copied', 'SELECT count(*), sum(v) FROM t'),
	$primary->safe_psql('copied', 'SELECT count(*), sum(v) FROM t'),
	'... so is the page of the copy');
is( $standby->safe_psql(
		'postgres', 'SELECT pages_damaged FROM pg_fetched_pages'),
	'3',
	'... of each copy');

# --- The primary does not answer.

rot('t');
$standby->append_conf('postgresql.conf', "wal_receiver_timeout = 0\n");
$standby->reload;
$primary->safe_psql('postgres',
	"SELECT injection_points_attach('$LOOKED', 'wait')");
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
$primary->wait_for_event('walsender', $LOOKED);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
ok( $standby->poll_query_until(
		'postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'}),
	'no answer: replay can be paused');
$offset = -s $standby->logfile;
resume();
ok( $primary->poll_query_until(
		'postgres',
		"SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = '$LOOKED'"
	),
	'... then another attempt is made');
conninfo_is("$primary_conninfo connect_timeout=100");
gives_up_asking('... until there is another primary');
$standby->append_conf('postgresql.conf', "wal_receiver_timeout = 1s\n");
$standby->reload;
gives_up_asking('... or too much time has passed');
$standby->append_conf('postgresql.conf', "wal_receiver_timeout = 60s\n");
$standby->reload;
dw_wake($primary, $LOOKED);
same('answered at last');

# --- Promotion, while the primary cannot be reached, and the device has the page again

with_another_standby(
	'promoted',
	sub {
		my ($good) = @_;

		my $rows = await_page();
		my ($before, $next, $after) = ($BLOCK - 1, $BLOCK + 1, $BLOCK + 2);
		my $whole = read_block($standby, $file, $next * BLCKSZ);
		write_block(
			$standby, $file,
			$next * BLCKSZ,
			('rot' x 2000) . substr($whole, 6000));
		my (undef, undef, $stderr) = $standby->psql(
			'postgres', qq{
			SET zero_damaged_pages = on;
			SELECT count(*) FROM t WHERE ctid >= '($before,0)' AND ctid < '($after,0)'}
		);
		like(
			$stderr,
			qr/ERROR: .*invalid page in block $BLOCK/,
			'... which no session can take for zeroes');
		is( $standby->safe_psql(
				'postgres', qq{
				SET zero_damaged_pages = on;
				SELECT count(*) FROM t WHERE ctid >= '($next,0)' AND ctid < '($after,0)'}
			),
			'0',
			'... as it can a page that was read together with it');
		write_block($standby, $file, $next * BLCKSZ, $whole);
		$standby->safe_psql('postgres',
			q{SELECT pg_buffercache_evict_relation('t')});
		write_block($standby, $file, $BLOCK * BLCKSZ, $good);
		begin_promotion();
		is_promoted($rows, 'promoted');
		my $left = read_block($standby, $file, $BLOCK * BLCKSZ);
		ok($left eq ("\0" x 10) . ("\xff" x (BLCKSZ - 10)),
			'... no half of the page is one');
		command_fails_like(
			[
				'pg_basebackup', '--no-sync', '--checkpoint=fast',
				'--dbname' => $standby->connstr('postgres'),
				'--pgdata' => $standby->backup_dir . '/left'
			],
			qr/checksum error/,
			'... which a base backup reports');
	});

# --- ... and while a session has read the page, and not looked yet whether it may

with_another_standby(
	'read',
	sub {
		my ($good) = @_;

		my $rows = await_page();
		write_block($standby, $file, $BLOCK * BLCKSZ, $good);
		my ($next, $after) = ($BLOCK + 1, $BLOCK + 2);
		my $reader =
		  $standby->background_psql('postgres', on_error_stop => 0);
		my $watcher = $standby->background_psql('postgres');
		my $waiting =
		  "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('$READ', 'AioIoCompletion')";

		# No other process may read from a file while it is attached, so first all that is
		# read of catalogs.
		$watcher->query_safe(
			qq{
			$waiting;
			SELECT injection_points_attach('none', 'wait');
			SELECT injection_points_detach('none');
			SELECT 'injection_points_wakeup(text)'::regprocedure, pg_is_in_recovery()}
		);
		$reader->query_safe(
			qq{
			SELECT sum(v) FROM t WHERE ctid >= '($next,0)' AND ctid < '($after,0)';
			SELECT injection_points_load('$READ');
			SELECT injection_points_set_local();
			SELECT injection_points_attach('$READ', 'wait');
			SELECT injection_points_load('$READ')});
		$reader->query_until(
			qr/reading/, qq{
			\\echo reading
			SELECT sum(v) FROM t WHERE ctid >= '($BLOCK,0)' AND ctid < '($next,0)';
			\\q
		});
		watchdog_until('the page is not read',
			sub { return $watcher->query_safe($waiting) == 1 });
		begin_promotion();
		watchdog_until(
			'promotion does not come to the page',
			sub {
				return $watcher->query_safe($waiting) == 2
				  || $watcher->query_safe('SELECT pg_is_in_recovery()') eq
				  'f';
			});
		$watcher->query_safe("SELECT injection_points_detach('$READ')");
		$watcher->query_safe("SELECT injection_points_wakeup('$READ')");
		$watcher->quit;
		$reader->{run}->finish;
		like(
			$reader->{stderr},
			qr/invalid page in block $BLOCK/,
			'read when promotion takes the page away: an error');
		is_promoted($rows, 'promoted while the page is read');
	});

# --- Promotion, before WAL has come that the page depends on

with_another_standby(
	'early',
	sub {
		received_and_not_replayed('UPDATE t SET v = v + 1');
		my $rows = other_rows($primary);
		my $walreceiver = $standby->safe_psql('postgres',
			q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'}
		);
		kill('STOP', $walreceiver) or die;
		$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
		hold_answer();
		begin_promotion();
		dw_wake($standby, $ANSWERED);
		$standby->poll_query_until('postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'WalReceiverExit'}
		) or die 'the walreceiver is not stopped';
		kill('CONT', $walreceiver);
		is_promoted($rows, 'promoted too early');
	});

# --- The page is met after promotion has been requested.

with_another_standby(
	'late',
	sub {
		received_and_not_replayed('UPDATE t SET v = v + 1');
		my $rows = other_rows($primary);
		begin_promotion();
		is_promoted($rows, 'met late');
	});

# --- A recovery target.  Only a promotion gives the page up.

rot('t');
# a commit flushes what is before it
received_and_not_replayed(
	q{UPDATE t SET v = v + 1; SELECT pg_create_restore_point('target');
	SELECT pg_logical_emit_message(true, 'after', '')});
my $rotten = read_block($standby, $file, $BLOCK * BLCKSZ);
conninfo_is($UNREACHABLE);
$standby->stop;
foreach my $action (qw(pause shutdown))
{
	$standby->append_conf('postgresql.conf',
		"recovery_target_name = target\nrecovery_target_action = $action\n");
	$offset = -s $standby->logfile;
	# it may end before it has been seen to run
	run_log(
		[
			'pg_ctl', '--no-wait',
			'--pgdata' => $standby->data_dir,
			'--log' => $standby->logfile,
			'start'
		]);
	says(qr/recovery stopping at restore point "target"/,
		"recovery target: $action");
	if ($action eq 'pause')
	{
		unreadable('... the page is an error');
		system_or_bail('pg_ctl', '--pgdata' => $standby->data_dir, 'stop');
	}
	has_ended();
	ok(read_block($standby, $file, $BLOCK * BLCKSZ) eq $rotten,
		'... the page is as it was');
}
$standby->append_conf('postgresql.conf', "recovery_target_name = ''\n");
$standby->append_conf('postgresql.auto.conf',
	"primary_conninfo = '$primary_conninfo'\n");
$standby->start;
same('beyond the target');

# --- The primary is damaged, too.  Another page does not have to wait for that one.

rot('t');
{
	local $BLOCK = $BLOCK + 1;
	rot('t');
}
received_and_not_replayed('UPDATE t SET v = v + 1');
$primary->stop;
my $there = read_block($primary, $file, $BLOCK * BLCKSZ);
write_block($primary, $file, $BLOCK * BLCKSZ, $bad);
$primary->start;
resume();
says(
	qr/could not read a page from the primary server: .*invalid page in block $BLOCK/,
	'damaged there, too');
says(
	sprintf(
		'block %d of relation "%s" was damaged, and has been replaced',
		$BLOCK + 1, $file),
	'... another page is replaced');
$primary->stop;
write_block($primary, $file, $BLOCK * BLCKSZ, $there);
$primary->start;
same('not damaged there any more');

# --- It fails for another reason, which may pass.  WAL comes meanwhile, and the walreceiver
# --- is started again.

rot('t');
$primary->safe_psql('postgres',
	"SELECT points_fail_at('$LOOKED', 'EIO', 1, 1000000)");
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
says(qr/could not read a page from the primary server: .*test error/,
	'an error of the primary');
my $receiver =
  q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'};
my $first = $standby->safe_psql('postgres', $receiver);
kill('TERM', $first) or die;
ok( $standby->poll_query_until(
		'postgres',
		"SELECT count(*) = 1 FROM ($receiver) WHERE pid <> $first"),
	'... there is another walreceiver');
$primary->safe_psql('postgres', 'CREATE TABLE received (i int)');
$primary->wait_for_catchup($standby);
is( $standby->safe_psql(
		'postgres',
		q{SELECT to_regclass('received') IS NOT NULL, pages_awaited FROM pg_fetched_pages}
	),
	't|1',
	'... and WAL is replayed');
$primary->safe_psql('postgres', "SELECT points_clear('$LOOKED')");
same('... and the primary is asked again');

# --- A server is asked that is no primary.

my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($primary, 'base', has_streaming => 1);
$new->append_conf('postgresql.conf',
	"primary_conninfo = '" . $primary->connstr . " application_name=new'\n");
$new->start;
rot('t');
received_and_not_replayed('UPDATE t SET v = v + 1');
conninfo_is($new->connstr);
resume();
says(
	qr/could not read a page from the primary server: .*recovery is in progress/,
	'a standby is asked, which may be promoted soon');
conninfo_is($primary_conninfo);
same('the primary is asked');

# --- A page of pg_class is damaged, and another one is missing: that is no database that
# --- a restore has left empty.

{
	my $whole = $standby;
	my $rows =
	  $primary->safe_psql('cut', q{SELECT pg_relation_filepath('t')});

	local $BLOCK = 0;
	$standby = PostgreSQL::Test::Cluster->new('cut');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	rot('pg_class', 'cut');
	$standby->stop;
	truncate($standby->data_dir . "/$rows", 0) or die;
	$standby->start;
	received_and_not_replayed(
		q{
		SET allow_system_table_mods = on;
		UPDATE pg_class SET relname = relname WHERE ctid = (SELECT min(ctid) FROM pg_class);
		UPDATE t SET i = i + 1}, 'cut');
	resume();
	says(qr/asking the primary for block 0 of relation "$file"/,
		'a page of a catalog is damaged');
	says(qr/PANIC: .*WAL contains references to invalid pages/,
		'... and none may be missing');
	has_ended();
	$standby = $whole;
}

# --- The same of a page of pg_class, while one of a table is nothing but zeroes

{
	my $whole = $standby;
	my $rows =
	  $primary->safe_psql('cut', q{SELECT pg_relation_filepath('t')});

	local $BLOCK = 0;
	$standby = PostgreSQL::Test::Cluster->new('zeroes');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	rot('pg_class', 'cut');
	$standby->stop;
	write_block($standby, $rows, 0, "\0" x BLCKSZ);
	$standby->start;
	received_and_not_replayed(
		q{
		UPDATE t SET i = i + 1;
		SET allow_system_table_mods = on;
		UPDATE pg_class SET relname = relname WHERE ctid = (SELECT min(ctid) FROM pg_class)},
		'cut');
	resume();
	says(
		qr/asking the primary for block 0 of relation "$rows"/,
		'zeroes, and a damaged page of a catalog: the primary is asked');
	same('both are replaced');
	is( $standby->safe_psql('cut', 'SELECT sum(i) FROM t'),
		$primary->safe_psql('cut', 'SELECT sum(i) FROM t'),
		'... and rows of that database are right');
	$standby->stop;
	$standby = $whole;
}

# --- Nothing but zeroes in that page of pg_class does not make the database an emptied one.

{
	my $whole = $standby;

	local $BLOCK = 0;
	$standby = PostgreSQL::Test::Cluster->new('catalog');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	rot('pg_class', 'cut');
	$standby->stop;
	write_block($standby, $file, 0, "\0" x BLCKSZ);
	$standby->start;
	$primary->safe_psql(
		'cut', q{
		SET allow_system_table_mods = on;
		UPDATE pg_class SET relname = relname WHERE ctid = (SELECT min(ctid) FROM pg_class)}
	);
	says(qr/block 0 of relation "$file" was damaged, and has been replaced/,
		'zeroes in a page of a catalog are replaced');
	same('zeroes in a page of a catalog');
	is( $standby->safe_psql('cut', 'SELECT sum(i) FROM t'),
		$primary->safe_psql('cut', 'SELECT sum(i) FROM t'),
		'... and rows of that database are right');
	unlike(
		slurp_file($standby->logfile, $offset),
		qr/has empty files/,
		'... which does not count as empty');
	$standby->stop;
	$standby = $whole;
}

# --- The primary is replaced after it has answered, before WAL has come up to there.

rot('t');
received_and_not_replayed('UPDATE t SET v = v + 1');
$primary->wait_for_catchup($new);
$new->stop;
my $walsender = $primary->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_replication WHERE application_name = 'standby'}
);
kill('STOP', $walsender) or die;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 100');
my $lost = $primary->lsn('insert');
hold_answer();
$primary->stop('immediate');
my $asked = -s $new->logfile;
$new->start;
$new->promote;
$primary = $new;
$primary->safe_psql(
	'postgres', q{
	UPDATE t SET v = v + 1;
	SELECT count(pg_logical_emit_message(true, 'more', repeat('x', 8000))) FROM generate_series(1, 2000)}
);
is( $primary->safe_psql(
		'postgres', "SELECT pg_current_wal_insert_lsn() > '$lost'"),
	't',
	'another primary has come further');
conninfo_is($primary->connstr . ' application_name=standby');
dw_wake($standby, $ANSWERED);
same('of another primary');
like(
	slurp_file($primary->logfile, $asked),
	qr/received replication command: READ_PAGE/,
	'... which has been asked, too');

# --- No primary is named any more.

rot('t');
received_and_not_replayed('UPDATE t SET v = v + 1');
conninfo_is($UNREACHABLE);
resume();
says(qr/could not connect to the primary to fetch a page/,
	'waits for a primary');
conninfo_is('');
unreadable('no primary any more: sessions get an error');
conninfo_is($primary->connstr . ' application_name=standby');
same('a primary is named again');

# --- Without a primary, as before

rot('t');
received_and_not_replayed('UPDATE t SET v = v + 1');
conninfo_is('');
resume();
says(qr/FATAL: .*invalid page in block $BLOCK/, 'no primary: recovery ends');
unlike(
	slurp_file($standby->logfile, $offset),
	qr/asking the primary/,
	'... at once');
has_ended();

# --- ... unless the page is given up

$standby->append_conf('postgresql.conf', "$_ = on\n")
  foreach (qw(zero_damaged_pages ignore_invalid_pages));
$standby->start;
$standby->promote;
my $left = $standby->safe_psql('postgres', 'SELECT count(*) FROM t');
cmp_ok($left, '<', 10000, 'page given up: its rows are lost');
cmp_ok($left, '>', 9900, '... and no others');

done_testing();
