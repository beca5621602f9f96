
# Copyright (c) 2025, PostgreSQL Global Development Group

# What redo after opening takes of a server: some places for workers, some private
# memory, memory for chains until it is complete, and time of a stop, which says so.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

# Workers redo what is asked for, and nothing else.
my $POINT = 'instant-recovery-only-demands';

# More workers than there are places, and large temporary tables
my $node = dw_new_node(
	'main', conf => q{
instant_recovery = on
instant_recovery_memory = 64MB
recovery_workers = 32
max_worker_processes = 8
max_parallel_workers = 8
temp_buffers = 512MB
shared_buffers = 64MB
huge_pages = off
});
$node->start;
dw_extensions($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int) WITH (fillfactor = 50);
	INSERT INTO t SELECT i, 0 FROM generate_series(1, 100000) i;
	CREATE TABLE other AS SELECT i FROM generate_series(1, 100000) i;
	VACUUM t, other;
});

# Records of single pages, and some with many, of which redo of one needs the others
sub work
{
	$node->safe_psql(
		'postgres', q{
		CHECKPOINT;
		UPDATE t SET v = v + 1;
		CREATE INDEX ON t (v, id);
	});
	return;
}

sub crash
{
	my ($conf) = @_;
	my $offset = -s $node->logfile;

	$node->stop('immediate');
	$node->append_conf('postgresql.conf',
		"test_points.fail_at = ''\ntest_points.pause_at = ''\n$conf\n");
	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	$node->wait_for_log(qr/opening before redo: \d+ pages are pending/,
		$offset);
	return $offset;
}

# Half of the places are left to others.
work();
my $offset = crash("test_points.fail_at = '$POINT:EIO'");
ok( $node->poll_query_until(
		'postgres',
		q{SELECT count(*) = 4 FROM pg_stat_activity WHERE backend_type = 'recovery worker'}
	),
	'4 recovery workers');
my $plan = $node->safe_psql(
	'postgres', q{
	SET parallel_setup_cost = 0;
	SET parallel_tuple_cost = 0;
	SET min_parallel_table_scan_size = 0;
	EXPLAIN (ANALYZE, COSTS off, TIMING off, BUFFERS off) SELECT count(*) FROM other}
);
like($plan, qr/Workers Launched: [1-9]/, 'a query gets others');
unlike(
	slurp_file($node->logfile, $offset),
	qr/redo is complete/,
	'... while pages are pending');
$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
$node->wait_for_log(qr/redo is complete/, $offset);

# Memory for chains, and for WAL, has been given back.
work();
my $wal = $node->safe_psql('postgres',
	"SELECT ((pg_current_wal_lsn() - redo_lsn) / 1024)::int FROM pg_control_checkpoint()"
);
cmp_ok($wal, '>', 8 * 1024, 'there is WAL to keep: kB');
$offset = crash('');
$node->wait_for_log(qr/redo is complete/, $offset);
SKIP:
{
	skip 'needs a kernel that takes shared memory back', 1 if $^O ne 'linux';
	my $resident =
	  $node->safe_psql('postgres', 'SELECT dw_instant_resident()');
	cmp_ok($resident, '<', 1024, 'memory has been given back: kB');
}

# A stop says what it waits for.
work();
$offset = crash(
	q{recovery_workers = 1
test_points.fail_at = 'instant-recovery-slowly:EIO'
test_points.pause_at = 'instant-recovery-page-redone:5'});
$node->wait_for_log(qr/paused at injection point/, $offset);
my $before = -s $node->logfile;
run_log(
	[
		'pg_ctl',
		'--pgdata' => $node->data_dir,
		'--mode' => 'fast',
		'--no-wait', 'stop'
	]);
$node->wait_for_log(qr/received fast shutdown request/, $before);
append_to_file($node->data_dir . '/test_points.resume', '');
$node->wait_for_log(
	qr/LOG:  shutdown waits for redo of \d+ pages?\n.*DETAIL:  In \d+ s \d+ pages have been redone, so it may take \d+ s\.\n.*HINT:  An immediate/,
	$before);
$node->wait_for_log(qr/database system is shut down/, $before);
like(
	slurp_file($node->logfile, $before),
	qr/redo is complete/,
	'then redo is complete');
$node->_update_pid(0);

done_testing();
