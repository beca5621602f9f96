
# Copyright (c) 2026, PostgreSQL Global Development Group

# The background writer cleans buffers ahead of redo while redo is behind, and
# leaves pages alone that are going to be changed again while redo keeps up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 8000) i;
	CREATE INDEX ON wide (id);
	VACUUM wide;
	CHECKPOINT;
});
$primary->backup('base');

# A third of the table fits into shared buffers.  In normal operation the
# background writer writes one page each ten seconds.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', xlp_wait_conf() . q{
autovacuum = off
shared_buffers = 4MB
bgwriter_lru_maxpages = 1
bgwriter_delay = 10s
});
$standby->start;

sub cleaned
{
	return $standby->safe_psql('postgres',
		'SELECT buffers_clean FROM pg_stat_bgwriter');
}

# --- Each transaction waits until the standby has replayed it

$primary->append_conf('postgresql.conf', q{synchronous_standby_names = '*'});
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT sync_state = 'sync' FROM pg_stat_replication")
  or die;
$primary->safe_psql(
	'postgres', q{
	SET synchronous_commit = remote_apply;
	DO $$
	BEGIN
		FOR n IN 1 .. 300 LOOP
			UPDATE wide SET v = v + 1
				WHERE id IN (SELECT (hashint4(n * 100 + i) & 65535) % 8000 + 1
							 FROM generate_series(1, 20) i);
			COMMIT;
		END LOOP;
	END
	$$;
});
my $keeping_up = cleaned();
cmp_ok($keeping_up, '<', 100,
	"redo keeps up: pages are not written ahead of it ($keeping_up)");

# --- There is a lot of WAL to replay when the standby starts

$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$primary->safe_psql(
	'postgres', q{
	SET synchronous_commit = local;
	UPDATE wide SET v = v + 1;
	UPDATE wide SET v = v + 1;
});
$primary->wait_for_catchup($standby, 'flush');
$standby->stop;
$standby->start;
$primary->wait_for_catchup($standby);

# Its statistics are reported with its next round.
my $behind = cleaned() - $keeping_up;
cmp_ok($behind, '>', 500,
	"redo is behind: buffers are cleaned ahead of it ($behind)");
$standby->stop;

done_testing();
