# Copyright (c) 2025, PostgreSQL Global Development Group

# The wall clock is set back.  Pauses are measured by one that cannot be set, so
# pages that could not be written home are still tried again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $library = "$dir/test_doublewrite_clock.so";
plan skip_all => 'no library that could stand for the clock'
  unless -e $library;

my $node = dw_new_node(
	'main', conf => q{
shared_buffers = 16MB
bgwriter_delay = 50ms
bgwriter_lru_maxpages = 0
});
{
	local $ENV{LD_PRELOAD} = $library;
	$node->start;
}
dw_extensions($node);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i; CHECKPOINT}
);

# The background writer has tried twice at least: it has noted when it did so.
$node->safe_psql(
	'postgres', q{
	SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000);
	DELETE FROM t WHERE id = 1; SELECT dw_evict('t')});
$node->poll_query_until('postgres',
	q{SELECT points_hits('doublewrite-home-write') >= 3})
  or die 'the page is not tried again';

my $now = 'SELECT extract(epoch FROM clock_timestamp())';
my $before = $node->safe_psql('postgres', $now);
append_to_file($node->data_dir . '/test_doublewrite.clock_back', '');
cmp_ok($node->safe_psql('postgres', $now), '<', $before, 'clock is set back');
$node->safe_psql('postgres',
	q{SELECT points_clear('doublewrite-home-write')});
ok( $node->poll_query_until('postgres', 'SELECT in_use = 0 FROM dw_state()'),
	'background writer tries the page again');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'),
	99, 'nothing is lost');
$node->stop;

done_testing();
