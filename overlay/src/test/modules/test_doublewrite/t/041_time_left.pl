
# Copyright (c) 2026, PostgreSQL Global Development Group

# How much time is left while redo waits for blocks.  As long as none has been read,
# it is what such reads have cost before.  With a forecast, blocks that only the first
# part of WAL changes are not expected of the rest; if all have been counted, the
# forecast does not matter.  What has been read tells how long the rest will take.

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

# Write WAL that changes no blocks.
sub write_wal
{
	my ($node, $megabytes) = @_;

	$node->safe_psql('postgres',
		"SELECT pg_logical_emit_message(false, 'test', repeat('m', 1000000))
			FROM generate_series(1, $megabytes)");
	return;
}

# Change every fourth page of the table, so that none is read together with another:
# the first half of these, then so many megabytes of WAL that changes none, then the
# other half.  Return a forecast that is not older.
sub forecast_after
{
	my ($node, $megabytes_between, $megabytes_after) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id % 8 = 0');
	write_wal($node, $megabytes_between);
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id % 8 = 4');
	write_wal($node, $megabytes_after);
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
# what is to be read for the window of that number.  Blocks of the sample at these places are not in the kernel's
# cache; the others are, since they have been written just now.  Return [elapsed, left]
# of the reports, in seconds.
sub reports
{
	my ($node, $window, @missing) = @_;
	my $offset = -s $node->logfile;
	my $held = qr/held at injection point "xlogahead-scanned"/;
	my $points = join(', ',
		'xlogpipeline-wait-for-worker:EIO',
		map { "xlogreadprogress-$_:EIO:1:1000000000" } @missing);
	my $line =
	  qr/redo in progress, elapsed time: ([\d.]+) s, .* about ([\d.]+) s to go\n/;

	$node->append_conf(
		'postgresql.conf', "
test_doublewrite.hold_at = 'xlogahead-scanned:$window'
test_doublewrite.fail_at = '$points'
");
	run_log(
		[
			'pg_ctl',
			'--no-wait',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile,
			'start'
		]);
	$node->wait_for_log(qr/$held(?s:.*)$line(?s:.*)$line(?s:.*)$line/, $offset);
	$node->_update_pid(1);
	$node->stop('immediate');
	$node->append_conf(
		'postgresql.conf', "
test_doublewrite.hold_at = ''
test_doublewrite.fail_at = ''
");

	my @reports;
	my ($log) = slurp_file($node->logfile, $offset) =~ /$held(.*)/s;
	while ($log =~ /$line/g)
	{
		note "after $1 s $2 s to go";
		push @reports, [ $1, $2 ];
	}
	return @reports;
}

# The time left is as expected, in seconds, while nothing has been read.
sub check_expected
{
	my ($node, $expected, $what) = @_;

	note "$expected s expected";
	my @left = map { $_->[1] } reports($node, 1, 'even', 'odd');
	is(scalar(grep { $_ < 0.8 * $expected } @left), 0, "time left, $what");
	is(scalar(grep { $_ > 1.2 * $expected } @left), 0, '... is not more');
	return;
}

# The time left is as long as it has taken until now, as a half has been read.  Reports
# are rounded.
sub check_half
{
	my ($node, $window, $what) = @_;

	my @wrong = grep { abs($_->[0] - $_->[1]) > 0.1 + 0.1 * $_->[0] }
	  reports($node, $window, 'odd');
	is(scalar(@wrong), 0, "time left by what has been read, $what");
	return;
}

# WAL is longer than a window, and a half of the blocks is of the second one.
my $node = new_node('long');
my $forecast = forecast_after($node, 18, 0);
$node->stop('immediate');
cmp_ok($forecast->{blocks_to_read}, '>=', $BLOCKS, 'blocks of the forecast');
cmp_ok($forecast->{blocks_to_read}, '<', 1.25 * $BLOCKS, '... are not many more');
check_expected($node, $forecast->{milliseconds}{redo} / 1000,
	'by the forecast');
check_half($node, 2, 'two windows');

# The window is all there is.  The forecast is older than half of WAL, so it would
# have to be extrapolated.
$node = new_node('short');
my $file = $node->data_dir . '/pg_stat_tmp/crash_recovery';
my $copy = $node->basedir . '/forecast';
$forecast = forecast_after($node, 0, 0);
my $expected = $forecast->{milliseconds}{redo} / 1000;
copy($file, $copy) or die "could not copy \"$file\": $!";
write_wal($node, 6);
my $table =
  $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
$node->stop('immediate');
copy($copy, $file) or die "could not copy \"$copy\": $!";
check_expected($node, $expected, 'as counted');
check_half($node, 1, 'one window');

# All has been read: nearly nothing is left, whatever such reads have cost before.
my @left = map { $_->[1] } reports($node, 1);
is(scalar(grep { $_ > 0.2 * $expected } @left),
	0, 'time left when all has been read');

# Nothing has been read, as the kernel says: it has no pages where a file is empty.
foreach my $file ($table, glob("$table.*"))
{
	my $size = -s $file;
	truncate($file, 0) && truncate($file, $size)
	  or die "could not truncate \"$file\": $!";
}
@left = map { $_->[1] } reports($node, 1);
is(scalar(grep { $_ < 0.8 * $expected } @left),
	0, 'time left when nothing has been read');

done_testing();
