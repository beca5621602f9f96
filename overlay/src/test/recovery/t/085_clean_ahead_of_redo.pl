
# Copyright (c) 2025, PostgreSQL Global Development Group

# The background writer cleans buffers ahead of redo while redo is behind, and
# leaves pages alone that are going to be changed again while redo keeps up.
#
# Both are seen in counters, with redo made to wait where that matters: how far
# one process gets while another one works depends on which gets the processor.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

if ($ENV{enable_injection_points} ne 'yes')
{
	plan skip_all => 'Injection points not supported by this build';
}
plan skip_all => 'no process can be stopped on Windows' if $windows_os;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'test_points'
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
max_wal_size = 1GB
wal_keep_size = 256MB
});
$primary->start;
$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE EXTENSION test_points', q{
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 8000) i;
	CREATE INDEX ON wide (id)},
	'VACUUM',
	'CHECKPOINT');
$primary->backup('base');

# A third of the table fits into shared buffers.  Redo itself reads all blocks, so
# it is redo that meets dirty victims.  The background writer makes a round every
# ten seconds, when a batch of 64 pages has been staged, and when it is woken up.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
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

# Stop the background writer while it has nothing to do: it holds no lock then.
sub stop_bgwriter
{
	my $idle = q{
		SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'background writer' AND wait_event_type = 'Activity'};

	foreach my $try (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $pid = $standby->safe_psql('postgres', $idle);

		if ($pid ne '')
		{
			kill('STOP', $pid);
			return $pid if $standby->safe_psql('postgres', $idle) eq $pid;
			kill('CONT', $pid);
		}
		usleep(100_000);
	}
	die 'the background writer has always something to do';
}

# --- Redo has been waiting whenever the background writer looks: it stands still while
# --- redo works

$primary->append_conf('postgresql.conf', q{synchronous_standby_names = '*'});
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT sync_state = 'sync' FROM pg_stat_replication")
  or die;
my $written = q{
	SELECT sum(write_bytes) / current_setting('block_size')::int FROM pg_stat_io
	WHERE backend_type = 'background writer' AND object = 'relation'};
my $before = $standby->safe_psql('postgres', $written);
foreach my $n (1 .. 30)
{
	my $allocated = bgwriter('buffers_alloc');
	my $stopped = stop_bgwriter();

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
	kill('CONT', $stopped);

	# it reports what has been allocated in each of its rounds
	$standby->reload;
	$standby->poll_query_until('postgres',
		"SELECT buffers_alloc > $allocated FROM pg_stat_bgwriter")
	  or die;
}
cmp_ok(
	$standby->safe_psql('postgres', $written),
	'>',
	$before + 500,
	'redo has evicted dirty pages, which the background writer has written');
is(bgwriter($ahead), 0, 'redo keeps up: pages are not written ahead of it');

# --- There is a lot of WAL to replay when the standby starts, and redo does not
# --- come to its end before it is allowed to

$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'")
  or die;
$primary->safe_psql('postgres', $_)
  foreach (
	q{
	SET synchronous_commit = local;
	UPDATE wide SET v = v + 1;
	UPDATE wide SET v = v + 1},
	q{
	SET synchronous_commit = local;
	SELECT points_log_record();
	CREATE TABLE last ()});
$primary->wait_for_catchup($standby, 'flush');
$standby->stop;
$standby->append_conf('postgresql.conf',
	q{test_points.pause_at = 'test-points-redo'});
my $offset = -s $standby->logfile;
$standby->start;
$standby->wait_for_log(qr/paused at injection point "test-points-redo"/,
	$offset);
ok( $standby->poll_query_until(
		'postgres', "SELECT $ahead > 0 FROM pg_stat_bgwriter"),
	'redo is behind: buffers are cleaned ahead of it');
append_to_file($standby->data_dir . '/test_points.resume', '');
$primary->wait_for_catchup($standby);
$standby->stop;
$primary->stop;

done_testing();
