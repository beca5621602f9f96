# Copyright (c) 2025, PostgreSQL Global Development Group

# After a failed sync, pages can be read that are not on disk.  Recovery writes again
# what it finds to be right, or the next checkpoint would leave nothing to redo them from.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $rows = 5000;
my $message = 'pages that redo leaves alone are written again';

# WAL without images: nothing but restore, which counts for itself, and redo write a page again
my $node = dw_quiet_node('main');
my $note = $node->data_dir . '/pg_doublewrite/sync_failed';

$node->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, filler text);
	INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, $rows) i});

my $pages =
  $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});

# Change all pages after a checkpoint, and bring them home
sub change
{
	$node->safe_psql(
		'postgres', q{
		CHECKPOINT;
		SELECT count(*) FROM (SELECT FROM t FOR UPDATE);
		SELECT dw_evict_all(), dw_drain()});
	return;
}

# Crash as a file cannot be synced
sub fail_sync
{
	my $offset = -s $node->logfile;

	$node->safe_psql('postgres',
		q{SELECT points_fail_at('doublewrite-file-sync', 'EIO')});
	$node->psql('postgres', 'SELECT dw_sync_cycle()');
	$node->wait_for_log(qr/PANIC:  could not fsync file/, $offset);
	dw_wait_for_exit($node);
	return;
}

# Start, and return how many pages have gone home with the checkpoint after recovery
sub written_after_start
{
	my ($what, $noted) = @_;
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), "$what: server starts");
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $log = slurp_file($node->logfile, $offset);
	like($log, qr/redo starts at/, "$what: with recovery");
	if ($noted)
	{
		like($log, qr/$message/, "$what: the failed sync is known");
	}
	else
	{
		unlike($log, qr/$message/, "$what: no sync has failed");
	}
	is( $node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'),
		"$rows|" . $rows * ($rows + 1) / 2,
		"$what: nothing lost");
	return $node->safe_psql('postgres', 'SELECT home_pages FROM dw_stats()');
}

# A crash without a failed sync
change();
$node->stop('immediate');
cmp_ok(written_after_start('crash', 0),
	'<', $pages, 'crash: redo leaves alone what is home');

# A failed sync
change();
fail_sync();
ok(-e $note, 'a failed sync leaves a note');
cmp_ok(written_after_start('failed sync', 1),
	'>=', $pages, 'failed sync: pages are written again');
ok(!-e $note && !-e "$note.old", 'the note goes with the checkpoint');

# A recovery that is cut short does not do
change();
fail_sync();
$node->append_conf('postgresql.conf',
	"test_points.crash_at = 'doublewrite-checkpoint-drained'\n");
my $offset = -s $node->logfile;
dw_poll_start($node);
dw_wait_for_crash($node, $offset);
$node->append_conf('postgresql.conf', "test_points.crash_at = ''\n");
cmp_ok(written_after_start('once more', 1),
	'>=', $pages, 'once more: pages are written again');

# WAL may not have been synced either.  After each crash the start writes its end again before
# redo.  See which segments that are.
sub check_end_of_wal
{
	my ($what, $crash) = @_;

	change();
	my @segments =
	  map { $node->data_dir . '/pg_wal/' . $node->safe_psql('postgres', $_) }
	  ( 'SELECT pg_walfile_name(pg_switch_wal())',
		'CREATE TABLE after_switch (); DROP TABLE after_switch; SELECT pg_walfile_name(pg_current_wal_lsn())'
	  );
	$crash->();
	utime(1, 1, @segments) == @segments or die "could not set times: $!";
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = 'wal-tail-rewritten'\n");
	my $begun = -s $node->logfile;
	dw_poll_start($node);
	dw_wait_for_crash($node, $begun);
	is((stat($segments[0]))[9],
		1, "$what: a segment that was synced is left alone");
	isnt((stat($segments[1]))[9], 1, "$what: the last one is written again");
	$node->append_conf('postgresql.conf', "test_points.crash_at = ''\n");
	return;
}

check_end_of_wal('WAL', \&fail_sync);
ok(dw_poll_start($node), 'WAL: server starts');

# A start after a crash syncs what is there, and goes on if that fails
change();
$node->stop('immediate');
$node->append_conf('postgresql.conf',
	"recovery_init_sync_method = fsync\ntest_points.fail_at = 'data-directory-sync:EIO'\n"
);
cmp_ok(written_after_start('sync at the start', 1),
	'>=', $pages, 'sync at the start: pages are written again');

# ... with pg_wal among it, and clients wait for the checkpoint
$node->append_conf('postgresql.conf',
	"test_points.fail_at = 'data-directory-sync:EIO:1:1000000'\n");
$node->stop('immediate');
my $begun = -s $node->logfile;
ok(dw_poll_start($node), 'sync of pg_wal at the start: server starts');
ok($node->log_contains(qr/checkpoint starting: end-of-recovery/, $begun),
	'sync of pg_wal at the start: who comes first');
$node->append_conf('postgresql.conf', "test_points.fail_at = ''\n");

# A sync that fails during that checkpoint is for the next recovery
change();
fail_sync();
$node->append_conf('postgresql.conf',
	"test_points.pause_at = 'doublewrite-checkpoint-drained'\n");
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'a second failure: server starts');
$node->wait_for_log(
	qr/paused at injection point "doublewrite-checkpoint-drained"/, $offset);
ok(-e "$note.old", 'a second failure: the note of the first is still there');
append_to_file($note, '');
append_to_file($node->data_dir . '/test_points.resume', '');
$node->safe_psql('postgres', 'CHECKPOINT');
ok(-e $note && !-e "$note.old", 'a second failure: its note stays');
$node->append_conf('postgresql.conf', "test_points.pause_at = ''\n");
change();
$node->stop('immediate');
cmp_ok(written_after_start('a second failure', 1),
	'>=', $pages, 'a second failure: pages are written again');

# While a process is dying, others may sync what it could not
foreach my $case (
	[
		'checkpoint',
		q{SELECT points_fail_at('doublewrite-file-sync', 'EIO'); SELECT dw_sync_cycle()},
		'CHECKPOINT'
	],
	[ 'sync cycle', 'SELECT dw_panic()', 'SELECT dw_sync_cycle()' ])
{
	my ($what, $dying, $meanwhile) = @$case;

	change();
	$node->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-panic-noted', 'wait')});
	my $session = dw_start($node, $what, $dying);
	$node->wait_for_event('client backend', 'doublewrite-panic-noted');
	$node->safe_psql('postgres',
		q{SELECT injection_points_detach('doublewrite-panic-noted')});
	$offset = -s $node->logfile;
	my ($done) = $node->psql('postgres', $meanwhile);
	isnt($done, 0, "a $what meanwhile: does not complete");

	if ($done == 0)
	{
		$node->stop('immediate');
	}
	else
	{
		dw_wait_for_exit($node);
	}
	like(
		slurp_file($node->logfile, $offset),
		qr/PANIC:  could not rely on files being synced/,
		"a $what meanwhile: says why");
	$session->{run}->finish;
	cmp_ok(written_after_start("a $what meanwhile", 1),
		'>=', $pages, "a $what meanwhile: pages are written again");
}

# With data_sync_retry what failed is believed when it succeeds
$node->append_conf('postgresql.conf', 'data_sync_retry = on');
$node->restart;
change();
$node->safe_psql('postgres',
	q{SELECT points_fail_at('doublewrite-file-sync', 'EIO')});
my ($ret) = $node->psql('postgres', 'SELECT dw_sync_cycle()');
isnt($ret, 0, 'data_sync_retry: a failed sync is an error');
ok(!-e $note, 'data_sync_retry: and no more');
$node->stop;

# If it cannot be written again, clients wait for the checkpoint, as behind it that WAL is not
# needed.
$node->append_conf('postgresql.conf',
	"data_sync_retry = off\nio_torn_pages_protection = 'full_pages'\n");
$node->start;
check_end_of_wal('full_pages', sub { $node->stop('immediate') });
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'recovery cut short: server starts');
ok($node->log_contains(qr/checkpoint starting: end-of-recovery/, $offset),
	'recovery cut short: who comes first');
change();
$node->stop('immediate');

foreach my $fails (0, 1)
{
	my $what =
	  $fails ? 'WAL that cannot be written again' : 'WAL written again';

	$node->append_conf('postgresql.conf',
		'test_points.fail_at = '
		  . ($fails ? "'wal-tail-write:EIO'\n" : "''\n"));
	$offset = -s $node->logfile;
	ok(dw_poll_start($node), "$what: server starts");
	my $log = slurp_file($node->logfile, $offset);
	is($log =~ /could not write file "pg_wal.*" again/ ? 1 : 0,
		$fails, "$what: what the log says");
	is($log =~ /checkpoint starting: end-of-recovery/ ? 1 : 0,
		$fails, "$what: who comes first");
	change();
	$node->stop('immediate');
}

# That checkpoint is part of recovery: if the server crashes meanwhile, they wait again.
$node->append_conf('postgresql.conf',
	"test_points.crash_at = 'doublewrite-checkpoint-drained'\n");
$offset = -s $node->logfile;
dw_poll_start($node);
dw_wait_for_crash($node, $offset);
$node->append_conf('postgresql.conf',
	"test_points.crash_at = ''\ntest_points.fail_at = ''\n");
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'checkpoint cut short: server starts');
ok($node->log_contains(qr/checkpoint starting: end-of-recovery/, $offset),
	'checkpoint cut short: who comes first');

# The same where pages are redone one by one.  What is home the log has not any more.
$node = dw_quiet_node(
	'instant', conf => q{
instant_recovery = on
recovery_workers = 2
});
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, filler text);
	INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, $rows) i});

foreach my $panics (0, 1)
{
	my $what = $panics ? 'PANIC, page by page' : 'crash, page by page';

	change();
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	if ($panics)
	{
		$node->psql('postgres', 'SELECT dw_panic()');
		dw_wait_for_exit($node);
	}
	else
	{
		$node->stop('immediate');
	}
	$offset = -s $node->logfile;
	my $written = written_after_start($what, $panics);
	ok( $node->log_contains(
			qr/opening before redo: \d+ pages are pending/, $offset),
		"$what: clients get in before");
	cmp_ok($written, $panics ? '>=' : '<', $pages,
			"$what: pages that redo leaves alone are "
		  . ($panics ? '' : 'not ')
		  . 'written again');
}
$node->stop;

# A standby knows how far what it has written reaches, and forgets behind that
{
	my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	my $seen = $standby->data_dir . '/pg_doublewrite/sync_failed.old';

	$primary->safe_psql(
		'postgres', qq{
		CREATE TABLE t (id int, filler text);
		INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, $rows) i});
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;

	# Let a sync fail on the standby, with pages home that no restartpoint is behind
	my $fail = sub {
		my $begun = -s $standby->logfile;

		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->safe_psql('postgres',
			q{SELECT count(*) FROM (SELECT FROM t FOR UPDATE)});
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', q{SELECT dw_evict_all(), dw_drain()});
		$standby->safe_psql('postgres',
			q{SELECT points_fail_at('doublewrite-file-sync', 'EIO')});
		$standby->psql('postgres', 'SELECT dw_sync_cycle()');
		$standby->wait_for_log(qr/PANIC:  could not fsync file/, $begun);
		dw_wait_for_exit($standby);
		ok(dw_poll_start($standby), 'standby: starts');
		$primary->wait_for_replay_catchup($standby);
		ok( $standby->log_contains($message, $begun),
			'standby: the failed sync is known');
	};
	my $restartpoint = sub {
		my $begun = -s $standby->logfile;

		$standby->safe_psql('postgres', 'CHECKPOINT');
		ok($standby->log_contains(qr/restartpoint complete/, $begun),
			'standby: restartpoint');
	};

	$fail->();
	$restartpoint->();
	ok( -e $seen,
		'standby: a restartpoint before what has been written leaves the note'
	);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$restartpoint->();
	ok(!-e $seen, 'standby: one behind that does not');
	cmp_ok(
		$standby->safe_psql('postgres', 'SELECT home_pages FROM dw_stats()'),
		'>=', $pages, 'standby: pages are written again');

	# A note that was copied along with a backup says nothing of its files
	my $copy = PostgreSQL::Test::Cluster->new('copy');
	my $copied = $copy->data_dir . '/pg_doublewrite/sync_failed';

	$copy->init_from_backup($primary, 'b', has_streaming => 1);
	mkdir($copy->data_dir . '/pg_doublewrite', 0700);
	append_to_file($copied, '');
	append_to_file("$copied.old", '');
	$copy->start;
	ok(!$copy->log_contains($message), 'backup: no sync has failed');
	ok(!-e $copied && !-e "$copied.old", 'backup: notes are removed');
	$copy->stop;

	# A restartpoint that ends when the standby has been promoted is no checkpoint yet
	my ($restarting, $checkpointing) =
	  ('create-restart-point', 'doublewrite-checkpoint-drained');
	$fail->();
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('$restarting', 'wait')");
	my $session = dw_start($standby, 'restartpoint', 'CHECKPOINT');
	$standby->wait_for_event('checkpointer', $restarting);
	$standby->safe_psql('postgres',
		"SELECT injection_points_attach('$checkpointing', 'wait')");
	$standby->promote;
	$offset = -s $standby->logfile;
	dw_wake($standby, $restarting);
	$standby->wait_for_log(qr/restartpoint complete/, $offset);
	$standby->wait_for_event('checkpointer', $checkpointing);
	ok(-e $seen, 'promoted: the end of a restartpoint leaves the note');
	dw_wake($standby, $checkpointing);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	ok(!-e $seen, 'promoted: a checkpoint does not');
	$session->{run}->finish;
	$standby->stop;
	$primary->stop;
}

done_testing();
