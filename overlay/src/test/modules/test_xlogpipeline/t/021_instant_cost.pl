
# Copyright (c) 2026, PostgreSQL Global Development Group

# What redo of single pages costs: a record that concerns many pages is read once for
# a run of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use List::Util qw(sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');

sub records_read
{
	my ($node) = @_;

	return sum0(slurp_file($node->logfile) =~ /redo of pages has read (\d+) records again/g);
}

# An index is built: records with 32 pages each.
$primary->safe_psql('postgres', $_) foreach (
	q{CREATE TABLE t AS SELECT g, md5(g::text) m FROM generate_series(1, 100000) g},
	'VACUUM t',
	'CHECKPOINT',
	'CREATE INDEX ti ON t (m)');
my $pages = $primary->safe_psql('postgres', q{SELECT pg_relation_size('ti') / 8192});
xlp_crash($primary, 'index');
my (undef, $serial) = xlp_recover($primary, 'index', 'serial', 'instant_recovery = off');
my ($node, $digest) = xlp_recover($primary, 'index', 'instant', q{
instant_recovery = on
recovery_workers = 2
log_min_messages = debug1
});
cmp_ok((xlp_pending($node))[0], '>=', $pages, 'pages of an index that was built are pending');
cmp_ok(records_read($node), '>', 0, '... records are read again');
cmp_ok(records_read($node), '<', $pages / 4, '... not for each page');
is(xlp_differences($serial, $digest), '', '... and files are the same');

done_testing();
