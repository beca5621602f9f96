
# Copyright (c) 2025, PostgreSQL Global Development Group

# A process that needs one page after the other of a relation which have not been redone
# yet has redo of many under way at once, and takes nothing from what workers announce ahead;
# one that needs a single page does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

# Workers redo what is asked for, and nothing else; and else take their time.
my $POINT = 'instant-recovery-only-demands';

my $node = dw_quiet_node(
	'ranges', conf => qq{
instant_recovery = on
recovery_workers = 1
maintenance_io_concurrency = 16
test_points.fail_at = '$POINT:EIO, instant-recovery-slowly:EIO'
});
my @tables = ('scanned', 'many', 'single');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_prewarm');
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE $_ (i int, f text) WITH (fillfactor = 50);
	INSERT INTO $_ SELECT g, repeat('x', 1000) FROM generate_series(1, 900) g}
) foreach ('warm', @tables);
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "UPDATE $_ SET i = i + 1") foreach @tables;
$node->stop('immediate');
ok(dw_poll_start($node), 'server starts');

# What catalogs these need has been redone when they are called again.
my ($session, $monitor) =
  map { $node->background_psql('postgres', on_error_stop => 0) } (1 .. 2);
my $find = q{FROM pg_stat_activity WHERE backend_type = 'recovery worker'};

sub scan
{
	my ($table, $from, $to) = @_;

	return "SELECT pg_prewarm('$table', 'buffer', 'main', $from, $to)";
}

sub figure
{
	return $monitor->query_safe("SELECT dw_figure('instant_pages_$_[0]')");
}

sub one_page
{
	return "SELECT count(*) FROM $_[0] WHERE ctid = '(7,1)'";
}

$session->query_safe($_)
  foreach (scan('warm', 0, 9),
	one_page('warm'), map { "EXPLAIN SELECT * FROM $_" } @tables);
figure('demanded');

# The worker waits whenever it has redone a page.
my $REDONE = 'instant-recovery-page-redone';

sub hold
{
	$monitor->query_safe("SELECT injection_points_attach('$REDONE', 'wait')");
	return;
}

# One page more
sub wake
{
	$monitor->query(
		"SELECT injection_points_wakeup('$REDONE') $find AND wait_event = '$REDONE'"
	);
	$monitor->{stderr} = '';
	return;
}

# All others
sub release
{
	$monitor->query_safe("SELECT injection_points_detach('$REDONE')");
	wake();
	return;
}

hold();
release();

# The scan goes on, and comes to demand so many pages, while the worker redoes one at a time.
# If the worker stood still, then it could stand behind the page that the scan waits for.
$session->query_safe(scan('scanned', 0, 59));
hold();
$session->query_until(qr/begun/,
	"\\echo begun\n" . scan('scanned', 60, 250) . ";\n\\echo ended\n");
my $demanded;
watchdog_until(
	'a scan has many pages demanded',
	sub {
		$demanded = figure('demanded');
		return 1 if $demanded >= 32;
		wake();
		return;
	});
release();
$session->query_until(qr/ended/, '');
cmp_ok($demanded, '>=', 32, 'a scan has many pages demanded at once');
cmp_ok($demanded, '<=', 64, '... but no more than are announced');

# Workers announce more and more ahead while no session needs a page alone; page by page,
# so that they don't come to the last one.
hold();
$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
watchdog_until(
	'workers announce pages ahead',
	sub {
		return 1 if figure('ahead') >= 30;
		wake();
		return;
	});
$monitor->query_safe("SELECT injection_points_attach('$POINT', 'error')");
release();
my $ahead = figure('ahead');
cmp_ok($ahead, '>=', 30, 'workers announce pages ahead');
$session->query_safe(scan('many', 0, 130));
cmp_ok(figure('ahead'), '>=', int($ahead / 2),
	'... and half as many when a scan has begun, but no fewer as it goes on');
$ahead = figure('ahead');
$session->query_safe(one_page('single'));
cmp_ok(figure('ahead'), '<', $ahead,
	'... and fewer when a session has needed one page');
$_->quit foreach ($session, $monitor);
$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
$node->wait_for_log(qr/redo is complete/);
is($node->safe_psql('postgres', 'SELECT sum(i) FROM many'),
	406350, 'nothing is lost');
$node->stop;

done_testing();
