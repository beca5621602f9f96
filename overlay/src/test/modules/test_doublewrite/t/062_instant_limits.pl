
# Copyright (c) 2025, PostgreSQL Global Development Group

# What bounds instant recovery: a worker that dies each time does not have recovery begin
# again for ever; WAL is kept while pages are pending, so redo and the checkpoint
# after it hurry when there is much of it; pages that have failed are told of, and
# not in an endless series of checkpoints that fail.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

# Workers redo what is asked for, and nothing else.
my $POINT = 'instant-recovery-only-demands';
my $complete = qr/redo is complete/;
my $failed = qr/ERROR:  1 page could not be redone after the last crash/;
my $MAX_WAL = 4;

# Nothing is in the double-write log, from which pages would be restored.
my $node = dw_quiet_node(
	'limits',
	init => { extra => ['--wal-segsize=1'] },
	conf => qq{
instant_recovery = on
recovery_workers = 2
max_wal_size = 1GB
min_wal_size = 2MB
restart_after_crash = on
checkpoint_completion_target = 0.5
});
$node->safe_psql('postgres',
	'CREATE EXTENSION IF NOT EXISTS injection_points; CREATE EXTENSION pg_doublewrite_stats'
);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE many (i int, f text) WITH (fillfactor = 50);
	INSERT INTO many SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;
	CREATE TABLE bad AS SELECT g AS i, repeat('x', 100) AS f FROM generate_series(1, 40) g;
});
my ($number, $path) = split(
	/\|/,
	$node->safe_psql(
		'postgres',
		q{SELECT pg_relation_filenode('bad'), pg_relation_filepath('bad')}));

sub set
{
	my ($setting, $value) = @_;

	$node->append_conf('postgresql.conf', "$setting = '$value'");
	return;
}

# Pages of both tables have records when the server crashes.
sub work_and_crash
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', "UPDATE $_ SET i = i + 1")
	  foreach ('many', 'bad');
	$node->stop('immediate');
	return;
}

sub start
{
	my ($test_name) = @_;
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), $test_name) or BAIL_OUT('no start');
	return $offset;
}

sub let_go
{
	my ($offset) = @_;

	set('test_points.fail_at', '');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
	$node->wait_for_log($complete, $offset);
	return;
}

# How often the log says so from there on
sub count_in_log
{
	my ($offset, $pattern) = @_;

	return scalar(() = slurp_file($node->logfile, $offset) =~ /$pattern/g);
}

sub write_wal
{
	my ($megabytes) = @_;

	$node->safe_psql('postgres',
		"SELECT count(pg_logical_emit_message(false, 'x', repeat('y', 100000))) FROM generate_series(1, 10 * $megabytes)"
	);
	return;
}

my $all = $node->safe_psql('postgres',
	'SELECT (SELECT count(*) FROM many), (SELECT count(*) FROM bad)');

sub is_complete
{
	my ($test_name) = @_;

	is( $node->safe_psql(
			'postgres',
			'SELECT (SELECT count(*) FROM many), (SELECT count(*) FROM bad)'),
		$all,
		$test_name);
	return;
}

# --- A worker dies at the same page each time, when a session needs it

my $opening = qr/opening before redo/;
my $killed =
  qr/background worker "recovery worker" \(PID \d+\) was terminated by signal 9/;
my $ended = qr/shutting down due to startup process failure/;

work_and_crash();
set('test_doublewrite.spoil_redo_of', $number);
set('test_doublewrite.spoil_redo_kills', 'on');
set('test_points.fail_at', "$POINT:EIO, test-doublewrite-redo:EIO");
my $offset = start('server starts with a page that no worker survives');
my $openings = 0;
while (1)
{
	watchdog_until(
		'the server has come back, or ended',
		sub {
			count_in_log($offset, $opening) > $openings
			  || count_in_log($offset, $ended)
			  || count_in_log($offset, qr/redo starts at/) > 6;
		});
	last unless count_in_log($offset, $opening) > $openings;
	$openings++;
	watchdog_until(
		'a worker has died',
		sub {
			dw_psql_until_crash($node, 'SELECT * FROM bad');
			count_in_log($offset, $killed) >= $openings;
		});
}
is($openings, 3, 'clients get in after three crashes');
is(count_in_log($offset, qr/redo starts at/),
	4, '... and the fourth time all is redone before');
is(count_in_log($offset, $ended),
	1, '... where the death of a worker is the end of the server')
  or BAIL_OUT('recovery begins again and again');
dw_wait_for_exit($node);

# The same in a round before clients get in, in which workers redo all pages.
set('instant_recovery', 'off');
set('test_points.fail_at',
	'instant-recovery-workers-only:EIO, test-doublewrite-redo:EIO');
$offset = -s $node->logfile;
$node->start(fail_ok => 1);
dw_wait_for_exit($node);
is(count_in_log($offset, qr/redo starts at/),
	1, 'a worker dies in a round: the server ends at once');
like(slurp_file($node->logfile, $offset),
	qr/$killed.*$ended/s, '... as if the startup process had died');

set('test_points.fail_at', '');
set('test_doublewrite.spoil_redo_of', 0);
set('instant_recovery', 'on');
start('server starts when redo succeeds');
is_complete('... and nothing is lost');

# How many pages workers announce ahead
sub ahead
{
	return $node->safe_psql('postgres',
		"SELECT dw_figure('instant_pages_ahead')");
}

# Sessions need pages that are no neighbors.
sub need_pages
{
	$node->safe_psql('postgres',
		"SELECT i FROM many WHERE ctid = '(" . 4 * $_ . ",1)'")
	  foreach @_;
	return;
}

# --- WAL that is kept while pages are pending

work_and_crash();
set('test_points.fail_at', "$POINT:EIO");
$offset = start('server starts with pages pending');
write_wal(2 * $MAX_WAL);
my $ahead = ahead();
need_pages(1 .. 4);
is(ahead(), $ahead, 'sessions have the storage before redo');
let_go($offset);
$node->wait_for_log(qr/checkpoint complete/, $offset);
like(
	slurp_file($node->logfile, $offset),
	qr/checkpoint starting: force\n/,
	'the checkpoint after redo is spread');

work_and_crash();
set('max_wal_size', "${MAX_WAL}MB");
set('test_points.fail_at', "$POINT:EIO");
$offset = start('server starts with pages pending');
write_wal(2 * $MAX_WAL);
$ahead = ahead();
need_pages(1 .. 4);
cmp_ok(ahead(), '>', $ahead, '... but not if much WAL is kept');
let_go($offset);
$node->wait_for_log(qr/checkpoint complete/, $offset);
like(
	slurp_file($node->logfile, $offset),
	qr/checkpoint starting: immediate force/,
	'... and it is not if there is more WAL than max_wal_size');

# --- A worker that redoes a page announces others, of a file that cannot be opened

work_and_crash();
set('test_points.fail_at', "$POINT:EIO");
$offset = start('server starts with pages pending');
my $unreadable = $node->data_dir . '/'
  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('many')});
chmod(0, $unreadable) == 1
  or die "could not change permissions of \"$unreadable\": $!";
is($node->safe_psql('postgres', 'SELECT count(*) FROM bad'),
	'40', 'pages of another file are redone');
unlike(
	slurp_file($node->logfile, $offset),
	qr/PANIC|Permission denied/,
	'... and no worker fails');
chmod(0600, $unreadable) == 1
  or die "could not change permissions of \"$unreadable\": $!";
let_go($offset);
is_complete('... and all is complete when it can be opened');

# --- A page has failed

set('checkpoint_timeout', '1h');
work_and_crash();
my $saved = read_block($node, $path, 0);
my $damaged = $saved;
substr($damaged, 5000, 100) = 'z' x 100;
write_block($node, $path, 0, $damaged);
$offset = start('server starts with a page that cannot be redone');
my $begun = time;
my ($status) = $node->psql('postgres', 'CHECKPOINT');
isnt($status, 0, 'a checkpoint that a session asks for fails');
my $from = -s $node->logfile;
write_wal(2 * $MAX_WAL);
# after an error the checkpointer waits for a second
$node->safe_psql('postgres', 'SELECT pg_sleep(3)');
SKIP:
{
	skip('too slow') if time - $begun >= 14;
	is(count_in_log($from, $failed),
		0, '... and none is tried for WAL at once');
}

# The engine counts seconds, and no two attempts are in one, or in neighboring ones.
set('log_line_prefix', '%n ');
set('checkpoint_timeout', '5s');
my $spread = -s $node->logfile;
$node->reload;
$node->wait_for_log(qr/\d+\.\d+ $failed.*\d+\.\d+ $failed.*\d+\.\d+ $failed/s,
	$spread);
my @times = slurp_file($node->logfile) =~ /(\d+)\.\d+ $failed/g;
cmp_ok($times[$_] - $times[ $_ - 1 ], '>=', 4, 'one is tried after a while')
  foreach (1 .. $#times);
like(
	slurp_file($node->logfile, $from),
	qr/There can be no checkpoint, and (?:[789]|\d\d+) MB of WAL are kept/,
	'... and its error says how much WAL is kept');

# What is none of a page can be read.
is( $node->psql(
		'postgres',
		"SELECT pg_read_file('$_') IS NOT NULL, length(pg_read_binary_file('global/pg_control')) > 0"
	),
	0,
	"file \"$_\" can be read") foreach ('base/1/PG_VERSION', 'PG_VERSION');
isnt($node->psql('postgres', "SELECT length(pg_read_binary_file('$path'))"),
	0, '... but not that of a relation');

# Workers that are asked to end go on: they try the page again though no session needs it.
$node->safe_psql(
	'postgres', q{
	SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'recovery worker'}
);
write_block($node, $path, 0, $saved);
$node->wait_for_log($complete, $offset);
unlike(
	slurp_file($node->logfile, $offset),
	qr/shutdown waits for redo/,
	'workers that are terminated say nothing of a stop');
$node->wait_for_log(qr/checkpoint complete/, $offset);
is_complete('... and all is complete, with a checkpoint');
dw_check_stopped($node);

done_testing();
