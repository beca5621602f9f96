
# Copyright (c) 2026, PostgreSQL Global Development Group

# How much time is left while redo waits for blocks: with a forecast, blocks that
# only the first part of WAL changes are not expected of the rest.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $BLOCKS = 2048;

sub forecast_of
{
	my ($node) = @_;
	my ($stdout, $stderr) = run_command(
		[ 'pg_doublewrite', 'forecast', '--json', $node->data_dir ]);

	return $stdout =~ /^\{/ ? decode_json($stdout) : undef;
}

sub lsn_number
{
	my ($high, $low) = split m{/}, $_[0];

	return hex($high) * 2**32 + hex($low);
}

# Every fourth page of a table changes, so that none is read together with another.
# Then comes WAL, longer than a window, that changes none.
my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init;
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 1GB
shared_buffers = 128MB
bgwriter_lru_maxpages = 0
io_torn_pages_protection = off
crash_recovery_target = 1h
});
$primary->start;
$primary->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int, v int, filler text) WITH (fillfactor = 40);
	ALTER TABLE t ALTER filler SET STORAGE PLAIN;
	INSERT INTO t SELECT i, 0, repeat('x', 3000) FROM generate_series(0, 4 * $BLOCKS - 1) i;
});
$primary->safe_psql('postgres', 'VACUUM t');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql(
	'postgres', qq{
	UPDATE t SET v = v + 1 WHERE id % 4 = 0;
	SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000000)))
		FROM generate_series(1, 50);
});
my $end = lsn_number(
	$primary->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()'));
watchdog_until(
	'no forecast',
	sub {
		my $forecast = forecast_of($primary);

		return $forecast && $forecast->{end} && lsn_number($forecast->{end}) >= $end;
	});
$primary->stop('immediate');

my $forecast = forecast_of($primary);
cmp_ok($forecast->{blocks_to_read}, '>=', $BLOCKS, 'blocks of the forecast');
cmp_ok($forecast->{blocks_to_read}, '<', 1.25 * $BLOCKS, '... are not many more');
my $expected = $forecast->{milliseconds}{redo} / 1000;

# Redo waits, as the pipeline's process is held when it knows what is to be read.
$primary->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'injection_points, test_doublewrite'
test_doublewrite.fail_at = 'xlogpipeline-wait-for-worker:EIO'
test_doublewrite.hold_at = 'xlogahead-scanned'
wal_pipeline = on
log_startup_progress_interval = '100ms'
});
my $offset = -s $primary->logfile;
run_log(
	[
		'pg_ctl',
		'--no-wait',
		'--pgdata' => $primary->data_dir,
		'--log' => $primary->logfile,
		'start'
	]);
my $line =
  qr/redo in progress, elapsed time: ([\d.]+) s, .* 0% of WAL replayed,.* about ([\d.]+) s to go\n/;
$primary->wait_for_log(qr/$line(?s:.*)$line(?s:.*)$line/, $offset);

my $log = slurp_file($primary->logfile, $offset);
my ($elapsed, $left) = $log =~ $line;
note "forecast $expected s of redo; after $elapsed s $left s to go";
cmp_ok($elapsed + $left, '>', 0.8 * $expected, 'time left');
cmp_ok($elapsed + $left, '<', 1.2 * $expected, '... is that of the forecast');

$primary->_update_pid(1);
$primary->stop('immediate');
done_testing();
