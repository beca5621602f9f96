
# Copyright (c) 2025, PostgreSQL Global Development Group

# How far recovery is, is said while redo waits for blocks that are read ahead.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

if (!$use_unix_sockets)
{
	plan skip_all => 'needs Unix-domain sockets';
}

# There is WAL enough for a window.
my $primary = xlp_primary('primary');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql(
	'postgres',
	q{SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000)))
		FROM generate_series(1, 2000)});
xlp_crash($primary, 'crashed');

# Redo waits, as the pipeline's process is held when it knows what is to be read.
my $node = PostgreSQL::Test::Cluster->new('held');
$node->init_from_backup($primary, 'crashed');
$node->append_conf('postgresql.conf', xlp_conf('on'));
$node->append_conf(
	'postgresql.conf', "
log_startup_progress_interval = '100ms'
test_points.hold_at = 'xlogahead-scanned'
test_points.fail_at = 'xlogpipeline-wait-for-worker:EIO'
");
xlp_start_held($node, 'xlogahead-scanned');

# It says so nevertheless, again and again.  Nothing has been replayed, so nothing is
# known of the time left.
my $line =
  qr/redo in progress, elapsed time: [\d.]+ s, .* 0% of WAL replayed, \d+ MB left\n/;
$node->wait_for_log(qr/$line(?s:.*)$line(?s:.*)$line/);

# So say the refusal of a client, and the file.
like(
	xlp_refusal($node),
	qr/0% of WAL replayed, \d+ MB left\./,
	'a client that is refused is told');
my $file = slurp_file($node->data_dir . '/recovery_progress');
like($file, qr/^percent = 0$/m, 'the file has the percentage');
like($file, qr/^seconds_left = -1$/m, 'the file knows no time left');

$node->_update_pid(1);
$node->stop('immediate');
done_testing();
