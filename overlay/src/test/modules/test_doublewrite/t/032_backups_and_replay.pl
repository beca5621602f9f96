# Copyright (c) 2025, PostgreSQL Global Development Group

# Four base backups of a standby read its files at once, and hold up home writes
# for each read.  Replay, which needs room in the stage, gets its turn: each of
# them reads at most once before the next batch goes home.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $POINT = 'doublewrite-home-writes-held';

my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
	INSERT INTO t SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 600) i;
	CHECKPOINT});
$primary->backup('b');

# Replay finds few clean buffers there, and little room in the stage
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
shared_buffers = 2MB
double_write_stage_size = 128kB
});
$standby->start;

# so that backups begin there, and need no restartpoint of their own
dw_restartpoint($primary, $standby);

# One session, which has read all it needs: it must not want a buffer itself while
# home writes are held up.  A process that is to be woken may go on by itself meanwhile,
# which is an error of that.
my $session = $standby->background_psql('postgres', on_error_stop => 0);

sub holders
{
	return $session->query(
		"SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE wait_event = '$POINT'"
	);
}

sub writers_waiting
{
	return $session->query(
		q{SELECT count(*) FROM pg_stat_get_activity(NULL)
		  WHERE wait_event = 'DoubleWriteFlush' AND backend_type <> 'walsender'});
}

sub figures
{
	return $session->query(
		'SELECT batches, pg_last_wal_replay_lsn() - pg_lsn $$0/0$$ FROM dw_stats()'
	);
}

sub batches
{
	return (figures() =~ /^(\d+)/)[0];
}

# Bytes that backups have read and passed on
sub bytes_read
{
	return $session->query(
		q{SELECT sum(param3) FROM pg_stat_get_progress_info('BASEBACKUP')});
}

sub wake_one
{
	return $session->query("SELECT injection_points_wakeup('$POINT')");
}

# warm up
$session->query("SELECT injection_points_wakeup('$POINT') WHERE false");
$session->query("SELECT injection_points_attach('$POINT-unused', 'wait')");
$session->query("SELECT injection_points_detach('$POINT-unused')");
holders();
writers_waiting();
figures();
bytes_read();

$session->query("SELECT injection_points_attach('$POINT', 'wait')");
my @backups;
my $output = '';
foreach my $i (1 .. 4)
{
	push @backups,
	  IPC::Run::start(
		[
			'pg_basebackup', '--no-sync',
			'--checkpoint' => 'fast',
			'--wal-method' => 'none',
			'--pgdata' => $standby->backup_dir . "/b$i",
			'--dbname' => $standby->connstr('postgres')
		],
		'<' => \undef,
		'>' => \$output,
		'2>' => \$output);
}
watchdog_until('four backups read', sub { holders() == 4 });
$primary->safe_psql('postgres', 'UPDATE t SET v = 1');
my $lsn = $primary->lsn('insert');

my ($first_lsn) = figures() =~ /\|(\d+)/;
foreach my $turn (1 .. 5)
{
	watchdog_until('replay needs room',
		sub { writers_waiting() > 0 && holders() > 0 });
	my $batches = batches();
	my $wakes = 0;

	# a process that has read, and wants to read more, waits for the batch
	watchdog_until(
		'a batch goes home',
		sub {
			return 1 if batches() > $batches || $wakes > 20;
			if (holders() > 0)
			{
				my $read = bytes_read();

				# It may take its time; not to be woken up twice for one read.
				wake_one();
				$wakes++;
				watchdog_until('the backend that was woken up has read',
					sub { bytes_read() > $read || batches() > $batches });
			}
			return 0;
		});
	cmp_ok($wakes, '<=', 8,
		"turn $turn: a batch goes home when each backup has read a bit")
	  or BAIL_OUT('replay waits for the end of backups');
}
my ($now_lsn) = figures() =~ /\|(\d+)/;
cmp_ok($now_lsn, '>', $first_lsn, 'replay makes progress');
is(scalar(grep { $_->pumpable } @backups), 4, 'four backups are under way');

$session->query("SELECT injection_points_detach('$POINT')");
watchdog_until(
	'all go on',
	sub {
		return 1 if holders() == 0;
		wake_one();
		return 0;
	});
$primary->wait_for_catchup($standby, 'replay', $lsn);
$session->quit;
foreach my $backup (@backups)
{
	watchdog_until(
		'backup has ended',
		sub {
			$backup->pump_nb if $backup->pumpable;
			return !$backup->pumpable;
		});
	ok($backup->finish, 'a backup has succeeded') or diag($output);
}
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t WHERE v = 1'),
	600, 'all is replayed');
$standby->stop;
$primary->stop;

done_testing();
