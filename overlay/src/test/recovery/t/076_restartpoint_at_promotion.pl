
# Copyright (c) 2025, PostgreSQL Global Development Group

# A standby is promoted just before a restartpoint moves the redo pointer.  Records inserted until
# then have no images of pages that were changed before the restartpoint's redo pointer, so that
# must not become the one from which recovery begins.

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
$primary->safe_psql('postgres',
	'CREATE EXTENSION injection_points; CREATE TABLE t (i int)');
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
log_checkpoints = on
log_min_messages = debug2
});
$standby->start;

# the page of t was changed after the standby's redo pointer, and before the one to come
$primary->safe_psql('postgres', 'INSERT INTO t VALUES (1)');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);

my $point = 'restartpoint-before-redo-pointer';
my $logstart = -s $standby->logfile;
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('$point', 'wait')");
my $restartpoint = $standby->background_psql('postgres');
$restartpoint->query_until(qr/begins/, "\\echo begins\nCHECKPOINT;\n");
$standby->wait_for_event('checkpointer', $point);
$primary->stop;
$standby->promote;
$standby->safe_psql('postgres', 'UPDATE t SET i = 2');
$standby->safe_psql('postgres',
	"SELECT injection_points_detach('$point'), injection_points_wakeup('$point')"
);
$standby->wait_for_log(
	qr/skipping restartpoint, recovery has already ended|restartpoint complete/,
	$logstart);
ok(!$standby->log_contains(qr/restartpoint starting/, $logstart),
	'no restartpoint begins once recovery has ended');
$restartpoint->quit;
$standby->stop('immediate');
$standby->start;
is($standby->safe_psql('postgres', 'SELECT i FROM t'),
	'2', 'the promoted server after a crash');
$standby->stop;

done_testing();
