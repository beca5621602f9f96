
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

# A logical slot may have to be invalidated by records of pages.
$standby->create_logical_slot_on_standby($primary, 'slot', 'postgres');
$primary->safe_psql('postgres', 'UPDATE r SET v = 1');
$primary->wait_for_catchup($standby);
my $offset = -s $standby->logfile;
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

foreach my $node ($standby, $follow, $killed)
{
	unlike(slurp_file($node->logfile),
		qr/PANIC|TRAP/, $node->name . ' has nothing to complain about');
}

done_testing();
