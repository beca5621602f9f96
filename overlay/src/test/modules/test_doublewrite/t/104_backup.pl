
# Copyright (c) 2025, PostgreSQL Global Development Group

# Backups of clusters in double_writes, by all means that people use, and
# pg_rewind: the log never belongs to a copy, and a copy never has torn pages
# that nothing repairs (R9).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Workload;
use File::Copy;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';
my $MARKER_LINE = qr/^DOUBLE WRITE LOG IN USE/;
my $DISCARDED =
  qr/LOG:  discarding the double-write log, because the cluster is being restored from a backup/;

# Start what has been copied to a backup directory, and check the data.  The
# load has gone on after the backup, so this tells only about consistency.
sub copy_ok
{
	my ($node, $test_name, %params) = @_;
	my $offset = (-s $node->logfile) // 0;

	$node->start;
	my $log = slurp_file($node->logfile, $offset);
	if ($params{discards})
	{
		like($log, $DISCARDED, "$test_name: the log is discarded");
	}
	unlike(
		$log,
		qr/double-write log: examined/,
		"$test_name: nothing is restored from a log");
	unlike(
		$log,
		qr/invalid page|page verification failed/,
		"$test_name: no torn page is met");
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'timed out waiting for the end of recovery';
	is( $node->safe_psql(
			'postgres',
			'SELECT sum(bal) FROM accounts;'
			  . 'SELECT count(*) = count(DISTINCT (run, client, n)) FROM history'
		),
		"0\nt",
		"$test_name: data are consistent");
	dw_check_amcheck($node);
	$node->stop;
	$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		"$test_name: checksums are right");
	return;
}

# ---------------------------------------------------------------------
# pg_basebackup under load
# ---------------------------------------------------------------------

my $primary = dw_new_node(
	'primary',
	init => { allows_streaming => 1, has_archiving => 1 },
	conf => "wal_log_hints = off\nwal_keep_size = 1GB\n");

$primary->start;
dw_workload_setup($primary);
dw_workload_start($primary);
dw_wait_for_pages($primary, 300);

my $before = $primary->lsn('insert');
dw_wait_for_pages($primary, 300);
is(dw_images_between($primary, $before, $primary->lsn('flush')),
	0, 'no images before the backup');

$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);
my $backup = $primary->backup_dir . '/base';
ok(-d "$backup/pg_doublewrite", 'the backup has an empty directory');
is(scalar(dw_segments("$backup/pg_doublewrite")), 0,
	'and no part of the log');
unlike(slurp_file("$backup/$MARKER"),
	$MARKER_LINE, 'the label is that of a backup');
command_ok([ 'pg_verifybackup', '--no-parse-wal', $backup ],
	'pg_verifybackup');

my ($start_lsn) =
  slurp_file("$backup/$MARKER") =~ /^START WAL LOCATION: ([0-9A-F\/]+)/m;
cmp_ok(dw_images_between($primary, $start_lsn, $primary->lsn('flush')),
	'>', 0, 'WAL of the backup carries images');

# once it is over, images stop again
$primary->safe_psql('postgres', 'CHECKPOINT');
$before = $primary->lsn('insert');
dw_wait_for_pages($primary, 300);
is(dw_images_between($primary, $before, $primary->lsn('flush')),
	0, 'no images after the backup');

my $copy = PostgreSQL::Test::Cluster->new('basebackup');
$copy->init_from_backup($primary, 'base');
copy_ok($copy, 'pg_basebackup');
$copy->clean_node;

# ---------------------------------------------------------------------
# A copy of all files, made with the functions
# ---------------------------------------------------------------------

my $session = $primary->background_psql('postgres', on_error_stop => 1);
$session->query_safe('SET client_min_messages = warning');
$session->query_safe(q{SELECT pg_backup_start('copy', true)});
dw_wait_for_pages($primary, 300);
my %data = (files => $primary->backup_dir . '/files');
PostgreSQL::Test::RecursiveCopy::copypath(
	$primary->data_dir,
	$data{files},
	filterfn => sub {
		my $src = shift;

		return
			 $src ne 'postmaster.pid'
		  && $src ne 'postmaster.opts'
		  && $src !~ m{^pg_wal/.};
	});
dw_wait_for_pages($primary, 300);
my $label = $session->query_safe('SELECT labelfile FROM pg_backup_stop()');
$session->quit;

cmp_ok(scalar(dw_segments("$data{files}/pg_doublewrite")),
	'>', 0, 'the copy includes the log');
like(slurp_file("$data{files}/$MARKER"), $MARKER_LINE, 'and the marker');
ok(-f $primary->data_dir . "/$MARKER", 'which is still in the primary, too');

# the same once more with the label appended to what is there
$data{appended} = $primary->backup_dir . '/appended';
PostgreSQL::Test::RecursiveCopy::copypath($data{files}, $data{appended});
append_to_file("$data{appended}/$MARKER", "$label\n");
unlink("$data{files}/$MARKER") or die $!;
append_to_file("$data{files}/$MARKER", "$label\n");

# later than the backups, for recovery to a point in time
dw_wait_for_pages($primary, 300);
$primary->safe_psql('postgres', q{SELECT pg_create_restore_point('here')});
my $here = $primary->safe_psql('postgres',
	'SELECT pg_walfile_name(pg_current_wal_lsn())');
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
dw_wait_for_pages($primary, 300);
$primary->poll_query_until('postgres',
	"SELECT last_archived_wal >= '$here' FROM pg_stat_archiver")
  or die 'timed out waiting for the archive';

for my $how ('files', 'appended')
{
	$copy = PostgreSQL::Test::Cluster->new($how);
	$copy->init_from_backup(
		$primary, $how,
		has_restoring => 1,
		standby => 0);
	$copy->append_conf('postgresql.conf',
			"recovery_target_name = 'here'\n"
		  . "recovery_target_action = 'promote'\n"
		  . "archive_mode = off\n");
	copy_ok($copy, "copy of files, $how", discards => 1);
	like(
		slurp_file($copy->logfile),
		qr/recovery stopping at restore point "here"/,
		"$how: recovered to the point in time");
	$copy->clean_node;
}

# ---------------------------------------------------------------------
# A crash during the recovery of a backup
# ---------------------------------------------------------------------

$copy = PostgreSQL::Test::Cluster->new('crash');
$copy->init_from_backup($primary, 'files', has_restoring => 1, standby => 0);
$copy->append_conf('postgresql.conf',
		"recovery_target_name = 'here'\n"
	  . "recovery_target_action = 'promote'\n"
	  . "archive_mode = off\n"
	  . "test_points.crash_at = 'doublewrite-home-written:2'\n");
ok(!$copy->start(fail_ok => 1), 'crash during recovery');
dw_wait_for_exit($copy);
like(slurp_file($copy->data_dir . "/$MARKER"),
	$MARKER_LINE, 'the copy has a log of its own by then');
$copy->adjust_conf('postgresql.conf', 'test_points.crash_at', "''");
$copy->start;
$copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'timed out waiting for the end of recovery';
is($copy->safe_psql('postgres', 'SELECT sum(bal) FROM accounts'),
	'0', 'and is recovered from that');
dw_check_amcheck($copy);
$copy->stop;
$copy->clean_node;

$primary->stop('immediate');
dw_workload_finish($primary);
$primary->start;
dw_check_history($primary);
$primary->stop;

done_testing();
