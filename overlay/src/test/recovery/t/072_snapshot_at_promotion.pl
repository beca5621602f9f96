
# Copyright (c) 2025, PostgreSQL Global Development Group

# A standby is promoted while a transaction of its primary is running.  When recovery has ended,
# and that transaction has not been forgotten yet, a session must not use a snapshot again that
# it has taken before: its xmin precedes that of the session.  Only an assertion shows that.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'Injection points not supported by this build'
  if ($ENV{enable_injection_points} // '') ne 'yes';

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', 'autovacuum = off');
$primary->start;
plan skip_all => 'Extension injection_points not installed'
  unless $primary->check_extension('injection_points');
$primary->safe_psql(
	'postgres', q{
CREATE EXTENSION injection_points;
CREATE TABLE t (i int);
CREATE TABLE other (i int);
});
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;

# the session's snapshot of the catalogs is newer than that of its last query
my $running = $primary->background_psql('postgres');
$running->query_safe('BEGIN; INSERT INTO t VALUES (1)');
my $session = $standby->background_psql('postgres');
$session->query_safe('SELECT FROM t');
$primary->safe_psql('postgres', 'INSERT INTO t VALUES (2)');
$primary->wait_for_replay_catchup($standby);
$session->query_safe('BEGIN; LOCK TABLE other IN ACCESS SHARE MODE; COMMIT');

$standby->safe_psql('postgres',
	q{SELECT injection_points_attach('recovery-ended', 'wait')});
$standby->safe_psql('postgres', 'SELECT pg_promote(false)');
$standby->wait_for_event('startup', 'recovery-ended');
is( $session->query_safe(
		'SELECT count(*) FROM pg_class WHERE relname = $$other$$'),
	'1',
	'query when recovery has ended');
$standby->safe_psql('postgres',
	q{SELECT injection_points_detach('recovery-ended'), injection_points_wakeup('recovery-ended')}
);
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'timed out waiting for the promotion';
is($standby->safe_psql('postgres', 'SELECT i FROM t'),
	'2', 'the promoted server shows what was committed');
$session->quit;
$running->quit;
$_->stop foreach ($standby, $primary);

done_testing();
