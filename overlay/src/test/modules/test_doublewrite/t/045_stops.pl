
# Copyright (c) 2025, PostgreSQL Global Development Group

# A stop without a restartpoint, and the end of protection without a checkpoint, make durable
# what has gone home; and a stop is over when the marker has gone (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $library = "$dir/test_doublewrite_clock.so";

sub set
{
	my ($node, $setting, $value) = @_;

	$node->append_conf('postgresql.conf', "$setting = '$value'");
	return;
}

my $primary = dw_new_node('primary', init => { allows_streaming => 1 });
my $standby = PostgreSQL::Test::Cluster->new('standby');

$primary->start;
dw_extensions($primary);
$primary->backup('backup');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 1000)');
$primary->wait_for_replay_catchup($standby);
$standby->stop;

# A standby that is stopped without a restartpoint starts again as after a clean stop, so
# the stop syncs what has gone home, of which the log may have no copy.
my $offset;

sub change_on_standby
{
	$standby->start;
	$primary->safe_psql('postgres', 'UPDATE t SET generate_series = 0');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
	$offset = -s $standby->logfile;
	return;
}

my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
set($standby, 'log_min_messages', 'debug1');
change_on_standby();
$standby->stop;
my $log = slurp_file($standby->logfile, $offset);
unlike(
	$log,
	qr/restartpoint complete/,
	'a standby is stopped without a restartpoint');
like(
	$log,
	qr/checkpoint sync: .* file=\Q$path\E /,
	'... and syncs what has gone home');

# It is stopped when the marker has gone, whatever pg_control says.
set($standby, 'test_points.crash_at', 'doublewrite-sync-removals');
change_on_standby();
$standby->stop('fast', fail_ok => 1);
dw_wait_for_exit($standby);
is( dw_control($standby, 'Database cluster state'),
	'shut down in recovery',
	'a stop is cut short');
command_fails_like(
	[ 'pg_checksums', '--check', $standby->data_dir ],
	qr/shutdown of the cluster was cut short/,
	'... which pg_checksums sees');
command_fails_like(
	[
		'pg_rewind', '--dry-run', '--no-ensure-shutdown',
		'--source-server' => $primary->connstr('postgres'),
		'--target-pgdata' => $standby->data_dir
	],
	qr/target server must be shut down cleanly/,
	'... and pg_rewind');
set($standby, 'test_points.crash_at', '');
SKIP:
{
	skip 'no library that sees syncs', 1 unless -e $library;
	my $syncs = $standby->data_dir . '/test_doublewrite.syncs';

	set($standby, 'recovery_init_sync_method', 'fsync');
	append_to_file($syncs, '');
	{
		local $ENV{LD_PRELOAD} = $library;
		$standby->start;
	}
	like(
		slurp_file($syncs),
		qr{/base/\d+/pg_filenode\.map$}m,
		'... and the next start syncs files, as after a crash');
	unlink($syncs);
	$standby->stop;
}

# Pages that cannot be written home then are left to the next start, as stock leaves dirty
# buffers: that is no failure of the stop (R12).
my $marker = $standby->data_dir . '/backup_label';

$standby->start;
$primary->safe_psql('postgres', 'UPDATE t SET generate_series = 2');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres',
	"SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000)");
isnt($standby->psql('postgres', 'SELECT dw_evict_all(), dw_drain()'),
	0, 'pages of a standby cannot be written');
$offset = -s $standby->logfile;
ok($standby->stop('fast', fail_ok => 1), '... and it is stopped');
$log = slurp_file($standby->logfile, $offset);
like(
	$log,
	qr/leaving pages that could not be written to the next start/,
	'... and says so');
unlike(
	$log,
	qr/FATAL:  could not|restartpoint complete|abnormal/,
	'... and nothing worse');
ok(-e $marker, '... and the marker stays');
command_fails_like(
	[ 'pg_checksums', '--check', $standby->data_dir ],
	qr/shutdown of the cluster was cut short/,
	'... which pg_checksums sees');
$standby->start;
is( $standby->safe_psql(
		'postgres', 'SELECT count(*), sum(generate_series) FROM t'),
	'1000|2000',
	'... and the next start recovers them');
$standby->stop;
ok(!-e $marker, '... and its stop removes the marker');

# A server that stops using the log without a checkpoint syncs what has gone home, too.
change_on_standby();
set($standby, 'io_torn_pages_protection', 'off');
$standby->reload;
$standby->wait_for_log(qr/torn page protection is off/, $offset);
$log = slurp_file($standby->logfile, $offset);
unlike(
	$log,
	qr/restartpoint complete/,
	'protection is switched off without a restartpoint');
like(
	$log,
	qr/checkpoint sync: .* file=\Q$path\E /,
	'... and what has gone home is synced');
$standby->stop;

# The end of recovery can't do that for pages that others have written atomically: it
# leaves the switch to the checkpointer, which has failed to make it.
set($standby, 'io_torn_pages_protection', 'atomic_writes');
set($standby, 'test_doublewrite.pretend_atomic', 'on');
change_on_standby();
$standby->safe_psql('postgres',
	"SELECT points_fail_at('doublewrite-switching-off', 'EIO', 1, 1000000)");
set($standby, 'io_torn_pages_protection', 'off');
$standby->reload;
$standby->wait_for_log(qr/ERROR: .*doublewrite-switching-off/, $offset);
$primary->safe_psql('postgres', 'UPDATE t SET generate_series = 1');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
$offset = -s $standby->logfile;
$standby->promote;
is($standby->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
	't',
	'a promotion leaves it to the checkpointer to switch protection off');
$standby->safe_psql('postgres',
	"SELECT points_clear('doublewrite-switching-off')");
$standby->wait_for_log(qr/torn page protection is off/, $offset);
like(
	slurp_file($standby->logfile, $offset),
	qr/checkpoint sync: .* file=\Q$path\E .*torn page protection is off/s,
	'... and what has gone home is synced before');
$standby->stop;
$primary->stop;

done_testing();
