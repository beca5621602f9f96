
# Copyright (c) 2025, PostgreSQL Global Development Group

# A checkpoint_timeout that is shorter than the time after which a restartpoint is tried
# again: the last checkpoint is not in the future.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'no process can be stopped on Windows' if $windows_os;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
checkpoint_timeout = 1s
checkpoint_warning = 1h
max_wal_size = 32MB
log_min_messages = debug2
});
$standby->start;
$node->wait_for_catchup($standby);

# There is no checkpoint to make a restartpoint of.
$standby->wait_for_log(qr/skipping restartpoint/);

# Stop the checkpointer while it has nothing to do: it holds no lock then.
my $checkpointer = q{
	SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'checkpointer' AND wait_event = 'CheckpointerMain'};
my $stopped = '';
foreach my $try (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	my $pid = $standby->safe_psql('postgres', $checkpointer);

	if ($pid ne '')
	{
		kill('STOP', $pid);
		$stopped = $standby->safe_psql('postgres', $checkpointer);
		last if $stopped eq $pid;
		kill('CONT', $pid);
	}
	usleep(100_000);
}
die 'the checkpointer has always something to do' if $stopped eq '';

# After the promotion WAL asks for a checkpoint before the first one can begin.
$standby->promote;
$standby->safe_psql('postgres',
	"SELECT pg_logical_emit_message(true, 'test', 'm'); SELECT pg_switch_wal()"
) foreach (1 .. 4);
kill('CONT', $stopped);
my $message =
  qr/checkpoints are occurring too frequently \((-?\d+) seconds? apart\)/;
$standby->wait_for_log($message);
my ($seconds) = slurp_file($standby->logfile) =~ $message;
cmp_ok($seconds, '>=', 0, "checkpoints are $seconds s apart");
$standby->stop;
$node->stop;

done_testing();
