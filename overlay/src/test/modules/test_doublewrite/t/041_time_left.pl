
# Copyright (c) 2026, PostgreSQL Global Development Group

# How much time is left while redo waits for blocks: with a forecast, blocks that
# only the first part of WAL changes are not expected of the rest.  If all blocks
# have been counted, the forecast does not matter.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use File::Copy;
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

# A server that has learnt nothing yet, with a table.
sub new_node
{
	my $node = PostgreSQL::Test::Cluster->new($_[0]);
	$node->init;
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 1GB
shared_buffers = 128MB
bgwriter_lru_maxpages = 0
io_torn_pages_protection = off
crash_recovery_target = 1h
shared_preload_libraries = 'injection_points, test_doublewrite'
test_doublewrite.fail_at = 'xlogpipeline-wait-for-worker:EIO'
wal_pipeline = on
log_startup_progress_interval = '100ms'
});
	$node->start;
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE t (id int, v int, filler text) WITH (fillfactor = 40);
		ALTER TABLE t ALTER filler SET STORAGE PLAIN;
		INSERT INTO t SELECT i, 0, repeat('x', 3000)
			FROM generate_series(0, 4 * $BLOCKS - 1) i;
	});
	$node->safe_psql('postgres', 'VACUUM t');
	return $node;
}

sub write_wal
{
	my ($node, $megabytes) = @_;

	$node->safe_psql('postgres',
		"SELECT pg_logical_emit_message(false, 'test', repeat('m', 1000000))
			FROM generate_series(1, $megabytes)");
	return;
}

# Change every fourth page of the table, so that none is read together with another,
# and write WAL that changes none.  Return a forecast that is not older.
sub forecast_after
{
	my ($node, $megabytes) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', "UPDATE t SET v = v + 1 WHERE id % 4 = 0");
	write_wal($node, $megabytes);
	my $end = lsn_number(
		$node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()'));
	watchdog_until(
		'no forecast',
		sub {
			my $forecast = forecast_of($node);

			return
				 $forecast
			  && $forecast->{end}
			  && lsn_number($forecast->{end}) >= $end;
		});
	return forecast_of($node);
}

# Start the server until redo waits, as the pipeline's process is held when it knows
# what is to be read, and compare the time left with what is expected, in seconds.
sub check_time_left
{
	my ($node, $expected, $what) = @_;
	my $offset = -s $node->logfile;
	my $line =
	  qr/redo in progress, elapsed time: ([\d.]+) s, .* 0% of WAL replayed,.* about ([\d.]+) s to go\n/;

	$node->append_conf('postgresql.conf',
		"test_doublewrite.hold_at = 'xlogahead-scanned'");
	run_log(
		[
			'pg_ctl',
			'--no-wait',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile,
			'start'
		]);
	$node->wait_for_log(qr/$line(?s:.*)$line(?s:.*)$line/, $offset);
	$node->_update_pid(1);
	$node->stop('immediate');
	$node->append_conf('postgresql.conf', "test_doublewrite.hold_at = ''");

	my ($elapsed, $left) = slurp_file($node->logfile, $offset) =~ $line;
	note "$expected s expected; after $elapsed s $left s to go";
	if ($elapsed < 0.8 * $expected)
	{
		cmp_ok($elapsed + $left, '>', 0.8 * $expected, "time left, $what");
		cmp_ok($elapsed + $left, '<', 1.2 * $expected, '... is not more');
	}
	else
	{
		# the machine was too slow to say so earlier
		cmp_ok($left, '<', 0.4 * $expected, "nearly nothing is left, $what");
	}
	return;
}

# WAL is longer than a window.
my $node = new_node('long');
my $forecast = forecast_after($node, 50);
$node->stop('immediate');
cmp_ok($forecast->{blocks_to_read}, '>=', $BLOCKS, 'blocks of the forecast');
cmp_ok($forecast->{blocks_to_read}, '<', 1.25 * $BLOCKS, '... are not many more');
check_time_left($node, $forecast->{milliseconds}{redo} / 1000,
	'by the forecast');

# The window is all there is.  The forecast is older than half of WAL, so it would
# have to be extrapolated.
$node = new_node('short');
my $file = $node->data_dir . '/pg_stat_tmp/crash_recovery';
my $copy = $node->basedir . '/forecast';
$forecast = forecast_after($node, 0);
copy($file, $copy) or die "could not copy \"$file\": $!";
write_wal($node, 6);
$node->stop('immediate');
copy($copy, $file) or die "could not copy \"$copy\": $!";
check_time_left($node, $forecast->{milliseconds}{redo} / 1000,
	'as counted');

done_testing();
