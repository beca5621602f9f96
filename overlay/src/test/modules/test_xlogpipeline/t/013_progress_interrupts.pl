
# Copyright (c) 2025, PostgreSQL Global Development Group

# Looking for the end of WAL before redo can be interrupted.

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
xlp_workload($primary, 1);
xlp_crash($primary, 'crashed');

foreach my $point ('xlogprogress-segment')
{
	my $node = PostgreSQL::Test::Cluster->new($point);

	$node->init_from_backup($primary, 'crashed');
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'injection_points, test_points'
test_points.terminate_at = '$point:1:1000'
});
	ok(!$node->start(fail_ok => 1), "$point: server does not start");

	my @hits = slurp_file($node->logfile) =~
	  /process is terminated at injection point "$point"/g;
	is(scalar(@hits), 1, "$point: ends at once");
	$node->clean_node;
}

done_testing();
