
# Copyright (c) 2025, PostgreSQL Global Development Group

# Errors lose nothing (R11): writes that fail, a device that is full, processes
# that die, a server that is stopped at once, one that is started in
# single-user mode.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $node = dw_new_node(
	'main',
	conf => qq{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
});

$node->start;
dw_workload_setup($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int);
	INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i;
	CREATE TABLE large (id int, v int, filler text STORAGE PLAIN);
	INSERT INTO large SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 2000) i;
});
my $path = dw_path_of($node, 't');
my $value = 0;

sub sql
{
	my ($sql) = @_;

	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', $sql, on_error_die => 0);
	return $ret == 0 ? $stdout : "error: $stderr";
}

# --- Single writes that fail

foreach my $failure (
	[
		'log-write',
		'EIO',
		qr/could not write to double-write log segment ".*" at offset \d+: Input\/output error/
	],
	[
		'log-write',
		'ENOSPC',
		qr/could not write to double-write log segment ".*" at offset \d+: No space left on device/
	],
	[ 'log-written', 'EIO', qr/test error/ ],
	[ 'log-synced', 'EIO', qr/test error/ ],
	[ 'home-write', 'EIO', qr/could not write blocks .*Input\/output error/ ],
	[
		'home-write', 'ENOSPC',
		qr/could not write blocks .*No space left on device/
	],
	[ 'home-run-written', 'EIO', qr/test error/ ])
{
	my ($point, $errcode, $message) = @$failure;
	my $offset = -s $node->logfile;

	$value++;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	$node->safe_psql('postgres',
		"UPDATE t SET v = $value; SELECT points_fail_at('doublewrite-$point', '$errcode', 1, 3)"
	);
	sql(q{SELECT dw_evict('t')});

	# the process that flushes gets the error; try until none does any more
	my $errors = 0;
	$errors++ while ($errors < 20 && sql('SELECT dw_drain()') =~ /^error/);
	cmp_ok(sql("SELECT points_hits('doublewrite-$point')"),
		'>=', 3, "$point, $errcode: writes failed");
	cmp_ok($errors, '<', 20, "$point, $errcode: and then did not");
	$node->wait_for_log($message, $offset);
	is(sql('SELECT min(v), max(v) FROM t'),
		"$value|$value", "$point, $errcode: nothing lost");
	is( sql(q{SELECT dw_evict('t') IS NULL; SELECT dw_drain();
			 SELECT min(v), max(v) FROM t}),
		"f\n\n$value|$value",
		"$point, $errcode: nothing lost at home");

	# and if the machine crashes after that
	sql("SELECT points_clear('doublewrite-$point')");
	$node->stop('immediate');
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
	dw_start_after_crash($node, $torn);
	is(sql('SELECT min(v), max(v) FROM t'),
		"$value|$value", "$point, $errcode: nothing lost after a crash");
}

# --- A home that cannot be written holds up the checkpoint, nothing else

$value++;
$node->safe_psql('postgres',
	"UPDATE t SET v = $value; SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)"
);
like(
	sql('CHECKPOINT'),
	qr/^error: .*checkpoint request failed/,
	'checkpoint fails while a page cannot be written');
is(sql('SELECT min(v), max(v) FROM t'), "$value|$value", 'table can be read');
is(sql("CREATE TABLE meanwhile (a int); INSERT INTO meanwhile VALUES (1)"),
	'', 'the server keeps going');
is(sql("SELECT points_clear('doublewrite-home-write')"),
	'', 'device is well again');
is(sql('CHECKPOINT'), '', 'checkpoint succeeds');

# A drain has sent a page home that had failed before, and another process makes the write:
# called with what is to happen to it, and while it happens
sub drain_beside_another
{
	my ($prepare, $meanwhile) = @_;
	my $sent = 'doublewrite-home-sent';

	sql(q{SELECT points_clear('doublewrite-home-write'); SELECT dw_drain()});
	$node->safe_psql(
		'postgres', q{
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000);
		DO 'BEGIN PERFORM FROM t WHERE id = 1 FOR UPDATE; END'});
	sql(q{SELECT dw_evict('t')});
	like(sql('SELECT dw_drain()'), qr/^error/, 'drain fails');

	my $drain = dw_start(
		$node, 'drain',
		qq{SELECT injection_points_set_local(); SELECT injection_points_attach('$sent', 'wait');
		SELECT dw_drain()});
	ok(dw_waits_for($node, 'drain', $sent), 'another one sends the page');
	$node->safe_psql('postgres', $prepare);
	my $other = dw_start($node, 'other', 'SELECT dw_carry_runs()');
	ok( $node->poll_query_until(
			'postgres', q{SELECT points_hits('doublewrite-home-write') > 0}),
		'... which a third process writes');
	dw_wake($node, $sent);
	$meanwhile->();
	dw_finish($other);
	$drain->query('SELECT 1');
	my $stderr = $drain->{stderr};
	$drain->{stderr} = '';
	$drain->quit;
	return $stderr;
}

# Wait for something to be true, or for the drain to be over.
sub until_or_over
{
	my ($condition) = @_;

	return $node->poll_query_until('postgres',
		qq{SELECT $condition OR state = 'idle' AND query ~ 'dw_drain' FROM pg_stat_activity WHERE application_name = 'drain'}
	);
}

my @idle = dw_stop_processes($node, 'background writer');

is( drain_beside_another(
		q{SELECT dw_block_homes_in(oid) FROM pg_tablespace WHERE spcname = 'pg_default'},
		sub {
			until_or_over(q{wait_event = 'DoubleWriteHome'});
			sql(q{SELECT points_clear('doublewrite-home-write')});
		}),
	'',
	'a drain waits for the write of another process, not for an error of the past'
);

is( drain_beside_another(
		q{SELECT points_fail_at('doublewrite-home-write', 'EMFILE', 1, 1)},
		sub { }),
	'',
	'a drain tries a page itself if another process had no descriptors');
sql(q{SELECT points_clear('doublewrite-home-write'); SELECT dw_drain()});
$node->safe_psql(
	'postgres', q{
	SELECT points_fail_at('doublewrite-home-write', 'EMFILE', 1, 1000000);
	DO 'BEGIN PERFORM FROM t WHERE id = 1 FOR UPDATE; END'});
sql(q{SELECT dw_evict('t')});
kill('CONT', @idle);
my $drain = dw_start($node, 'drain', 'SELECT dw_drain()');
until_or_over(q{points_hits('doublewrite-home-write') > 100});
sql(q{SELECT points_clear('doublewrite-home-write')});
$drain->query('SELECT 1');
like(
	$drain->{stderr},
	qr/Too many open files/,
	'... and fails if it has none');
$drain->{stderr} = '';
$drain->quit;
sql(q{SELECT points_clear('doublewrite-home-write'); SELECT dw_drain()});

# the same, but the machine crashes before the device is well
$node->safe_psql('postgres', 'CHECKPOINT');
my $old = dw_snapshot($node);
$value++;
$node->safe_psql('postgres',
	"UPDATE t SET v = $value; SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)"
);
sql(q{SELECT dw_evict('t')});
like(sql('SELECT dw_drain()'), qr/^error/, 'drain fails');
like(sql('SELECT dw_sync_cycle()'), qr/^(?!error)/, 'sync cycle succeeds');
$node->stop('immediate');
my $torn = dw_tear($node, $old);
cmp_ok($torn->{logged}, '>', 0, 'pages that were not written are in the log');
dw_start_after_crash($node, $torn);
is(sql('SELECT min(v), max(v) FROM t'), "$value|$value", 'nothing lost');

# --- No space for the log: pages wait, transactions go on

$node->append_conf('postgresql.conf',
	"shared_buffers = 1MB\nbgwriter_delay = 200ms\nbgwriter_lru_maxpages = 100\n"
	  . "double_write_buffer_size = 16MB");
$node->restart;
my $offset = -s $node->logfile;
$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)}
);
$node->append_conf('postgresql.conf', 'double_write_buffer_size = 1GB');
$node->reload;
dw_workload_start($node);

# The log holds each page once between two cycles, so this takes many pages.
# New ones are not logged unless their table was truncated.  The checkpointer might free
# space just in time.
my @stopped = dw_stop_processes($node, 'checkpointer');
my $cycles = 'SELECT log_full > 2 AND sync_cycles > 2 FROM dw_stats()';
foreach my $v (1 .. 20)
{
	last if sql($cycles) eq 't';
	sql("SELECT dw_remember_truncated('large'); UPDATE large SET v = $v");
}
kill('CONT', @stopped);
is(sql($cycles), 't', 'the log was full several times');
$node->wait_for_log(
	qr/could not extend the double-write log: No space left on device/,
	$offset);
my $rows = $node->safe_psql('postgres',
	"SELECT count(*) FROM history WHERE run = $node->{dw_run}");
dw_wait_for_history($node, $rows + 200);
pass('transactions go on without space for the log');
my $text = slurp_file($node->logfile, $offset);
like($text, qr/HINT:  Free space on the device of "pg_doublewrite"/, 'hint');
unlike($text, qr/ERROR/, 'no transaction failed');

# --- Immediate shutdown under load

$node->stop('immediate');
dw_workload_finish($node);
dw_start_after_crash($node);
dw_check_history($node);

# --- Death of the process that flushes, with the lock held

$node->append_conf('postgresql.conf',
	"restart_after_crash = on\nshared_buffers = 16MB\nbgwriter_lru_maxpages = 0\nbgwriter_delay = 10s\ntest_doublewrite.quiet = on"
);
$node->restart;
dw_hold_flusher($node);
$value++;
$node->safe_psql('postgres', "UPDATE t SET v = $value");
my $flusher = $node->background_psql('postgres', on_error_stop => 0);
$flusher->query_until(qr/started/,
	"\\echo started\nSELECT dw_evict('t'), dw_flush_batch();\n");
dw_wait_until_held($node);
my ($pid, $type) = split(
	/\|/,
	$node->safe_psql(
		'postgres',
		"SELECT pid, backend_type FROM pg_stat_activity WHERE wait_event = '$node->{dw_held}'"
	));
$offset = -s $node->logfile;
kill(9, $pid);
$node->wait_for_log(
	qr/all server processes terminated; reinitializing.*database system is ready to accept connections/s,
	$offset);
$flusher->{run}->finish;
is($type, 'client backend', 'a client was killed while it flushed');
is(sql('SELECT min(v), max(v) FROM t'),
	"$value|$value", 'nothing lost when a flusher dies');

# under load, wherever it happens to be
$node->append_conf('postgresql.conf',
	"shared_buffers = 1MB\ntest_doublewrite.quiet = off");
$node->restart;
foreach my $point ('log-written', 'log-synced', 'home-run-written')
{
	dw_workload_start($node);
	dw_wait_for_history($node, 20);
	$offset = -s $node->logfile;
	# with a new epoch, for which pages are logged once more
	sql("SELECT points_kill_at('doublewrite-$point', 3); SELECT dw_sync_cycle()"
	);
	$node->wait_for_log(
		qr/dies at injection point.*all server processes terminated; reinitializing.*database system is ready to accept connections/s,
		$offset);
	dw_workload_finish($node);
	dw_check_history($node);
}
dw_check_amcheck($node);

# A sync of the log that fails is a PANIC, as any other.
dw_workload_start($node);
dw_wait_for_history($node, 20);
$offset = -s $node->logfile;
sql(q{SELECT points_fail_at('doublewrite-log-sync', 'EIO', 3); SELECT dw_sync_cycle()}
);
$node->wait_for_log(
	qr/PANIC:  could not fsync file "pg_doublewrite.*reinitializing.*database system is ready to accept connections/s,
	$offset);
dw_workload_finish($node);
dw_check_history($node);
$node->append_conf('postgresql.conf', 'restart_after_crash = off');
$node->stop;

# --- Single-user mode on a crashed cluster

$old = dw_snapshot($node);
$node->start;
$offset = -s $node->logfile;
dw_workload_start($node);
sql(q{SELECT points_crash_at('doublewrite-home-run-written', 50)});
dw_wait_for_crash($node, $offset);
dw_workload_finish($node);
$torn = dw_tear($node, $old, unlogged_too => 1);
cmp_ok($torn->{logged}, '>', 0, 'pages were torn');
my $expected = dw_expected_restored($node);

my ($out, $err) = ('', '');
{
	local %ENV = $node->_get_env();

	ok( IPC::Run::run(
			[ 'postgres', '--single', '-D', $node->data_dir, 'postgres' ],
			'<' => \
			  "SELECT 'sum=' || sum(bal) AS result FROM accounts\nUPDATE t SET v = -1\n",
			'>' => \$out,
			'2>' => \$err),
		'single-user server runs');
}
like($out, qr/result = "sum=0"/, 'query gets its answer');
like(
	$err,
	qr/double-write log: examined \d+ pages in \d+ batches, restored $expected,/,
	'pages were restored');
ok(!-e $node->data_dir . '/backup_label', 'no marker left');
$node->start;
is(sql('SELECT min(v), max(v) FROM t'), '-1|-1', 'its work is there');
dw_check($node);

done_testing();
