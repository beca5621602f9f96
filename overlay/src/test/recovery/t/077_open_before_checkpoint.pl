
# Copyright (c) 2025, PostgreSQL Global Development Group

# After a crash clients get in before the checkpoint that follows recovery.  If the server crashes
# again before that is complete, redo begins at the old redo pointer, and what the clients have done
# since comes again.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# a checkpoint that is spread over so long does not complete
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
log_checkpoints = on
max_prepared_transactions = 2
wal_level = logical
});
$node->start;

sub redo_pointer
{
	my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $stdout =~ /Latest checkpoint's REDO location: +(\S+)/
	  ? $1
	  : undef;
}

# Crash and start; returns the server log since then.
sub crash
{
	my $offset = -s $node->logfile;

	$node->stop('immediate');
	$node->start;
	$node->wait_for_log(qr/checkpoint starting/, $offset);
	return slurp_file($node->logfile, $offset);
}

my $rows = 'SELECT count(*), sum(v) FROM t';
$node->safe_psql(
	'postgres', q{
	CREATE TABLE gone AS SELECT 1 AS i;
	CHECKPOINT;
	CREATE TABLE t AS SELECT i, 0 AS v, repeat('x', 500) AS pad FROM generate_series(1, 2000) i;
	UPDATE t SET v = 1});
my $redo = redo_pointer();
my $file = $node->data_dir . '/'
  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('gone')});
$node->safe_psql('postgres', 'DROP TABLE gone');

my $log = crash();
like(
	$log,
	qr/checkpoint starting: force$/m,
	'a checkpoint that is spread follows');
unlike($log, qr/end-of-recovery/, 'clients have not waited for one');
is(redo_pointer(), $redo, 'recovery would begin where it began');
is($node->safe_psql('postgres', $rows), '2000|2000', 'rows after a crash');
is(-s $file, 0, 'the number of a table that was dropped is not used again');

$node->safe_psql(
	'postgres', q{
	INSERT INTO t SELECT i, 1 FROM generate_series(2001, 3000) i;
	SELECT pg_create_logical_replication_slot('slot', 'pgoutput');
	BEGIN; INSERT INTO t VALUES (3001, 1); PREPARE TRANSACTION 'prepared'});
is(redo_pointer(), $redo, 'no checkpoint has been completed');

$log = crash();
like(
	$log,
	qr/checkpoint starting: immediate force$/m,
	'the next one is not spread');
is($node->safe_psql('postgres', $rows), '3000|3000',
	'rows after two crashes');
is( $node->safe_psql(
		'postgres', 'SELECT slot_name FROM pg_replication_slots'),
	'slot',
	'a slot that was made in between');
$node->safe_psql('postgres', q{COMMIT PREPARED 'prepared'});
is($node->safe_psql('postgres', $rows),
	'3001|3001', 'a transaction that was prepared in between');
$node->safe_psql('postgres', 'CHECKPOINT');
isnt(redo_pointer(), $redo, 'the checkpoint is complete');
ok(!-e $file, '... and has removed the file');

# clients would make a server crash again that has no room for WAL
foreach my $size ('1000TB', '32MB')
{
	$node->append_conf('postgresql.conf', "min_wal_size = $size");
	$node->reload;
	$node->safe_psql('postgres', 'UPDATE t SET v = 1 WHERE i = 1');
	$log = crash();
	is( ($log =~ /checkpoint starting: end-of-recovery/) ? 1 : 0,
		$size eq '1000TB'                                ? 1 : 0,
		"clients wait if WAL has no room: min_wal_size = $size");
}

# what clients commit behind WAL that may not be durable could be lost
if ($ENV{enable_injection_points} eq 'yes')
{
	$node->append_conf('postgresql.conf',
		"fsync = on\nshared_preload_libraries = 'test_points'\n");
	foreach my $fails (1, 0)
	{
		$node->append_conf('postgresql.conf',
			'test_points.fail_at = '
			  . ($fails ? q{'wal-tail-write:EIO'} : q{''}));
		$node->safe_psql('postgres', 'UPDATE t SET v = 1 WHERE i = 1');
		$log = crash();
		is(($log =~ /could not write file ".*" again: /) ? 1 : 0,
			$fails, "the last segment of WAL is written again: fails $fails");
		is(($log =~ /checkpoint starting: end-of-recovery/) ? 1 : 0,
			$fails, '... and clients wait if that fails');
	}
}

# with wal_level = minimal another recovery might not have all that clients have done
$node->append_conf('postgresql.conf',
	"wal_level = minimal\nmax_wal_senders = 0\n");
$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('slot')});
$node->restart;
$node->safe_psql('postgres', 'UPDATE t SET v = 2');
like(
	crash(),
	qr/checkpoint starting: end-of-recovery/,
	'wal_level = minimal: clients wait');
is($node->safe_psql('postgres', $rows), '3001|6002', '... and see all rows');
$node->stop;

done_testing();
