
# Copyright (c) 2025, PostgreSQL Global Development Group

# A transaction has committed but waits for a synchronous standby when the primary logs
# which transactions run.  A standby that begins there must show what it has done, for it
# replays the removal of what the transaction has replaced.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
checkpoint_timeout = 1h
bgwriter_delay = 10s
bgwriter_lru_maxpages = 0
});
$primary->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');

$primary->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS i');
$primary->backup('b');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', $_)
  foreach (q{ALTER SYSTEM SET synchronous_standby_names = 'none'},
	'SELECT pg_reload_conf()');
my $session = $primary->background_psql('postgres');
$session->query_until(qr/begin/, "\\echo begin\nUPDATE t SET i = 2;\n");
$primary->poll_query_until('postgres',
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'})
  or die 'timed out waiting for the transaction to wait';
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$standby->restart;
$primary->safe_psql('postgres', $_)
  foreach ('ALTER SYSTEM RESET synchronous_standby_names',
	'SELECT pg_reload_conf()');
$session->quit;
$primary->safe_psql('postgres', $_)
  foreach ('VACUUM (TRUNCATE off) t', 'SELECT pg_switch_wal()');
$primary->wait_for_replay_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT i FROM t'),
	'2', 'waited: the standby shows the row');
$_->stop('fast', fail_ok => 1) foreach ($standby, $primary);

done_testing();
