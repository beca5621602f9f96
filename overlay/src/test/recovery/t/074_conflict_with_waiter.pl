
# Copyright (c) 2025, PostgreSQL Global Development Group

# A session of a standby that keeps replay waiting by its snapshot, and waits for a lock
# that replay holds, would wait for ever, and so would replay.

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
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = -1');
$standby->start;

# Return a session of the standby that has a snapshot.
sub session_with_snapshot
{
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$session->query_safe(
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM s');
	return $session;
}

$primary->safe_psql(
	'postgres', q{
CREATE TABLE s (i int);
CREATE TABLE locked AS SELECT 1 AS i;
CREATE TABLE vacuumed AS SELECT i FROM generate_series(1, 10) i;
});
$primary->wait_for_replay_catchup($standby);

# Replay gets hold of a lock, for which a session waits that has an older snapshot.
my $session = session_with_snapshot();
$primary->safe_psql('postgres', 'DELETE FROM vacuumed WHERE i > 5');
my $locker = $primary->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE locked');
$primary->safe_psql('postgres', 'INSERT INTO s VALUES (1)');
$primary->wait_for_replay_catchup($standby);
$session->query_until(qr/asked/,
	"\\echo asked\nSELECT count(*) FROM locked;\n");
$standby->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'locked'::regclass}
) or die 'timed out waiting for the session to wait for the lock';

# Now replay is to wait for the snapshot.
my $offset = -s $standby->logfile;
$primary->safe_psql('postgres', 'VACUUM (TRUNCATE off) vacuumed');
$standby->wait_for_log(qr/canceling statement due to conflict with recovery/,
	$offset);
$primary->wait_for_replay_catchup($standby);
pass('a session that waits for replay is canceled, and replay goes on');
$_->quit foreach ($session, $locker);

# Replay waits for a session that does not wait for it.
$session = session_with_snapshot();
$primary->safe_psql('postgres', $_)
  foreach ('DELETE FROM vacuumed', 'VACUUM (TRUNCATE off) vacuumed');
$standby->poll_query_until('postgres',
	q{SELECT wait_event = 'RecoveryConflictSnapshot' FROM pg_stat_activity WHERE backend_type = 'startup'}
) or die 'timed out waiting for replay to wait';
is($session->query_safe('SELECT count(*) FROM vacuumed'),
	'5', 'a session that does not wait for replay goes on');
$session->query_safe('COMMIT');
$primary->wait_for_replay_catchup($standby);
$session->quit;
$_->stop('fast', fail_ok => 1) foreach ($standby, $primary);

done_testing();
