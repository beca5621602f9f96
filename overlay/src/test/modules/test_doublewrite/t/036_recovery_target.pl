
# Copyright (c) 2025, PostgreSQL Global Development Group

# How long crash recovery would take: what is counted for that, what is learnt,
# the file in which it is kept, and checkpoints that a target asks for.  The costs
# are made up, so that nothing depends on how fast this machine is.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use JSON::PP;
use POSIX qw(mkfifo);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

dw_require_injection_points();

# The file, see doublewrite_forecast.h
use constant {
	FILE => 'pg_stat_tmp/crash_recovery',
	MAGIC => 'PGCRREC1',
	FORECAST_LEN => 128,
	REDO_AT => 32,
	RECORD_AT => 512,
	RECORD_LEN => 3184,
	NSEC_AT => 24,
	POWER_AT => 96,
	MS => 1_000_000,
};

my $BLOCKS = 5000;

sub path_of
{
	my ($node) = @_;

	return $node->data_dir . '/' . FILE;
}

sub read_binary
{
	my ($path) = @_;

	open my $fh, '<:raw', $path or return undef;
	local $/;
	my $data = <$fh>;
	close $fh;
	return $data;
}

sub write_binary
{
	my ($path, $data) = @_;

	open my $fh, '>:raw', $path or die "could not open $path: $!";
	print $fh $data;
	close $fh;
	return;
}

# A part of the file with a checksum that is right
sub sealed
{
	my ($part) = @_;
	my $body = substr($part, 0, length($part) - 4);

	return $body . pack('L', dw_crc32c($body));
}

# The file of a stopped server, with something else in its record
sub edit_record
{
	my ($node, $edit) = @_;
	my $data = read_binary(path_of($node));

	is(length($data), RECORD_AT + RECORD_LEN, 'size of the file');
	is(substr($data, RECORD_AT, 8), MAGIC, 'magic of the record');
	my $record = substr($data, RECORD_AT);
	$edit->(\$record);
	write_binary(path_of($node), substr($data, 0, RECORD_AT) . sealed($record));
	return;
}

# Each block to be read takes so many milliseconds, as does one to be restored if
# nothing else is said, and a start a tenth of a second.  One that is written while
# clients wait, and a kB of WAL, take nothing if nothing is said, as all else does.
# Twice as many cost twice as much.
sub set_costs
{
	my ($node, $milliseconds, %other) = @_;
	my $restore = $other{restore} // $milliseconds;
	my $wal = $other{wal} // 0;
	my $write = $other{write} // 0;

	edit_record(
		$node,
		sub {
			my ($record) = @_;

			substr($$record, NSEC_AT, 6 * 8) =
			  pack('q6', 100 * MS, 0, $restore * MS, $wal * MS,
				$milliseconds * MS, $write * MS);
			substr($$record, POWER_AT, 4) = pack('L', 1000);
		});
	return;
}

sub figure
{
	my ($node, $column) = @_;

	return $node->safe_psql('postgres',
		"SELECT $column FROM pg_double_write_recovery");
}

# Change a row in each of these blocks
sub change
{
	my ($node, $from, $to) = @_;

	$node->safe_psql('postgres',
		"UPDATE t SET v = v + 1 WHERE id BETWEEN $from AND $to");
	return;
}

sub forecast_of
{
	my ($node) = @_;
	my ($stdout, $stderr) = run_command(
		[ 'pg_doublewrite', 'forecast', '--json', $node->data_dir ]);

	return $stdout =~ /^\{/ ? decode_json($stdout) : undef;
}

# Let the checkpointer have written a forecast that is not older than now.
sub wait_for_forecast
{
	my ($node, $blocks) = @_;

	watchdog_until(
		"no forecast of $blocks blocks",
		sub {
			my $forecast = forecast_of($node);

			return $forecast && ($forecast->{blocks_to_read} // -1) >= $blocks;
		});
	return;
}

# The record is saved when clients are in already.
sub wait_for_recoveries
{
	my ($node, $recoveries) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) = $recoveries FROM pg_double_write_recoveries WHERE part = 'total'")
	  or die "no record of $recoveries recoveries";
	return;
}

sub set_target
{
	my ($node, $seconds) = @_;

	$node->append_conf('postgresql.conf', "crash_recovery_target = $seconds");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT coalesce(target_ms, 0) = $seconds * 1000 FROM pg_double_write_recovery")
	  or die 'no target';
	return;
}

# How often the checkpointer comes to a point from now on; nothing happens there.
sub count_hits
{
	my ($node, @points) = @_;

	$node->safe_psql('postgres', "SELECT dw_fail_at('$_', 'EIO', 1000000, 1)")
	  foreach @points;
	return;
}

sub hits
{
	my ($node, $point) = @_;

	return $node->safe_psql('postgres', "SELECT dw_hits('$point')");
}

# Start a server, and do something while the startup process stands at a point.
sub start_paused
{
	my ($node, $point, $meanwhile) = @_;
	my $start = -s $node->logfile;

	$node->append_conf('postgresql.conf', "test_doublewrite.pause_at = '$point'");
	system_or_bail('pg_ctl', '--no-wait', '-s', '-D', $node->data_dir, '-l',
		$node->logfile, '-o', '--cluster-name=' . $node->name, 'start');
	$node->wait_for_log(qr/paused at injection point "$point"/, $start);
	$meanwhile->();
	append_to_file($node->data_dir . '/test_doublewrite.resume', '');
	$node->wait_for_log(qr/ready to accept connections/, $start);
	$node->_update_pid(1);
	$node->append_conf('postgresql.conf', "test_doublewrite.pause_at = ''");
	return;
}

my $node = dw_quiet_node('main',
	init => { allows_streaming => 1 },
	conf => "shared_buffers = 128MB\nautovacuum = off\n");
$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION pg_doublewrite_stats;
	CREATE TABLE t (id int PRIMARY KEY, v int, filler char(700)) WITH (fillfactor = 10);
	INSERT INTO t SELECT n, 0, '' FROM generate_series(1, $BLOCKS) n;
	VACUUM (FREEZE) t;
	CHECKPOINT});
is($node->safe_psql('postgres', "SELECT pg_relation_size('t') / 8192"),
	$BLOCKS, 'a row in each block');

# ----------------------------------------------------------------------
# What is counted
# ----------------------------------------------------------------------

# What a checkpoint under way has copied to the log is restored, not read.
my $CHANGED = 'blocks_to_read + log_pages';

my $before = figure($node, $CHANGED);
cmp_ok($before, '<', 100, 'after a checkpoint there is little to read');
change($node, 1, 300);
my $once = figure($node, $CHANGED);
cmp_ok($once, '>=', $before + 300, 'each block changed counts');
cmp_ok($once, '<', $before + 400, '... once');
change($node, 1, 300);
cmp_ok(figure($node, $CHANGED),
	'<', $once + 20, 'blocks changed again do not');

# While a checkpoint is under way recovery would begin at the old redo pointer.
$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-checkpoint-scanned', 'wait')});
my $checkpoint = $node->background_psql('postgres');
$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
$node->wait_for_event('checkpointer', 'doublewrite-checkpoint-scanned');
change($node, 1, 300);
cmp_ok(figure($node, $CHANGED),
	'<', $once + 100,
	'nor do they if a checkpoint has begun and not completed');
change($node, 301, 500);
my $union = figure($node, $CHANGED);
cmp_ok($union, '>=', $once + 200, 'others do');
cmp_ok($union, '<', $once + 300, '... once');
dw_wake($node, 'doublewrite-checkpoint-scanned');
$checkpoint->quit;
my $after = figure($node, $CHANGED);
cmp_ok($after, '>=', 500, 'the checkpoint has not covered what came after it began');
cmp_ok($after, '<', 600, 'but all before');
$node->safe_psql('postgres', 'CHECKPOINT');
cmp_ok(figure($node, 'blocks_to_read'), '<', 100, 'another one has');

# ----------------------------------------------------------------------
# Without a target nothing is done
# ----------------------------------------------------------------------

my $requested =
  'SELECT num_requested + num_timed FROM pg_stat_checkpointer';
my $checkpoints = $node->safe_psql('postgres', $requested);
count_hits($node, 'crash-recovery-look', 'crash-recovery-file');
foreach (1 .. 3)
{
	change($node, 1, $BLOCKS);
	$node->safe_psql('postgres', 'CHECKPOINT');
}
is(hits($node, 'crash-recovery-look'), 0, 'no target: estimate not looked at');
is(hits($node, 'crash-recovery-file'), 0, 'no target: nothing written');
ok(!-e path_of($node), 'no target: no file');
$node->poll_query_until('postgres', "SELECT ($requested) >= $checkpoints + 3");
is($node->safe_psql('postgres', $requested),
	$checkpoints + 3, 'no target: no checkpoint');
is(figure($node, 'checkpoints_for_target'), 0, '... nor counted as one');
is(figure($node, 'target_ms'), '', 'no target shown');

# A crash teaches what it costs nevertheless, and is said to have taken its time.
change($node, 1, 300);
$node->stop('immediate');
my $offset = -s $node->logfile;
$node->start;
$node->log_check(
	'after a crash',
	$offset,
	log_like => [
		qr/no file "pg_stat_tmp\/crash_recovery": nothing is known/,
		qr/crash recovery took [\d.]+ s, nothing was predicted/,
	]);
wait_for_recoveries($node, 1);
is(figure($node, 'learnt_from'), 1, 'something has been learnt');
$node->stop('immediate');
is(forecast_of($node)->{predicted} ? 1 : 0, 0, 'no target, no forecast');
$node->command_like(
	[ 'pg_doublewrite', 'forecast', $node->data_dir ],
	qr/^There is no forecast of the recovery that follows/m,
	'... as people are told');

# ----------------------------------------------------------------------
# A target that is far away: a forecast is made
# ----------------------------------------------------------------------

unlink(path_of($node)) or die "could not unlink: $!";
$node->append_conf('postgresql.conf', 'crash_recovery_target = 1h');
$node->start;
$node->stop;
is(forecast_of($node)->{recovery_follows} ? 1 : 0, 0,
	'after a clean stop there is nothing to recover from');
edit_record(
	$node,
	sub {
		my ($record) = @_;

		# nothing has been learnt
		substr($$record, 12, 4) = pack('L', 0);
		substr($$record, NSEC_AT + 6 * 8, 6 * 4) = pack('L6', (0) x 6);
	});
set_costs($node, 1);
$node->start;
is(figure($node, 'learnt_from'), 0, 'nothing has been learnt yet');
is(figure($node, 'round(start_ms)'), 100, 'costs are those of the file');
change($node, 1, 4000);
cmp_ok(figure($node, 'estimate_ms'), '>=', 4100, 'the estimate grows');
is(figure($node, 'checkpoint_ms'), 0, 'clients would wait for no checkpoint');
wait_for_forecast($node, 4000);
is(figure($node, 'checkpoints_for_target'), 0, 'no checkpoint yet');

# ----------------------------------------------------------------------
# A crash: predicted and actual
# ----------------------------------------------------------------------

# Meanwhile somebody sets the wall clock forward by an hour.
my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $library = "$dir/test_doublewrite_clock.so";
my $clock_back = $node->data_dir . '/test_doublewrite.clock_back';

$node->stop('immediate');
my $forecast = forecast_of($node);
is($forecast->{recovery_follows} ? 1 : 0, 1, 'the tool says that recovery follows');
cmp_ok($forecast->{blocks_to_read}, '>=', 4000, '... how much there is to read');
cmp_ok($forecast->{milliseconds}{total}, '>=', 4000, '... and how long it will take');
$node->command_like(
	[ 'pg_doublewrite', 'forecast', $node->data_dir ],
	qr/^Crash recovery will take about 4\.\d s.*^  redo: 4\.\d\d s$/ms,
	'forecast for people');

append_to_file($clock_back, '');
$offset = -s $node->logfile;
{
	local $ENV{LD_PRELOAD} = -e $library ? $library : '';
	start_paused($node, 'crash-recovery-file-read',
		sub { unlink($clock_back) or die "could not unlink: $!" });
}
$node->log_check(
	'after a crash',
	$offset,
	log_like => [
		qr/crash recovery took [\d.]+ s, 4\.\d\d s were predicted/,
		qr/redo [\d.]+, 4\.\d\d; checkpoint [\d.]+, 0\.00\.  Blocks read by redo: \d+, \d+/ ]);
wait_for_recoveries($node, 1);
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*), count(DISTINCT finished), count(predicted_ms)
		  FROM pg_double_write_recoveries}),
	'6|1|6',
	'a row in all and one for each part');
my ($predicted, $actual, $ms) = split /\|/, $node->safe_psql(
	'postgres', q{
	SELECT predicted_blocks, actual_blocks, actual_ms FROM pg_double_write_recoveries
	 WHERE part = 'total'});
cmp_ok($predicted, '>=', 4000, "blocks predicted: $predicted");
cmp_ok($actual, '>=', 0.9 * $predicted, "redo has read: $actual");
cmp_ok($actual, '<=', 1.1 * $predicted, '... about as many');
SKIP:
{
	skip 'no library that could stand for the clock', 1 unless -e $library;
	cmp_ok($ms, '<', 3_000_000, 'the clock that somebody sets is not looked at');
}
is(figure($node, 'learnt_from'), 1, 'something has been learnt');
cmp_ok(figure($node, 'redo_ms'), '<', 4000, 'blocks are cheaper than was made up');

# Clients got in before the checkpoint, which then completes.
$node->safe_psql('postgres', 'CHECKPOINT');
cmp_ok(figure($node, 'blocks_to_read'), '<', 100, 'redone blocks are home');

# WAL that changes few blocks costs what it takes to read it, not only processor
# time: here redo waits for something else for a second.
sub insert
{
	my ($node, $table) = @_;

	$node->safe_psql('postgres',
		"CREATE TABLE $table AS SELECT repeat('x', 700) FROM generate_series(1, 8000)");
	return;
}

$node->stop;
set_costs($node, 1);
$node->start;
insert($node, 'first');
cmp_ok(figure($node, 'redo_ms'), '<', 300, 'WAL costs nothing');
$node->stop('immediate');
$node->append_conf('postgresql.conf',
	"test_doublewrite.fail_at = 'xlogpipeline-wait-for-worker:EIO'");
start_paused(
	$node,
	'xlogpipeline-engage',
	sub {
		my $begun = clock_gettime(CLOCK_MONOTONIC);

		watchdog_until('the clock stands still',
			sub { clock_gettime(CLOCK_MONOTONIC) > $begun + 1 });
	});
$node->append_conf('postgresql.conf', "test_doublewrite.fail_at = ''");
wait_for_recoveries($node, 2);
$node->safe_psql('postgres', 'CHECKPOINT');
insert($node, 'second');
cmp_ok(figure($node, 'redo_ms'), '>=', 400, '... or what it takes until it is there');

# ----------------------------------------------------------------------
# Checkpoints that clients wait for
# ----------------------------------------------------------------------

# Crash, do something, and start; returns what was predicted of the checkpoint
sub checkpoint_predicted
{
	my ($node, $between) = @_;

	wait_for_forecast($node, 1000);
	$node->stop('immediate');
	$between->();
	my $start = -s $node->logfile;
	$node->start;
	my ($seconds) =
	  slurp_file($node->logfile, $start) =~ /checkpoint [\d.]+, ([\d.]+)\.  Blocks/;
	return $seconds;
}

$node->stop;
set_costs($node, 1, write => 2);
$node->start;
change($node, 1, 1000);
is(figure($node, 'checkpoint_ms'), 0, 'nothing to wait for');
$node->safe_psql('postgres', 'ALTER SYSTEM SET track_commit_timestamp = on');
$node->reload;
$node->poll_query_until('postgres',
	'SELECT checkpoint_ms >= 2000 FROM pg_double_write_recovery')
  or die 'the setting does not count';
pass('a setting that is going to change makes clients wait');
$node->safe_psql('postgres', 'ALTER SYSTEM SET track_commit_timestamp = off');
$node->reload;
$node->poll_query_until('postgres',
	'SELECT checkpoint_ms = 0 FROM pg_double_write_recovery')
  or die 'the setting still counts';
$node->safe_psql('postgres', 'ALTER SYSTEM RESET track_commit_timestamp');
cmp_ok(
	checkpoint_predicted(
		$node, sub { $node->append_conf('postgresql.conf', 'track_commit_timestamp = on') }),
	'>=', 2, 'a setting that was changed after the crash counts');
cmp_ok(
	$node->safe_psql('postgres',
		'SELECT round(checkpoint_ms) FROM pg_double_write_recovery'),
	'==', 0, '... for one start');

# In single-user mode there is nobody who could make the checkpoint later.
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop;
set_costs($node, 1, write => 2);
$node->start;
change($node, 1, 1000);
wait_for_forecast($node, 1000);
$node->stop('immediate');
my $single = '';
run_log(
	[ 'postgres', '--single', '-D', $node->data_dir, 'postgres' ],
	'<' => \"SELECT 1\n",
	'>' => \my $ignored,
	'2>' => \$single);
like($single, qr/checkpoint [\d.]+, [2-9]\.\d\d\.  Blocks/, 'single-user mode');
is(scalar(@{ forecast_of($node)->{recoveries} }), 4, '... is on record, too');

# A number has been dropped that the OID counter comes to.
$node->start;
$node->safe_psql('postgres', 'CREATE TABLE gone (i int)');
$node->safe_psql('postgres', $_) foreach ('VACUUM FULL gone', 'VACUUM pg_class');
my $number = $node->safe_psql('postgres', q{SELECT pg_relation_filenode('gone')});
$node->stop;
command_ok([ 'pg_resetwal', '-o', $number, $node->data_dir ],
	'OID counter wraps around');
set_costs($node, 1, write => 2);
$node->start;
change($node, 1, 1000);
is(figure($node, 'checkpoint_ms'), 0, 'nothing to wait for');
$node->safe_psql('postgres', 'DROP TABLE gone');
cmp_ok(figure($node, 'checkpoint_ms'), '>=', 2000,
	'a number that comes again makes clients wait');
cmp_ok(checkpoint_predicted($node, sub { }), '>=', 2, '... and they have waited');
$node->safe_psql('postgres', 'CHECKPOINT');
is(figure($node, 'checkpoint_ms'), 0, 'after a checkpoint nobody waits');

# ----------------------------------------------------------------------
# The file: damaged, missing, of another version, not to be written
# ----------------------------------------------------------------------

sub crash_with
{
	my ($what, $damage, @expected) = @_;

	change($node, 1, 10);
	$node->stop('immediate');
	$damage->(path_of($node));
	my $start = -s $node->logfile;

	ok($node->start(fail_ok => 1), "$what: the server starts");
	$node->wait_for_log($_, $start) foreach @expected;
	$node->log_check($what, $start, log_unlike => [qr/PANIC|FATAL/]);
	return;
}

sub with_byte_changed
{
	my ($at) = @_;

	return sub {
		my ($path) = @_;
		my $data = read_binary($path);

		substr($data, $at, 1) ^= "\x01";
		write_binary($path, $data);
	};
}

# The record with other costs, and a checksum that is right
sub with_cost
{
	my ($nsec) = @_;

	return sub {
		edit_record(
			$node,
			sub {
				my ($record) = @_;

				substr($$record, NSEC_AT + 8, 8) = pack('q', $nsec);
			});
	};
}

crash_with(
	'record damaged',
	with_byte_changed(RECORD_AT + 100),
	qr/ignoring file "pg_stat_tmp\/crash_recovery", whose record is damaged/,
	qr/crash recovery took/);
wait_for_recoveries($node, 1);
is(figure($node, 'learnt_from'), 1, 'it begins anew');
crash_with(
	'forecast damaged',
	with_byte_changed(40),
	qr/ignoring file ".*", whose forecast is damaged/,
	qr/crash recovery took [\d.]+ s, nothing was predicted/);
wait_for_recoveries($node, 2);
is(figure($node, 'learnt_from'), 2, 'the record was intact');
crash_with(
	'a cost that cannot be',
	with_cost(-1),
	qr/ignoring file "pg_stat_tmp\/crash_recovery", whose record is damaged/);
wait_for_recoveries($node, 1);
crash_with(
	'a cost of centuries',
	with_cost(1 << 62),
	qr/ignoring file "pg_stat_tmp\/crash_recovery", whose record is damaged/);
wait_for_recoveries($node, 1);
crash_with(
	'forecast for another redo pointer',
	sub {
		my ($path) = @_;
		my $data = read_binary($path);
		my $forecast = substr($data, 0, FORECAST_LEN);

		substr($forecast, REDO_AT, 8) =
		  pack('Q', unpack('Q', substr($forecast, REDO_AT, 8)) - 8);
		write_binary($path, sealed($forecast) . substr($data, FORECAST_LEN));
	},
	qr/crash recovery took [\d.]+ s, nothing was predicted/);
wait_for_recoveries($node, 2);
crash_with(
	'another version',
	sub {
		my ($path) = @_;
		my $data = read_binary($path);

		substr($data, 8, 4) = pack('L', 99);
		substr($data, RECORD_AT + 8, 4) = pack('L', 77);
		write_binary($path, $data);
	},
	qr/whose forecast has format version 99, but this server knows only version 1/,
	qr/whose record has format version 77, but this server knows only version 1/);
wait_for_recoveries($node, 1);
crash_with(
	'of another cluster',
	sub {
		my ($path) = @_;
		my $data = read_binary($path);
		my $record = substr($data, RECORD_AT);

		substr($record, 16, 8) = pack('Q', 4711);
		write_binary($path, substr($data, 0, RECORD_AT) . sealed($record));
	},
	qr/whose record belongs to another database cluster/);
wait_for_recoveries($node, 1);
crash_with(
	'cut short',
	sub { truncate($_[0], 700) or die "could not truncate: $!"; },
	qr/whose record is damaged/);
wait_for_recoveries($node, 1);
crash_with(
	'missing',
	sub { unlink($_[0]) or die "could not unlink: $!"; },
	qr/no file "pg_stat_tmp\/crash_recovery": nothing is known of earlier crash recoveries/);
wait_for_recoveries($node, 1);

# What is no file is not opened, but gives way to one.
my $elsewhere = $node->basedir . '/elsewhere';
write_binary($elsewhere, 'precious');
crash_with(
	'a pipe instead',
	sub {
		unlink($_[0]) or die "could not unlink: $!";
		mkfifo($_[0], 0600) or die "could not make a pipe: $!";
		$node->command_fails_like(
			[ 'pg_doublewrite', 'forecast', $node->data_dir ],
			qr/crash_recovery" is not a regular file/,
			'the tool does not open it, either');
		symlink($elsewhere, "$_[0].tmp") or die "could not link: $!";
	},
	qr/ignoring "pg_stat_tmp\/crash_recovery", which is not a regular file/);
wait_for_recoveries($node, 1);
crash_with(
	'a link instead',
	sub {
		rename($_[0], "$_[0].moved") or die "could not rename: $!";
		symlink("$_[0].moved", $_[0]) or die "could not link: $!";
		mkfifo("$_[0].tmp", 0600) or die "could not make a pipe: $!";
	},
	qr/ignoring "pg_stat_tmp\/crash_recovery", which is not a regular file/);
wait_for_recoveries($node, 1);
ok(!-l path_of($node), 'the link is gone');
is(read_binary($elsewhere), 'precious', 'nothing is written through links');
unlink(path_of($node) . '.moved') or die "could not unlink: $!";

# If it cannot be written, that is said once, until it can be.
crash_with(
	'a directory instead',
	sub { unlink($_[0]); mkdir($_[0]) or die "could not mkdir: $!"; },
	qr/ignoring "pg_stat_tmp\/crash_recovery", which is not a regular file/,
	qr/could not (?:open|rename) file "pg_stat_tmp\/crash_recovery/);
$offset = -s $node->logfile;
count_hits($node, 'crash-recovery-file', 'crash-recovery-look');
foreach (1 .. 3)
{
	change($node, 1, 2000);
	$node->safe_psql('postgres', 'CHECKPOINT');
}
watchdog_until('no looks at the estimate',
	sub { hits($node, 'crash-recovery-look') >= 5 });
cmp_ok(hits($node, 'crash-recovery-file'), '>=', 3, 'each checkpoint tries again');
cmp_ok(hits($node, 'crash-recovery-file'), '<', 5, '... and nobody else');
is(() = slurp_file($node->logfile, $offset) =~ /crash_recovery/g,
	0, 'nothing more is said');
rmdir(path_of($node)) or die "could not rmdir: $!";
$node->safe_psql('postgres', 'CHECKPOINT');
ok(-f path_of($node), 'it is written when that is possible again');
ok(!-e path_of($node) . '.tmp', 'nothing is left over');
$node->stop;

# The server crashes between the new file and its name: the old one counts.
set_costs($node, 1);
$node->append_conf('postgresql.conf',
	"test_doublewrite.crash_at = 'crash-recovery-file-written'");
$node->start;
my $on_record = scalar(@{ forecast_of($node)->{recoveries} });
change($node, 1, 400);
wait_for_forecast($node, 400);
$node->stop('immediate');
$offset = -s $node->logfile;
$node->start(fail_ok => 1);
dw_wait_for_crash($node, $offset);
$node->append_conf('postgresql.conf', "test_doublewrite.crash_at = ''");
my $kept = forecast_of($node);
cmp_ok($kept->{blocks_to_read}, '>=', 400, 'the old file is there');
is(scalar(@{ $kept->{recoveries} }), $on_record, '... with the old record');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'second recovery');
$node->log_check(
	'second recovery',
	$offset,
	log_like => [qr/crash recovery took [\d.]+ s, 0\.[5-9]\d s were predicted/]);
wait_for_recoveries($node, $on_record + 1);

# A crash of one process leaves all in the kernel's cache: what the restart costs
# says nothing of a crash of the machine.
$on_record = scalar(@{ forecast_of($node)->{recoveries} });
my $learnt = figure($node, 'learnt_from');
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
change($node, 1, 600);
wait_for_forecast($node, 600);
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $victim_pid = $victim->query('SELECT pg_backend_pid()');
$offset = -s $node->logfile;
kill('KILL', $victim_pid) == 1 or die "could not kill process $victim_pid: $!";
$node->wait_for_log(qr/crash recovery took.*ready to accept connections/s, $offset);
eval { $victim->quit };
$node->poll_query_until('postgres', 'SELECT true') or die 'no restart';
is(figure($node, 'learnt_from'), $learnt, 'a restart in place teaches nothing');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_double_write_recoveries WHERE part = 'total'"),
	$on_record, '... and is not on record');
$node->append_conf('postgresql.conf', 'restart_after_crash = off');
$node->reload;

# ----------------------------------------------------------------------
# A target
# ----------------------------------------------------------------------

sub wanted
{
	my ($node, $start) = @_;

	return slurp_file($node->logfile, $start) =~
	  /checkpoint is wanted by "crash_recovery_target": recovery would take ([\d.]+) s/g;
}

$node->append_conf('postgresql.conf', q{
checkpoint_completion_target = 0.9
checkpoint_warning = 1h
});
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop;
set_costs($node, 1);
$node->start;
$offset = -s $node->logfile;

# With 4 s a checkpoint is begun at 0.1 + 3.9 / 1.9 = 2.15 s.
change($node, 1, 1000);
set_target($node, 4);
change($node, 1001, 2400);
$node->wait_for_log(qr/checkpoint is wanted by/, $offset);
my @wanted = wanted($node, $offset);
is(scalar(@wanted), 1, 'one checkpoint is wanted');
is(figure($node, 'checkpoints_for_target'), 1, '... and counted');
cmp_ok($wanted[0], '>=', 2.15, "at $wanted[0] s, not before");
$node->wait_for_log(qr/checkpoint starting/, $offset);
$node->log_check(
	'as for max_wal_size',
	$offset,
	log_like => [
		qr/checkpoints are occurring too frequently.*\n.*HINT:  Consider increasing the configuration parameter "crash_recovery_target"/ ]);

# It takes a nap of 0.1 s for each block, longer than we wait, unless the
# estimate grows by as much as it may.
change($node, 2401, 5000);
$node->wait_for_log(qr/checkpoint complete/, $offset);
pass('it is hurried as the estimate grows');

# Checkpoints keep a distance, however small the target is.  It is measured with the
# least that can have passed: slow machines make fewer.
$node->safe_psql('postgres', 'CHECKPOINT');
$offset = -s $node->logfile;
set_target($node, 1);
my $from = figure($node, 'checkpoints_for_target');
my $begun = clock_gettime(CLOCK_MONOTONIC);
my $told = qr/"crash_recovery_target" of 1 s cannot be met.*\n.*DETAIL:  Recovery would take [\d.]+ s\.  Checkpoints that this setting asks for begin 2 s apart at least/;
watchdog_until(
	'no checkpoints for a small target',
	sub {
		change($node, 1, $BLOCKS);
		return figure($node, 'checkpoints_for_target') >= $from + 3 &&
		  slurp_file($node->logfile, $offset) =~ $told;
	});
my $number_of = figure($node, 'checkpoints_for_target') - $from;
my $passed = clock_gettime(CLOCK_MONOTONIC) - $begun;
cmp_ok($number_of, '<=', 1 + $passed / 2,
	"checkpoints in $passed s: $number_of");
is(() = slurp_file($node->logfile, $offset) =~ /cannot be met/g,
	1, 'that it cannot be met is said once');

# One for which there is no room any more is spread over that distance.  Again, slow
# machines take longer.
$node->safe_psql('postgres', 'CHECKPOINT');
$offset = -s $node->logfile;
change($node, 1, 2000);
$node->wait_for_log(qr/checkpoint is wanted by.*checkpoint complete/s, $offset);
my ($spread) = slurp_file($node->logfile, $offset) =~
  /checkpoint is wanted by.*?checkpoint complete:.*? write=([\d.]+) s/s;
cmp_ok($spread, '>=', 1, "a late checkpoint is spread over $spread s");

# One that fails is not asked for again at once.
$offset = -s $node->logfile;
$begun = clock_gettime(CLOCK_MONOTONIC);
$node->safe_psql('postgres',
	q{SELECT dw_fail_at('doublewrite-checkpoint-scanned', 'EIO', 1, 1000000)});
change($node, 1, 2000);
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$node->append_conf('postgresql.conf', 'checkpoint_completion_target = 0');
$node->reload;
$node->wait_for_log(qr/ERROR: .*test error at injection point/, $offset);
count_hits($node, 'crash-recovery-look');
watchdog_until(
	'no looks at the estimate',
	sub {
		change($node, 1, 2000);
		return hits($node, 'crash-recovery-look') >= 6;
	});
$number_of = () = wanted($node, $offset);
$passed = clock_gettime(CLOCK_MONOTONIC) - $begun;
cmp_ok($number_of, '<=', 1 + $passed / 15,
	"checkpoints that fail, in $passed s: $number_of");
$node->safe_psql('postgres', q{SELECT dw_clear('doublewrite-checkpoint-scanned')});
$node->append_conf('postgresql.conf', 'checkpoint_completion_target = 0.9');
$node->reload;
$node->safe_psql('postgres', 'CHECKPOINT');

# What the file says counts, not what is believed before it has been read.
$node->stop;
$offset = -s $node->logfile;
start_paused(
	$node,
	'crash-recovery-file-read',
	sub {
		watchdog_until(
			'no checkpointer',
			sub {
				return scalar grep {
					(readlink("$_/cwd") // '') eq $node->data_dir
					  && (read_binary("$_/cmdline") // '') =~ /checkpointer/
				} glob('/proc/[0-9]*');
			}) if -e '/proc/self/cmdline';
	});
$node->safe_psql('postgres', 'CHECKPOINT');
$node->log_check('target and costs of the file',
	$offset, log_unlike => [qr/cannot be met/]);

# A checkpoint puts pages in the log.  To restore them may take longer than to
# redo them, so it has to begin earlier: with 10 ms and 1 ms, at 3.9 / 10.9 thousand.
set_target($node, 4);
$node->stop;
set_costs($node, 1, restore => 10);
$offset = -s $node->logfile;
$node->start;
change($node, 1, 1000);
$node->wait_for_log(qr/checkpoint is wanted by/, $offset);
@wanted = wanted($node, $offset);
cmp_ok($wanted[0], '>=', 0.45, 'a checkpoint is not wanted at once');
cmp_ok($wanted[0], '<', 1.2, '... but earlier if to restore pages takes longer');
$node->safe_psql('postgres', 'CHECKPOINT');

# Unless sync cycles free the log meanwhile, when it has 512 pages: with 2 ms and 1 ms
# a checkpoint has to begin at 0.1 + 3.4 / 1.9 = 1.88 s, not at 0.1 + 3.9 / 2.9 = 1.44 s.
# The log is so large that nothing else makes a cycle.
sub cycles
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		q{SELECT value FROM pg_double_write_counters() WHERE name = 'sync_cycles'});
}

$node->stop;
$node->append_conf('postgresql.conf', 'double_write_buffer_size = 1GB');
set_costs($node, 1, restore => 2);
$node->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$offset = -s $node->logfile;
my $cycles = cycles($node);
change($node, 1, 1600);
count_hits($node, 'crash-recovery-look');
watchdog_until('no looks at the estimate',
	sub { hits($node, 'crash-recovery-look') >= 3 });
is(scalar(() = wanted($node, $offset)), 0, 'no checkpoint is wanted yet');
is(cycles($node), $cycles, '... nor a sync cycle');
change($node, 1601, 1900);
$node->wait_for_log(qr/checkpoint is wanted by/, $offset);
@wanted = wanted($node, $offset);
cmp_ok($wanted[0], '>=', 1.8, "at $wanted[0] s, as sync cycles are to come");

# It is hurried by as much as makes it write that many.  If it is so fast that nobody
# has looked while they were in the log, one of the next will meet a look.
my $block = 1901;
watchdog_until(
	'no sync cycle',
	sub {
		change($node, $block, $block + 99);
		$block = $block < 3300 ? $block + 100 : 1;
		return cycles($node) > $cycles;
	});
cmp_ok(figure($node, 'estimate_ms'), '<', 4500, 'with those the target is kept');
$node->safe_psql('postgres', 'CHECKPOINT');

# On an idle server a checkpoint may be asked for, as WAL takes its time that nobody
# needs; it is skipped, and not asked for again until something happens.  The pause
# after which any other one would be is left out.
$node->stop;
set_costs($node, 1, wal => 10_000);
$node->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres',
	q{SELECT dw_fail_at('crash-recovery-retry', 'EIO', 1, 1000000)});
$offset = -s $node->logfile;
$node->safe_psql('postgres',
	'SELECT pg_log_standby_snapshot() FROM generate_series(1, 50)');
$node->wait_for_log(qr/checkpoint is wanted by/, $offset);

# Have the checkpointer look, more often than it would.
sub wait_for_looks
{
	my ($node, $looks) = @_;

	count_hits($node, 'crash-recovery-look');
	watchdog_until(
		'no looks at the estimate',
		sub {
			$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
			return hits($node, 'crash-recovery-look') >= $looks;
		});
	return;
}

wait_for_looks($node, 10);
is(scalar(() = wanted($node, $offset)), 1, 'idle: one checkpoint is wanted');
unlike(slurp_file($node->logfile, $offset),
	qr/checkpoint starting/, 'idle: it is skipped');
change($node, 1, 1);
watchdog_until('no checkpoint of a server that has done something',
	sub { slurp_file($node->logfile, $offset) =~ /checkpoint complete/ });
is(scalar(() = wanted($node, $offset)), 2, 'busy again: another one is wanted');
$node->safe_psql('postgres', q{SELECT dw_clear('crash-recovery-retry')});

# A part of the forecast of this server is not to be made shorter.
$offset = -s $node->logfile;
$node->stop;
edit_record(
	$node,
	sub {
		my ($record) = @_;

		substr($$record, NSEC_AT, 8) = pack('q', 5000 * MS);
	});
$node->start;
$node->wait_for_log(
	qr/"crash_recovery_target" of 4 s cannot be met.*\n.*DETAIL:  5\.0 s pass at each start/,
	$offset);
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_double_write_recovery_advice
		 WHERE explanation LIKE 'Cannot be met%'}),
	2, 'advice: half of it and the target itself cannot be met');

# Switched off, it does nothing again.
set_target($node, 0);
my $count = figure($node, 'checkpoints_for_target');
count_hits($node, 'crash-recovery-look', 'crash-recovery-file');
change($node, 1, 5000);
$node->safe_psql('postgres', 'CHECKPOINT');
is(figure($node, 'checkpoints_for_target'),
	$count, 'no checkpoint once there is no target');
is(hits($node, 'crash-recovery-look') + hits($node, 'crash-recovery-file'),
	0, '... nor anything else');

# A file that cannot be used is reported once: then there is one that can be.
foreach my $damage (
	[ 'record damaged', RECORD_AT + 100 ],
	[ 'forecast damaged', 40 ])
{
	my ($what, $at) = @$damage;

	$node->stop;
	with_byte_changed($at)->(path_of($node));
	$offset = -s $node->logfile;
	$node->start;
	watchdog_until(
		"no new file: $what",
		sub {
			my $data = read_binary(path_of($node));
			my @parts = (substr($data, 0, FORECAST_LEN), substr($data, RECORD_AT));

			return !grep { $_ ne sealed($_) } @parts;
		});
	$node->restart;
	is(() = slurp_file($node->logfile, $offset) =~ /ignoring file .* is damaged/g,
		1, "no target: $what, which is said once");
}
$node->append_conf('postgresql.conf', 'crash_recovery_target = 1h');
$node->stop;

# ----------------------------------------------------------------------
# A standby
# ----------------------------------------------------------------------

set_costs($node, 1);
$node->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
ok(!-e path_of($standby), 'a backup has no costs of another machine');
$standby->start;
$node->wait_for_replay_catchup($standby);
wait_for_forecast($standby, 0);
$standby->stop;
set_costs($standby, 1, write => 2);
$standby->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$before = figure($standby, 'blocks_to_read');
change($node, 1, 3000);
$node->wait_for_replay_catchup($standby);
my $replayed = figure($standby, 'blocks_to_read');
cmp_ok($replayed, '>=', $before + 3000, 'a restart would read what has been replayed');
cmp_ok($replayed, '<', $before + 3500, '... once');
isnt(figure($standby, 'promotion_ms'), '', 'a promotion is estimated');
wait_for_forecast($standby, 3000);

# A restartpoint can only be made when a checkpoint has been replayed.
set_target($standby, 2);
count_hits($standby, 'crash-recovery-look');
watchdog_until('no looks at the estimate of a standby',
	sub { hits($standby, 'crash-recovery-look') >= 4 });
cmp_ok(figure($standby, 'estimate_ms'), '>', 2000, 'the target is exceeded');
is(figure($standby, 'checkpoints_for_target'), 0, 'nothing to make a restartpoint of');
$node->safe_psql('postgres', 'CHECKPOINT');
$standby->poll_query_until('postgres',
	'SELECT checkpoints_for_target > 0 FROM pg_double_write_recovery')
  or die 'no restartpoint';
$standby->safe_psql('postgres', 'CHECKPOINT');
cmp_ok(figure($standby, 'blocks_to_read'), '<', 100, 'a restartpoint has been made');

# A crash of a standby: it counts until replay is where it had been.
set_target($standby, 3600);
change($node, 1, 3000);
$node->wait_for_replay_catchup($standby);
wait_for_forecast($standby, 3000);
$standby->stop('immediate');
$offset = -s $standby->logfile;
$standby->start;
$standby->wait_for_log(
	qr/the standby is where it was when it crashed after [\d.]+ s, 3\.\d\d s were predicted/,
	$offset);
wait_for_recoveries($standby, 1);
($predicted, $actual) = split /\|/, $standby->safe_psql(
	'postgres', q{
	SELECT predicted_blocks, actual_blocks FROM pg_double_write_recoveries
	 WHERE part = 'total'});
cmp_ok($predicted, '>=', 3000, "blocks predicted for a standby: $predicted");
cmp_ok($actual, '>=', 0.9 * $predicted, "read on a standby: $actual");
cmp_ok($actual, '<=', 1.1 * $predicted, '... about as many');
cmp_ok(figure($standby, 'learnt_from'), '>', 0, 'a standby has learnt from it');

# That is saved even if the checkpointer is writing the file at that moment, here as
# it is damaged.
wait_for_forecast($standby, 3000);
$standby->stop('immediate');
with_byte_changed(RECORD_AT + 100)->(path_of($standby));
$standby->append_conf('postgresql.conf',
	"test_doublewrite.pause_at = 'xlogpipeline-engage,crash-recovery-file-written'");
$offset = -s $standby->logfile;
{
	local %ENV = $standby->_get_env(PGAPPNAME => undef);
	system_or_bail('pg_ctl', '--no-wait', '-s', '-D', $standby->data_dir, '-l',
		$standby->logfile, '-o', '--cluster-name=' . $standby->name, 'start');
}
$standby->wait_for_log(qr/paused at injection point "xlogpipeline-engage"/, $offset);
my $writes = qr/\[(\d+)\] LOG: .* paused at injection point "crash-recovery-file-written"/;
$standby->wait_for_log($writes, $offset);
my ($writer) = slurp_file($standby->logfile, $offset) =~ $writes;
kill('STOP', $writer) == 1 or die "could not stop process $writer: $!";
append_to_file($standby->data_dir . '/test_doublewrite.resume', '');
$standby->wait_for_log(qr/the standby is where it was when it crashed/, $offset);
kill('CONT', $writer) == 1 or die "could not continue process $writer: $!";
append_to_file($standby->data_dir . '/test_doublewrite.resume', '');
$standby->wait_for_log(qr/ready to accept read-only connections/, $offset);
$standby->_update_pid(1);
$standby->append_conf('postgresql.conf', "test_doublewrite.pause_at = ''");
wait_for_recoveries($standby, 1);
count_hits($standby, 'crash-recovery-look');
watchdog_until('no looks at the estimate of a standby',
	sub { hits($standby, 'crash-recovery-look') >= 3 });
is(scalar(@{ forecast_of($standby)->{recoveries} }),
	1, 'what is learnt while the file is written is saved');
$standby->stop;
set_costs($standby, 1, write => 2);
$standby->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');

# Clients do not wait for the checkpoint that follows a promotion; if the server
# crashes before it completes, they do.
change($node, 1, 1000);
$node->wait_for_replay_catchup($standby);
is(figure($standby, 'checkpoint_ms'), 0, 'a standby goes on as one');
$standby->append_conf('postgresql.conf', 'checkpoint_completion_target = 0.9');
set_target($standby, 3600);
$standby->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-checkpoint-scanned', 'wait')});
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
cmp_ok(figure($standby, 'checkpoint_ms'), '>=', 2000,
	'before its first checkpoint a promoted server makes clients wait');
$standby->safe_psql('postgres',
	q{SELECT injection_points_detach('doublewrite-checkpoint-scanned')});
$standby->psql('postgres',
	q{SELECT injection_points_wakeup('doublewrite-checkpoint-scanned')});
$standby->safe_psql('postgres', 'CHECKPOINT');
is(figure($standby, 'checkpoint_ms'), 0, '... and after it none');
is(figure($standby, 'promotion_ms'), '', 'no promotion to come');
is( $standby->safe_psql('postgres', 'SELECT count(*) FROM pg_double_write_recoveries'),
	6, 'a promotion is no crash recovery');
$standby->stop;
$node->stop;

done_testing();
