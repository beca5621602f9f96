
# Copyright (c) 2026, PostgreSQL Global Development Group

# How much time is left is known, and said, while redo waits for blocks that are
# read ahead.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

if (!$use_unix_sockets)
{
	plan skip_all => 'needs Unix-domain sockets';
}

# Every fourth page of a table changes, so that none is read together with
# another, and there is WAL enough for a window.
my $primary = xlp_primary('primary');
my $runs = 1024;
$primary->append_conf('postgresql.conf', 'io_torn_pages_protection = off');
$primary->restart;
$primary->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, v int, filler text) WITH (fillfactor = 40);
	ALTER TABLE t ALTER filler SET STORAGE PLAIN;
	INSERT INTO t SELECT i, 0, repeat('x', 3000) FROM generate_series(0, 4 * $runs - 1) i;
});
$primary->safe_psql('postgres', 'VACUUM t');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql(
	'postgres', qq{
	UPDATE t SET v = v + 1 WHERE id % 4 = 0;
	SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000)))
		FROM generate_series(1, 600);
});
$primary->stop('immediate');
$primary->backup_fs_cold('crashed');
unlink($primary->backup_dir . '/crashed/pg_doublewrite/owner');

# Redo waits, as the pipeline's process is held when it knows what is to be read.
my $node = PostgreSQL::Test::Cluster->new('held');
$node->init_from_backup($primary, 'crashed');
$node->append_conf('postgresql.conf', xlp_conf('on'));
$node->append_conf(
	'postgresql.conf', "
log_startup_progress_interval = '100ms'
test_doublewrite.hold_at = 'xlogahead-scanned'
test_doublewrite.fail_at = 'xlogpipeline-wait-for-worker:EIO, xlogreadprogress-even:EIO:1:1000000000, xlogreadprogress-odd:EIO:1:1000000000'
");
append_to_file($node->logfile, '');
run_log(
	[
		'pg_ctl',
		'--no-wait',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'start'
	]);
$node->wait_for_log(qr/held at injection point "xlogahead-scanned"/);

# It says so nevertheless, again and again.
my $line = qr/redo in progress, elapsed time: ([\d.]+) s, .* 0% of WAL replayed,.* about ([\d.]+) s to go\n/;
$node->wait_for_log(qr/$line(?s:.*)$line(?s:.*)$line/);

# Before anything has been learnt 4096 blocks cost 0.4 ms each, and a quarter of
# them a bit more than a quarter of that: 0.54 s.  None has been read.
my $log = slurp_file($node->logfile);
while ($log =~ /$line/g)
{
	my ($elapsed, $left) = ($1, $2);

	note "$elapsed s, $left s to go";
	cmp_ok($left, '>', 0.4, 'time left');
	cmp_ok($left, '<', 0.8, '... is what has been learnt');
}

# So are those told who are refused, and the file.
my (undef, $message) = run_command(
	[
		'psql',
		'--no-psqlrc',
		'-c' => 'SELECT 1',
		'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres'
	]);
like($message, qr/0% of WAL replayed, .* about 0\.\d s to go/, 'who is refused is told');
my $file = slurp_file($node->data_dir . '/recovery_progress');
like($file, qr/^percent = 0$/m, 'the file has the percentage');
like($file, qr/^seconds_left = [01]$/m, 'the file has the time left');

$node->_update_pid(1);
$node->stop('immediate');
done_testing();
