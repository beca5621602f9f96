
# Copyright (c) 2025, PostgreSQL Global Development Group

# Monitoring answers when storage hangs: a flusher stands still with the flush
# lock held, and every view of the extension can be read.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

if ($ENV{enable_injection_points} ne 'yes')
{
	plan skip_all => 'Injection points not supported by this build';
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = double_writes
checkpoint_timeout = 1h
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres',
	'CREATE EXTENSION pg_doublewrite_stats; CREATE EXTENSION test_doublewrite CASCADE;
	 CREATE EXTENSION injection_points;
	 CREATE TABLE t AS SELECT generate_series(1, 1000) AS i');

my @views = split(
	/\n/,
	$node->safe_psql(
		'postgres', q{
	SELECT c.oid::regclass FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
	 WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind = 'v'
	   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_doublewrite_stats')
	 ORDER BY 1}));
cmp_ok(scalar(@views), '>=', 8, 'views of the extension are known');
$node->safe_psql('postgres', "SELECT * FROM $_") foreach @views;

# No session reads a table any more: it would wait for a page, too.
my $reader = $node->background_psql('postgres');
$reader->query_safe("SELECT count(*) FROM $_") foreach @views;
my $looker = $node->background_psql('postgres', on_error_stop => 0);
$looker->query_safe('SELECT 1');

$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-home-written', 'wait')});
my $flusher = $node->background_psql('postgres');
$flusher->query_until(
	qr/begin/, q{
\echo begin
UPDATE t SET i = i + 1;
CHECKPOINT;
});
my $held =
  q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'doublewrite-home-written'};

# Look in a session that exists already
watchdog_until('a process flushes', sub { $looker->query_safe($held) >= 1 });

foreach my $view (@views)
{
	# a wait for an LWLock ends neither by timeout nor by cancel
	$reader->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	my $rows = eval { $reader->query_safe("SELECT count(*) FROM $view") };
	if (!defined $rows)
	{
		fail("$view answers");
		diag $looker->query_safe(
			q{SELECT string_agg(concat_ws(' ', backend_type, wait_event, query), E'\n') FROM pg_stat_activity}
		);
		last;
	}
	pass("$view answers");
}

# Detach first, so that no process stops there again.  More than one process may wait
# there, and each call wakes up one of them only, or finds none.
$looker->query_safe(
	q{SELECT injection_points_detach('doublewrite-home-written')});
watchdog_until(
	'the flusher has gone on',
	sub {
		$looker->query(
			q{SELECT injection_points_wakeup('doublewrite-home-written')});
		return $looker->query($held) == 0;
	});
$_->quit foreach ($flusher, $reader, $looker);
is( $node->safe_psql('postgres', 'SELECT sum(i) FROM t'),
	1000 * 1001 / 2 + 1000,
	'work goes on');
$node->stop;
done_testing();
