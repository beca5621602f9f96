
# Copyright (c) 2025, PostgreSQL Global Development Group

# A process that writes pages during recovery must see to it that minRecoveryPoint
# covers them.  The standby begins with crash recovery, in which there is no such
# point, and in which the background writer writes its first pages.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
max_wal_size = 1GB
wal_keep_size = 256MB
io_torn_pages_protection = full_pages
instant_recovery = off
});
$primary->start;
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 8000) i;
	VACUUM wide;
	CHECKPOINT;
	UPDATE wide SET v = 1;
	UPDATE wide SET v = 2});
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('wide')");
$primary->stop('immediate');
$primary->backup_fs_cold('crashed');
$primary->start;

# Return the number that an LSN is.
sub number
{
	my ($high, $low) = split(/\//, shift);

	return hex($high) * 2**32 + hex($low);
}

# Return the highest LSN of a page in a file.
sub highest_lsn
{
	my ($file) = @_;
	my $highest = 0;

	open(my $fh, '<:raw', $file) or die "$file: $!";
	while (read($fh, my $page, 8192))
	{
		my ($high, $low) = unpack('LL', $page);
		my $lsn = $high * 2**32 + $low;

		$highest = $lsn if $lsn > $highest;
	}
	close($fh);
	return $highest;
}

# The background writer cleans as many buffers as it can.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'crashed', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
shared_buffers = 2MB
bgwriter_delay = 10ms
bgwriter_lru_maxpages = 1000
bgwriter_lru_multiplier = 10
});
$standby->start;
like(
	slurp_file($standby->logfile),
	qr/entering standby mode.*redo starts at.*invalid record length/s,
	'crash recovery comes first');

# Changes are few, so that the startup process writes little: what it writes moves
# minRecoveryPoint to the end of what it has replayed.
my $highest = 0;
my $uncovered = 0;
foreach my $round (1 .. 20)
{
	my $part = 80 + 20 * ($round % 4);

	$primary->safe_psql('postgres',
		"UPDATE wide SET v = v + 1 WHERE id % $part = $round");
	$primary->wait_for_catchup($standby);
	usleep(50_000);

	# minRecoveryPoint is moved before a page is written
	$highest = highest_lsn($standby->data_dir . "/$path");
	my ($control) = run_command([ 'pg_controldata', $standby->data_dir ]);
	my ($min) = $control =~ /Minimum recovery ending location: +(\S+)/;
	$uncovered++ if $highest > number($min);
}
cmp_ok($highest, '>', 0, 'pages were written');
is($uncovered, 0, 'minimum recovery point covers them');

$standby->stop;
$primary->stop;

done_testing();
