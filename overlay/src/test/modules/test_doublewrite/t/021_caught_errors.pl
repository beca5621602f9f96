# Copyright (c) 2025, PostgreSQL Global Development Group

# A session lives on after a home write that failed: the error is a value until a
# process needs the page at home (R11).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node('main');
$node->safe_psql(
	'postgres', q{
	CREATE TABLE a AS SELECT i AS id FROM generate_series(1, 100) i;
	CREATE TABLE b AS SELECT i AS id FROM generate_series(1, 100) i;
	CHECKPOINT});

# --- Interrupts are served again

my $session = $node->background_psql('postgres', on_error_stop => 0);
my $out = $session->query(
	q{
	DELETE FROM a WHERE id = 1;
	SELECT dw_evict('a'), points_fail_at('doublewrite-home-write', 'EIO');
	SELECT dw_drain();
	BEGIN;
	SET LOCAL statement_timeout = '100ms';
	SELECT pg_sleep(1000);
	ROLLBACK});
like($session->{stderr}, qr/could not write blocks/, 'home write failed');
like(
	$session->{stderr},
	qr/canceling statement due to statement timeout/,
	'statement_timeout works in the session that has met the error');
$session->{stderr} = '';

my $pid = $session->query_safe('SELECT pg_backend_pid()');
$session->query_until(qr/started/, "\\echo started\nSELECT pg_sleep(100);\n");
$node->poll_query_until('postgres',
	"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok( $node->poll_query_until(
		'postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
	'... and so does pg_terminate_backend()');
$session->{run}->finish;
$node->safe_psql('postgres', 'SELECT dw_drain()');

# --- Pages behind a failing one are written, by the same process

$node->safe_psql(
	'postgres', q{
	DELETE FROM a WHERE id = 2; DELETE FROM b WHERE id = 2;
	SELECT dw_evict('a'), dw_evict('b'), points_fail_at('doublewrite-home-write', 'EIO')}
);
is($node->safe_psql('postgres', 'SELECT dw_flush_batch(false)'),
	't', 'a batch goes home');
cmp_ok($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
	'<', 3, '... except what failed');
$node->safe_psql('postgres', 'SELECT dw_drain()');
is($node->safe_psql('postgres', 'SELECT in_use FROM dw_state()'),
	0, 'all pages are home');
$node->stop;

# --- A process that reports an error to a client holds no lock of the engine: the
#     server would have crashed in each of the above; see tdw_look_at_message()

$node->start;
foreach my $point ('doublewrite-log-write', 'doublewrite-sync-cycle-synced')
{
	$node->safe_psql(
		'postgres', qq{
		DELETE FROM a WHERE id = 3; INSERT INTO a VALUES (3);
		SELECT dw_evict('a'), points_fail_at('$point', 'EIO', 1, 2)});
	my ($ret, $stdout, $stderr) = $node->psql(
		'postgres',
		'SELECT dw_drain(); SELECT dw_sync_cycle()',
		on_error_stop => 0);
	like($stderr, qr/error/i, "$point fails");
	is($node->safe_psql('postgres', 'SELECT 1'), 1, '... without a lock');
	$node->safe_psql('postgres',
		"SELECT points_clear('$point'); SELECT dw_drain(); SELECT dw_sync_cycle()"
	);
}
$node->stop;

done_testing();
