
# Copyright (c) 2025, PostgreSQL Global Development Group

# VACUUM FULL and CLUSTER remove versions of rows, and freeze others.  A snapshot of a
# standby that is older than the transactions which made these versions must not read what
# they leave: it would miss rows, or see rows too early.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', 'autovacuum = off');
$primary->start;
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = 0');
$standby->start;

$primary->safe_psql(
	'postgres', q{
CREATE TABLE t AS SELECT i FROM generate_series(1, 10) i;
CREATE UNIQUE INDEX t_i ON t (i);
CREATE TABLE other (i int);
});

# Have the primary run $change while the standby has a snapshot.  Returns what $count says
# in that snapshot, or that it is in the way of replay.
sub seen_after
{
	my ($change, $count) = @_;

	$primary->wait_for_replay_catchup($standby);
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$session->query_safe(
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other');
	my $offset = -s $standby->logfile;
	$primary->safe_psql('postgres', $_) foreach @$change;
	$primary->wait_for_replay_catchup($standby);
	my $seen = eval { $session->query($count) };
	eval { $session->quit };
	return 'conflict'
	  if slurp_file($standby->logfile, $offset) =~
	  /User query might have needed to see row versions that must be removed/;
	return $seen;
}

my $count = 'SELECT count(*) FROM t';

foreach my $rewrite (
	'VACUUM FULL t',
	'SET enable_indexscan = off; CLUSTER t USING t_i',
	'SET random_page_cost = 0; CLUSTER t USING t_i')
{
	is(seen_after([ 'INSERT INTO t VALUES (11)', $rewrite ], $count),
		'conflict', "$rewrite: no snapshot sees a row too early");
	is(seen_after([ 'DELETE FROM t WHERE i = 11', $rewrite ], $count),
		'conflict', "$rewrite: no snapshot misses a row that was deleted");
	is(seen_after([ 'UPDATE t SET i = i + 20', $rewrite ], $count),
		'conflict', "$rewrite: no snapshot sees updated rows too early");
	$primary->safe_psql('postgres', 'UPDATE t SET i = i - 20');
	is(seen_after([ 'INSERT INTO other VALUES (1)', $rewrite ], $count),
		'10', "$rewrite: a snapshot that sees all of the table stays");
}

# What was rolled back no snapshot can see.
is( seen_after(
		[ 'BEGIN; INSERT INTO t VALUES (12); ROLLBACK', 'VACUUM FULL t' ],
		$count),
	'10',
	'a row whose insertion was rolled back is in the way of no snapshot');

# Empty, or without WAL.
$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE UNLOGGED TABLE u AS SELECT 1 AS i',
	'CREATE TEMP TABLE e AS SELECT 1 AS i; DELETE FROM e; VACUUM FULL e',
	'DELETE FROM u; VACUUM FULL u; TRUNCATE t; VACUUM FULL t',
	'VACUUM FULL pg_class; VACUUM FULL pg_database');
$primary->wait_for_replay_catchup($standby);
is($standby->safe_psql('postgres', $count), '0', 'the standby goes on');
$_->stop('fast', fail_ok => 1) foreach ($standby, $primary);

done_testing();
