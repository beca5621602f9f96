
# Copyright (c) 2025, PostgreSQL Global Development Group

# Stock need not flush the record of a transaction that is rolled back: whatever a crash
# brings back of it is overwritten by images, or by the checkpoint that clients wait for.
# Here clients get in before that checkpoint, and before pages have been redone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# The files of a transaction that is rolled back are removed, with pages that have changed
# since the last checkpoint, of which WAL has no images.  Only a record of the removal tells
# recovery that they will never be there.
sub files_are_removed
{
	my ($node, $what) = @_;
	my $session = $node->background_psql('postgres');

	$session->query_safe(
		q{
		BEGIN;
		CREATE TABLE t (a int);
		CREATE INDEX ON t (a);
		INSERT INTO t SELECT i * 2 FROM generate_series(1, 20000) i});
	$node->safe_psql('postgres', 'CHECKPOINT');
	$session->query_safe(
		'INSERT INTO t SELECT i * 2 + 1 FROM generate_series(1, 20000) i');
	$node->safe_psql('postgres',
		'CREATE TABLE flushes_wal (); DROP TABLE flushes_wal');

	# it would flush the record soon
	my $walwriter = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	kill('STOP', $walwriter) == 1 or die "could not stop the WAL writer: $!";
	$session->query_safe('ROLLBACK');
	$node->stop('immediate');
	$session->{run}->kill_kill;

	my $offset = -s $node->logfile;
	ok(dw_poll_start($node), "$what: server starts");
	my ($ret, undef, $error) = $node->psql('postgres', 'CHECKPOINT');
	is($ret, 0, "$what: all pages are redone") or diag($error);
	ok(!$node->log_contains(qr/missing or uninitialized/, $offset),
		"$what: none is missed");
	return;
}

my $node = dw_quiet_node(
	'main', conf => q{
instant_recovery = on
max_prepared_transactions = 2
});
files_are_removed($node, 'double_writes');

# nor has it images without the log, which may have been so until just now
$node->append_conf('postgresql.conf', "io_torn_pages_protection = off\n");
$node->reload;
$node->safe_psql('postgres', 'CHECKPOINT');
files_are_removed($node, 'off');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = full_pages\n");
$node->restart;
files_are_removed($node, 'full_pages');
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = double_writes\n");
$node->restart;

# pg_xact may have come to disk with the number of a transaction as aborted whose record
# has not.  Clients get in, and use the number again; and what they have done must outlast
# the next crash though pg_xact was not written again, as the checkpoint was not complete.
foreach my $as_standby (0, 1)
{
	my $what = 'number of an aborted transaction'
	  . ($as_standby ? ', then a standby' : '');

	$node->append_conf('postgresql.conf',
		"test_points.hold_at = 'doublewrite-checkpoint-scanned'\n");
	$node->stop('immediate');
	ok(dw_poll_start($node), "$what: server starts");
	my $xid = $node->safe_psql(
		'postgres', q{
		BEGIN;
		CREATE TABLE prepared ();
		SELECT pg_current_xact_id();
		PREPARE TRANSACTION 'g'});
	$node->stop('immediate');

	my $path = $node->data_dir . '/pg_xact/0000';
	open(my $file, '+<:raw', $path)
	  or die "could not open file \"$path\": $!";
	seek($file, int($xid / 4), 0) or die "could not seek: $!";
	read($file, my $byte, 1) == 1 or die "could not read: $!";
	seek($file, int($xid / 4), 0) or die "could not seek: $!";
	print $file chr(ord($byte) | 2 << 2 * ($xid % 4));
	close($file) or die "could not close file \"$path\": $!";

	append_to_file($node->data_dir . '/standby.signal', '') if $as_standby;
	ok(dw_poll_start($node), "$what: server starts again");
	$node->append_conf('postgresql.conf', "test_points.hold_at = ''\n");
	$node->promote if $as_standby;
	is($node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts'),
		'g', "$what: what was prepared is there");
	$node->safe_psql('postgres', q{COMMIT PREPARED 'g'});
	is($node->safe_psql('postgres', 'SELECT count(*) FROM prepared'),
		'0', "$what: ... and can be committed");
	$node->safe_psql('postgres', 'DROP TABLE prepared');
}
$node->stop('immediate');

done_testing();
