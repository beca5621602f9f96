
# Copyright (c) 2025, PostgreSQL Global Development Group

# Recovery from an archive, and a standby that is not consistent yet, redo page by
# page in rounds, which leaves the same files as redo in the order of WAL.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $rounds =
  qr/rounds? of redo before clients get in\n.*Pages redone: \d+ by the startup process, \d+ by worker 1/;

my $primary = xlp_primary('primary', has_archiving => 1);

$primary->append_conf('postgresql.conf',
	"io_torn_pages_protection = double_writes\nwal_level = logical");
$primary->restart;
$primary->safe_psql(
	'postgres',
	"CREATE TABLE old WITH (fillfactor = 40) AS
		SELECT i, repeat('x', 500) AS f FROM generate_series(1, 500) i"
);
$primary->backup('base');

sub archived
{
	my ($node) = @_;
	my $last =
	  $node->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');

	$node->poll_query_until('postgres',
		"SELECT last_archived_wal >= '$last' FROM pg_stat_archiver")
	  or die 'timed out waiting for the archive';
	return;
}

xlp_workload($primary, 1);
$primary->safe_psql('postgres', 'UPDATE old SET i = i + 1');
$primary->safe_psql('postgres', 'CHECKPOINT');
xlp_workload($primary, 2);
$primary->safe_psql('postgres', "SELECT pg_create_restore_point('here')");
$primary->safe_psql('postgres', 'UPDATE t1 SET v = v + 1');
my $lsn = $primary->lsn('insert');
archived($primary);

# A copy that is to recover to a target, and to end there.
sub copy
{
	my ($name, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup(
		$primary, 'base',
		has_restoring => 1,
		standby => 0);
	$node->append_conf(
		'postgresql.conf', "
hot_standby = off
recovery_target_action = shutdown
instant_recovery = off
autovacuum = off
max_logical_replication_workers = 0
log_min_messages = debug1
$conf");
	return $node;
}

sub recover
{
	my ($node) = @_;
	my $offset = -e $node->logfile ? -s $node->logfile : 0;

	xlp_start_no_wait($node);
	$node->wait_for_log(qr/database system is shut down/, $offset);
	my $digest = xlp_digest($node);
	delete @$digest{ grep { /_fsm(?:\.\d+)?$/ } keys %$digest };
	return $digest;
}

my %targets = (
	name => "recovery_target_name = 'here'",
	lsn => "recovery_target_lsn = '$lsn'\nrecovery_target_inclusive = off");
my $workers = 'recovery_workers = 3';

foreach my $target (sort keys %targets)
{
	my $serial = recover(
		copy("${target}_serial", "recovery_workers = 0\n$targets{$target}"));

	foreach my $memory ('automatic', '64kB')
	{
		my $node = copy(
			"${target}_$memory",
			"$workers\n$targets{$target}"
			  . (
				$memory eq 'automatic'
				? ''
				: "\ninstant_recovery_memory = $memory"));
		my $digest = recover($node);

		is(xlp_differences($serial, $digest),
			'', "$target, memory $memory: same files");
		like(slurp_file($node->logfile), $rounds, '... in rounds');
		my ($control) = run_command([ 'pg_controldata', $node->data_dir ]);
		unlike(
			$control,
			qr/REDO WAL file:\s+000000010000000000000002/,
			'... after a restartpoint');
		$node->clean_node;
	}
}

# A server that is killed in a round begins at the last restartpoint, or before.
my $serial = recover(copy('serial', "recovery_workers = 0\n$targets{name}"));
my $killed = copy(
	'killed', "$workers\n$targets{name}
shared_preload_libraries = 'injection_points, test_points'
shared_buffers = 1MB
test_points.pause_at = 'instant-recovery-page-redone:300'");
xlp_start_no_wait($killed);
$killed->wait_for_log(
	qr/paused at injection point|database system is shut down/);
$killed->_update_pid(1);
$killed->stop('immediate');
$killed->append_conf('postgresql.conf', "test_points.pause_at = ''");
is(xlp_differences($serial, recover($killed)),
	'', 'killed in a round: same files');

# The same of one that is stopped while it waits for a delay.
my $delayed = copy('delayed',
	"$workers\n$targets{name}\nrecovery_min_apply_delay = 1h\nlog_min_messages = debug2"
);
xlp_start_no_wait($delayed);
$delayed->wait_for_log(qr/recovery apply delay \d{5}/);
$delayed->_update_pid(1);
$delayed->stop;
$delayed->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
is(xlp_differences($serial, recover($delayed)),
	'', 'stopped while it waits for a delay: same files');
like(slurp_file($delayed->logfile), $rounds, '... in rounds');

# Another timeline begins in the middle of a segment.
my $second = PostgreSQL::Test::Cluster->new('second');
$second->init_from_backup(
	$primary, 'base',
	has_restoring => 1,
	standby => 0);
$second->enable_archiving;
$second->append_conf('postgresql.conf',
	"recovery_target_name = 'here'\nrecovery_target_action = promote");
$second->start;
$second->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'not promoted';
$second->safe_psql('postgres', "CREATE TABLE t$_ (i int)") foreach (3 .. 4);
$second->safe_psql('postgres', "DROP TABLE t$_")           foreach (3 .. 4);
xlp_workload($second, 3);
my $end = $second->lsn('insert');
archived($second);

sub follow
{
	my ($name, $conf) = @_;
	my $node = copy(
		$name, "$conf
recovery_target_timeline = latest
recovery_target_lsn = '$end'
recovery_target_inclusive = off
restore_command = 'cp \""
		  . $second->archive_dir
		  . '/%f\" \"%p\" || cp \"'
		  . $primary->archive_dir
		  . '/%f\" \"%p\"\'');

	return ($node, recover($node));
}
(undef, $serial) = follow('follow_serial', 'recovery_workers = 0');
my ($follow, $digest) = follow('follow', $workers);
is(xlp_differences($serial, $digest), '', 'two timelines: same files');
like(slurp_file($follow->logfile), $rounds, '... in rounds');

# A file of the backup has lost its last blocks: recovery says so.
my $short = copy('short', "$workers\n$targets{name}");
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('old')");
truncate($short->data_dir . "/$path", 8192) or die "$path: $!";
xlp_start_no_wait($short);
$short->wait_for_log(qr/database system is shut down|aborting startup/);
like(
	slurp_file($short->logfile),
	qr/PANIC: .*WAL contains references to invalid pages/,
	'a file that is too short is noticed');

# A standby is restarted, and has queries when it is consistent.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	"instant_recovery = off\n$workers\nlog_min_messages = debug1\n");
$standby->start;
$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE TABLE r (i int PRIMARY KEY, v int)',
	'INSERT INTO r SELECT i, 0 FROM generate_series(1, 30000) i',
	'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', 'UPDATE r SET v = 1');
$primary->wait_for_catchup($standby);
my $filepath =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('r')");

sub restarted
{
	my ($how, $mode) = @_;
	my $offset = -s $standby->logfile;

	$standby->stop($mode);
	$standby->start;
	is( $standby->safe_psql(
			'postgres',
			'SET enable_seqscan = off; SELECT sum(v) FROM r WHERE i > 0'),
		30000,
		"standby, $how: rows");
	my $log = slurp_file($standby->logfile, $offset);
	like($log, $rounds, '... after rounds');
	like(
		$log,
		qr/rounds? of redo before clients get in.*consistent recovery state reached/s,
		'... and consistent after them');
	$primary->safe_psql('postgres', 'UPDATE r SET v = 1 WHERE i < 100');
	$primary->wait_for_catchup($standby);
	ok( $standby->poll_query_until(
			'postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'recovery worker'"
		),
		'... and without workers then');
	return;
}
restarted('stopped', 'fast');
restarted('crashed', 'immediate');

# Where it is consistent, commits are delayed.
sub rows
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM r');
}
$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 1h');
$standby->stop;
my $offset = -s $standby->logfile;
$standby->start;
like(slurp_file($standby->logfile, $offset), $rounds, 'delayed: rounds');
$primary->safe_psql('postgres', 'INSERT INTO r VALUES (0, 1)');
$primary->wait_for_catchup($standby, 'flush');
is(rows($standby), '30000|30000', '... up to where it was');
$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
$standby->reload;
$primary->wait_for_catchup($standby);
is(rows($standby), '30001|30001', '... and the rest when there is no delay');

# Locks that transactions have at the redo pointer
$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE TABLE l1 (i int)',
	'CREATE TABLE l2 (i int)',
	q{BEGIN; LOCK TABLE l1; PREPARE TRANSACTION 'locks'});
my $open = $primary->background_psql('postgres');
$open->query_safe('BEGIN; LOCK TABLE l2');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', 'UPDATE r SET v = v');
my $middle = $primary->lsn('insert');
$primary->wait_for_catchup($standby);
my $locks =
  q{SELECT string_agg(relation::regclass::text, ' ' ORDER BY relation)
	FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation >= 'l1'::regclass};
restarted('with locks', 'fast');
is($standby->safe_psql('postgres', $locks), 'l1 l2', '... which are held');
$open->query_safe('ROLLBACK');
$open->quit;
$primary->safe_psql('postgres', q{ROLLBACK PREPARED 'locks'});
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', $locks), '', '... and given up');

# A copy of it, some of whose WAL is missing, follows it.
$standby->stop;
xlp_crash($standby, 'stopped');
my $target = $primary->lsn('insert');
my $cascade = PostgreSQL::Test::Cluster->new('cascade');
$cascade->init_from_backup($standby, 'stopped', has_streaming => 1);
my @segments = sort glob($cascade->data_dir . '/pg_wal/0000*[0-9A-F]');
unlink(@segments[ -4 .. -1 ]) or die $!;
xlp_start_no_wait($cascade);
$cascade->wait_for_log(qr/waiting for WAL to become available/);
like(
	xlp_refusal($cascade),
	qr/not yet accepting|starting up/,
	'cascade: not consistent yet');
$standby->start;
$cascade->wait_for_log(qr/database system is ready to accept read-only/);
$cascade->_update_pid(1);
$primary->safe_psql('postgres', 'INSERT INTO r VALUES (-1, 1)');
my $added = $primary->lsn('insert');
$cascade->poll_query_until('postgres',
	"SELECT pg_last_wal_replay_lsn() >= '$added'");
is(rows($cascade), '30002|30002', '... and follows');
like(slurp_file($cascade->logfile), $rounds, '... after rounds');
$cascade->stop;

# Pause at a target, and one that comes too early
my $paused = PostgreSQL::Test::Cluster->new('paused');
$paused->init_from_backup($standby, 'stopped');
$paused->append_conf('postgresql.conf', "recovery_target_lsn = '$middle'");
xlp_start_no_wait($paused);
ok( $paused->wait_for_log(
		qr/requested recovery stop point is before consistent recovery point.*database system is shut down/s
	),
	'a target before it is consistent is an error');
$paused->append_conf('postgresql.conf', "recovery_target_lsn = '$target'");
$paused->start;
$paused->poll_query_until('postgres',
	q{SELECT pg_get_wal_replay_pause_state() = 'paused'});
is(rows($paused), '30001|30001', 'paused at a target');
like(slurp_file($paused->logfile), $rounds, '... after rounds');
$paused->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$paused->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is(rows($paused), '30001|30001', '... which ends recovery');

$primary->safe_psql('postgres', 'DELETE FROM r WHERE i <= 0');

# A logical slot may have to be invalidated by records of pages.
$standby->create_logical_slot_on_standby($primary, 'slot', 'postgres');
$primary->safe_psql('postgres', 'UPDATE r SET v = 1');
$primary->wait_for_catchup($standby);
$offset = -s $standby->logfile;
$standby->stop('immediate');
$standby->start;
unlike(slurp_file($standby->logfile, $offset),
	$rounds, 'no rounds with a logical slot');
$standby->safe_psql('postgres', q{SELECT pg_drop_replication_slot('slot')});
restarted('crashed without the slot', 'immediate');

# It has rotted: the primary replaces it.
$standby->stop('immediate');
open(my $file, '+<:raw', $standby->data_dir . "/$filepath")
  or die "$filepath: $!";
seek($file, 3 * 8192 + 4000, 0) or die;
print $file 'rot' x 100;
close($file);
$standby->start;
$primary->wait_for_catchup($standby);
ok( $standby->wait_for_log(
		qr/block 3 of relation "$filepath" was damaged, and has been replaced/
	),
	'a page that has rotted is replaced');
is($standby->safe_psql('postgres', 'SELECT sum(v) FROM r'),
	30000, '... and right');
$standby->promote;
$standby->safe_psql('postgres', 'CHECKPOINT');
is($standby->safe_psql('postgres', 'SELECT sum(v) FROM r'),
	30000, 'promoted');

foreach my $node ($standby, $follow, $killed, $delayed, $cascade, $paused)
{
	unlike(slurp_file($node->logfile),
		qr/PANIC|TRAP/, $node->name . ' has nothing to complain about');
}

done_testing();
