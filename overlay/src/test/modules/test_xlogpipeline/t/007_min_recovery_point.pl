
# Copyright (c) 2025, PostgreSQL Global Development Group

# A process that writes pages back during recovery must see to it that
# minRecoveryPoint covers them.  The standby begins with crash recovery, in
# which there is no such point.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 4000) i;
	VACUUM wide; CHECKPOINT;
	UPDATE wide SET v = 1;
});
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('wide')");
xlp_crash($primary, 'crashed');
$primary->start;

sub number
{
	my ($high, $low) = split(/\//, shift);

	return hex($high) * 2**32 + hex($low);
}

# Highest page LSN in a file
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

foreach my $mode ('off', 'on')
{
	my $standby = PostgreSQL::Test::Cluster->new("standby_$mode");

	$standby->init_from_backup($primary, 'crashed', has_streaming => 1);
	$standby->append_conf('postgresql.conf',
		xlp_conf($mode)
		  . "shared_buffers = 2MB\nbgwriter_lru_maxpages = 100\ncheckpoint_timeout = 1h\n"
	);
	$standby->start;
	foreach my $round (1 .. 3)
	{
		$primary->safe_psql('postgres', 'UPDATE wide SET v = v + 1');
		$primary->wait_for_catchup($standby);
	}
	$standby->stop('immediate');

	like(
		slurp_file($standby->logfile),
		qr/invalid record length|entering standby mode/,
		"$mode: crash recovery comes first");
	my ($out) = run_command([ 'pg_controldata', $standby->data_dir ]);
	my ($min) = $out =~ /Minimum recovery ending location:\s+(\S+)/;
	my $highest = highest_lsn($standby->data_dir . "/$path");

	cmp_ok($highest, '>', 0, "$mode: pages were written");
	cmp_ok(number($min), '>=', $highest,
		"$mode: minimum recovery point covers them");
	$standby->clean_node;
}

done_testing();
