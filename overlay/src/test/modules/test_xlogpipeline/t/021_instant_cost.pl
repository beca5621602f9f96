
# Copyright (c) 2025, PostgreSQL Global Development Group

# What redo of single pages costs: a record that concerns many pages is read once for
# a run of them, and clients get in early however much WAL there is, and however little
# memory.

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

	return sum0(slurp_file($node->logfile) =~
		  /redo of pages has read (\d+) records again/g);
}

# An index is built: records with 32 pages each.
$primary->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE t AS SELECT g, md5(g::text) m FROM generate_series(1, 100000) g},
	'VACUUM t', 'CHECKPOINT', 'CREATE INDEX ti ON t (m)');
my $pages =
  $primary->safe_psql('postgres', q{SELECT pg_relation_size('ti') / 8192});
xlp_crash($primary, 'index');
my (undef, $serial) =
  xlp_recover($primary, 'index', 'serial', 'instant_recovery = off');
my ($node, $digest) = xlp_recover(
	$primary, 'index', 'instant', q{
instant_recovery = on
recovery_workers = 2
log_min_messages = debug1
});
cmp_ok((xlp_pending($node))[0],
	'>=', $pages, 'pages of an index that was built are pending');
cmp_ok(records_read($node), '>', 0, '... records are read again');
cmp_ok(records_read($node), '<', $pages / 4, '... not for each page');
is(xlp_differences($serial, $digest), '', '... and files are the same');

# Records for a few pages, of which memory holds but a part: they are written to a file, and
# clients still get in before redo.
my $spilled = 'base/pgsql_tmp/pgsql_tmp.recovery';
$primary->start;
$primary->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE hot (i int, v int) WITH (fillfactor = 50);
	  INSERT INTO hot SELECT g, 0 FROM generate_series(1, 2000) g},
	'VACUUM hot',
	'CHECKPOINT',
	q{DO $$ BEGIN FOR n IN 1 .. 10 LOOP UPDATE hot SET v = v + 1; COMMIT; END LOOP; END $$}
  );
xlp_crash($primary, 'full');
(undef, $serial) =
  xlp_recover($primary, 'full', 'full_serial', 'instant_recovery = off');
($node, $digest) = xlp_recover(
	$primary, 'full', 'full_instant', q{
instant_recovery = on
instant_recovery_memory = 64kB
log_min_messages = debug1
});
cmp_ok((xlp_pending($node))[1],
	'>', 20000, 'more records are pending than memory is for');
unlike(
	slurp_file($node->logfile),
	qr/rounds? of redo/,
	'... of which none had to be applied before');
is(xlp_differences($serial, $digest), '', '... and files are the same');
ok(!-e $node->data_dir . "/$spilled",
	'... and the file with records is gone');
my $opened = sum0(slurp_file($node->logfile) =~ /and opened (\d+) segments/g);
cmp_ok($opened, '>', 0, '... segments were read again');
cmp_ok(
	$opened, '<',
	(xlp_pending($node))[0],
	'... but not opened for each page');

# It is written, and goes with other temporary files if recovery is not completed.
$node = PostgreSQL::Test::Cluster->new('again');
$node->init_from_backup($primary, 'full');
$node->append_conf(
	'postgresql.conf',
	xlp_wait_conf() . q{
instant_recovery = on
instant_recovery_memory = 64kB
test_points.fail_at = 'instant-recovery-only-demands:EIO'
});
$node->start;
ok(-e $node->data_dir . "/$spilled",
	'there is a file with records while pages are pending');
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM hot'),
	'2000|20000', '... from which sessions have theirs');
$node->stop('immediate');
$node->append_conf(
	'postgresql.conf', q{
instant_recovery = off
test_points.fail_at = ''
});
$node->start;
ok(!-e $node->data_dir . "/$spilled",
	'... and none when the server has started again');
$node->stop;

# WAL is longer than records can be apart.
($node, $digest) = xlp_recover(
	$primary, 'full', 'long',
	xlp_wait_conf() . q{
instant_recovery = on
test_points.fail_at = 'instant-recovery-short-distance:EIO'
});
ok(xlp_pending($node), 'WAL that is too long: opened before redo');
my ($rounds) = slurp_file($node->logfile) =~ /(\d+) rounds? of redo/;
cmp_ok($rounds // 0, '>', 0, '... after some rounds of redo');
cmp_ok($rounds // 0, '<', 20, '... not one for each record');
is(xlp_differences($serial, $digest), '', '... and files are the same');

# Blocks are not prefetched while their records are only remembered.
$primary->start;
$primary->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE wide AS SELECT g, repeat('x', 500) f FROM generate_series(1, 6000) g},
	'VACUUM wide', 'CHECKPOINT', 'DELETE FROM wide WHERE g % 16 = 0');
xlp_crash($primary, 'wide');
$node = PostgreSQL::Test::Cluster->new('alone');
$node->init_from_backup($primary, 'wide');
$node->append_conf('postgresql.conf',
	"instant_recovery = on\nwal_pipeline = off");
$node->start;
cmp_ok((xlp_pending($node))[0], '>', 300, 'many pages are pending');
cmp_ok(
	$node->safe_psql(
		'postgres', 'SELECT prefetch FROM pg_stat_recovery_prefetch'),
	'<', 100,
	'... and have not been prefetched before');
$node->stop;

# Of a table whose end is cut off, the last page of the visibility map that is left is
# redone before its tail is cleared.  With checksums or wal_log_hints an image of it
# would follow.
$primary =
  xlp_primary('plain', extra => [ '--wal-segsize=1', '--no-data-checksums' ]);
$primary->append_conf('postgresql.conf', 'wal_log_hints = off');
$primary->restart;
$primary->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE tail AS SELECT g, repeat('x', 500) f FROM generate_series(1, 3000) g},
	'VACUUM tail', 'CHECKPOINT', 'DELETE FROM tail WHERE g > 1000',
	'VACUUM tail');
cmp_ok(
	$primary->safe_psql(
		'postgres', q{SELECT pg_relation_size('tail') / 8192}),
	'<', 100,
	'the end of a table is cut off');
xlp_crash($primary, 'tail');
(undef, $serial) =
  xlp_recover($primary, 'tail', 'tail_serial', 'instant_recovery = off');
($node, $digest) =
  xlp_recover($primary, 'tail', 'tail_instant', 'instant_recovery = on');
ok(xlp_pending($node), '... opened before redo');
is(xlp_differences($serial, $digest), '', '... and files are the same');

# What is reserved is bounded, however much WAL there may be: 256 MB and the table of pages.
my %reserved;
foreach my $setting ('on', 'off')
{
	my %settings = (
		instant_recovery => $setting,
		shared_buffers => '8GB',
		max_wal_size => '64GB',
		double_write_buffer_size => '16MB');

	($reserved{$setting}) = run_command(
		[
			'postgres',
			'-D' => $node->data_dir,
			'-C' => 'shared_memory_size',
			map { ('-c' => "$_=$settings{$_}") } sort keys %settings
		]);
}
cmp_ok($reserved{on} - $reserved{off}, '>=', 256,
	'memory is reserved, in MB');
cmp_ok($reserved{on} - $reserved{off}, '<=', 270, '... but not more');

done_testing();
