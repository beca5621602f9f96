
# Copyright (c) 2025, PostgreSQL Global Development Group

# The background writer cleans buffers ahead of redo while redo is behind, and
# leaves pages alone that are going to be changed again while redo keeps up.
#
# Both are seen in counters, with redo made to wait where that matters: how far
# one process gets while another one works depends on which gets the processor.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use lib "$FindBin::RealBin/../../test_doublewrite/t";

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION test_doublewrite CASCADE;
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 8000) i;
	CREATE INDEX ON wide (id);
	CREATE TABLE dropped (id int);
	VACUUM;
	CHECKPOINT;
});
$primary->backup('base');

# A third of the table fits into shared buffers.  Redo itself reads all blocks, so
# it is redo that meets dirty victims.  The background writer makes a round every
# ten seconds, when a batch of 64 pages has been staged, and when it is woken up.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf',
	xlp_wait_conf() . q{
autovacuum = off
wal_pipeline = off
shared_buffers = 4MB
double_write_stage_size = 8MB
bgwriter_lru_maxpages = 1
bgwriter_delay = 10s
});
$standby->start;

# Pages that were cleaned ahead of redo: in normal operation a round of the
# background writer ends at its first page, and that is counted.
my $ahead = 'buffers_clean - maxwritten_clean';

sub bgwriter
{
	my ($figure) = @_;

	return $standby->safe_psql('postgres',
		"SELECT $figure FROM pg_stat_bgwriter");
}

# --- Redo has been waiting whenever the background writer looks: it stands still while
# --- redo works

$primary->append_conf('postgresql.conf', q{synchronous_standby_names = '*'});
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT sync_state = 'sync' FROM pg_stat_replication")
  or die;
my $staged = $standby->safe_psql('postgres', 'SELECT staged FROM dw_stats()');
foreach my $n (1 .. 30)
{
	my $allocated = bgwriter('buffers_alloc');
	my @stopped = dw_stop_processes($standby, 'background writer');

	# so few pages that they are no batch
	$primary->safe_psql(
		'postgres', qq{
		SET synchronous_commit = remote_apply;
		UPDATE wide SET v = v + 1
			WHERE id IN (SELECT (hashint4($n * 100 + i) & 65535) % 8000 + 1
						 FROM generate_series(1, 50) i)});
	$standby->poll_query_until(
		'postgres',
		q{SELECT wait_event = 'RecoveryWalStream' FROM pg_stat_activity
			WHERE backend_type = 'startup'}) or die;
	$standby->safe_psql('postgres', 'SELECT dw_drain()');
	kill('CONT', @stopped);

	# it reports what has been allocated in each of its rounds
	$standby->reload;
	$standby->poll_query_until('postgres',
		"SELECT buffers_alloc > $allocated FROM pg_stat_bgwriter")
	  or die;
}
cmp_ok(
	$standby->safe_psql('postgres', 'SELECT staged FROM dw_stats()'),
	'>',
	$staged + 500,
	'redo has evicted dirty pages');
is(bgwriter($ahead), 0, 'redo keeps up: pages are not written ahead of it');

# --- There is a lot of WAL to replay when the standby starts, and redo does not
# --- come to its end before it is allowed to

xlp_pause($standby);
$primary->safe_psql(
	'postgres', q{
	SET synchronous_commit = local;
	UPDATE wide SET v = v + 1;
	UPDATE wide SET v = v + 1;
	DROP TABLE dropped;
});
$primary->wait_for_catchup($standby, 'flush');
$standby->stop;
$standby->append_conf('postgresql.conf',
	q{test_points.pause_at = 'doublewrite-relations-discarded'});
my $offset = -s $standby->logfile;
$standby->start;
$standby->wait_for_log(
	qr/paused at injection point "doublewrite-relations-discarded"/, $offset);
ok( $standby->poll_query_until(
		'postgres', "SELECT $ahead > 0 FROM pg_stat_bgwriter"),
	'redo is behind: buffers are cleaned ahead of it');
append_to_file($standby->data_dir . '/test_points.resume', '');
$primary->wait_for_catchup($standby);
$standby->stop;

done_testing();
