
# Copyright (c) 2025, PostgreSQL Global Development Group

# What the views say of a cluster that has worked and crashed: a restore of a
# page that was damaged, and the queries that monitoring systems are given.

use strict;
use warnings FATAL => 'all';

use JSON::PP;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

sub new_node
{
	my ($name, $mode) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);
	$node->append_conf(
		'postgresql.conf', qq{
io_torn_pages_protection = $mode
shared_buffers = 8MB
double_write_buffer_size = 64MB
max_wal_size = 10GB
checkpoint_timeout = 1h
autovacuum = off
wal_compression = off
double_write_compression = off
});
	$node->start;
	$node->safe_psql(
		'postgres',
		'CREATE EXTENSION pg_doublewrite_stats;
		 CREATE TABLE t (i int PRIMARY KEY, f text) WITH (fillfactor = 70);
		 INSERT INTO t SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 60000) i;
		 CREATE INDEX ON t (f);
		 VACUUM ANALYZE t; CHECKPOINT; SELECT pg_stat_reset_double_writes();');
	return $node;
}

# Rows all over the table, some pages more than once, through two checkpoints
sub work
{
	my ($node) = @_;

	foreach my $round (1 .. 3)
	{
		$node->safe_psql('postgres',
			"UPDATE t SET f = f || '.' WHERE i % 50 = $round; CHECKPOINT");
	}
	return;
}

my $node = new_node('double_writes', 'double_writes');
work($node);

# Sizes that do and sizes that do not
like(
	$node->safe_psql(
		'postgres',
		q{SELECT verdict FROM pg_double_write_sizing
		  WHERE setting = 'double_write_buffer_size'}),
	qr/^(ok|unknown)$/,
	'no fault is found with the size of the log');

my $small = PostgreSQL::Test::Cluster->new('small');
$small->init;
$small->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = double_writes
shared_buffers = 1MB
double_write_stage_size = 128kB
double_write_buffer_size = 16MB
checkpoint_timeout = 1h
autovacuum = off
});
$small->start;
$small->safe_psql(
	'postgres',
	"CREATE EXTENSION pg_doublewrite_stats;
	 CREATE TABLE t (i int, f text) WITH (fillfactor = 70);
	 INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 30000) i");
my $verdicts;
foreach my $round (1 .. 20)
{
	$small->safe_psql('postgres', 'UPDATE t SET f = f WHERE i % 3 = 0');
	$verdicts = $small->safe_psql(
		'postgres',
		q{SELECT string_agg(verdict, ',' ORDER BY setting) FROM pg_double_write_sizing
		  WHERE setting LIKE 'double%'});
	last if $verdicts =~ /could be larger|too small/;
}
like($verdicts, qr/could be larger|too small/, 'sizes are not sufficient');
is( $small->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_double_write_sizing
		  WHERE setting LIKE 'double%' AND verdict NOT IN ('ok', 'unknown')
		    AND explanation !~ '(Try|With) [0-9]+ (kB|MB|GB)'}),
	'0',
	'... and it says what would do');

# The automatic size of the log follows max_wal_size.
foreach
  my $case ([ '1GB', '512 MB' ], [ '6GB', '3072 MB' ], [ '1TB', '4096 MB' ])
{
	my ($wal, $log) = @$case;

	$small->append_conf('postgresql.conf',
		"double_write_buffer_size = -1\nmax_wal_size = $wal");
	$small->reload;
	$small->poll_query_until('postgres', "SHOW max_wal_size", $wal)
	  or die "max_wal_size has not changed";
	is( $small->safe_psql(
			'postgres',
			'SELECT pg_size_pretty(limit_bytes) FROM pg_double_write_log'),
		$log,
		"log of up to $log if max_wal_size = $wal");
}

$small->stop;

# A crash, and a page damaged at home, which is restored if that comes first.
$node->append_conf('postgresql.conf', 'instant_recovery = off');
$node->safe_psql('postgres',
	'CHECKPOINT; SELECT pg_stat_reset_double_writes()');
$node->safe_psql('postgres', "UPDATE t SET f = f || '.' WHERE i % 50 = 7");
$node->poll_query_until('postgres',
	'SELECT pages_logged > 10 FROM pg_stat_double_writes')
  or die "no page was evicted";
$node->stop('immediate');
my ($out) =
  run_command(
	[ 'pg_doublewrite', 'list', '--json', '--pages', $node->data_dir ]);
my $log = decode_json($out);
my ($batch) =
  grep { $_->{status} eq 'live' && $_->{page_count} > 0 }
  @{ $log->{batches} };
my ($page) = grep { $_->{file} =~ /^base\/\d+\/\d+$/ } @{ $batch->{pages} };
my ($file, $offset) = place_of_block($node, $page->{file}, $page->{block});
write_block($node, $file, $offset + BLCKSZ / 2, "torn" x 1024);
$node->start;

is( $node->safe_psql(
		'postgres',
		'SELECT pages_restored > 0, finished BETWEEN pg_postmaster_start_time() AND now()
		 FROM pg_double_write_restore'),
	't|t',
	'this start has restored pages');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'),
	60000, 'nothing was lost');
$node->restart;
is( $node->safe_psql(
		'postgres', 'SELECT count(*) FROM pg_double_write_restore'),
	0,
	'a clean start restores nothing');

# What is given to monitoring systems
SKIP:
{
	my $dir = $ENV{PGDW_MONITORING_DIR};
	my %metrics;

	skip 'no directory with queries given', 1 unless defined $dir;
	my $yaml = slurp_file("$dir/postgres_exporter.yaml");
	while ($yaml =~
		/^(\w+):\n  query: \|\n((?:    .*\n)+)  metrics:\n((?:    .*\n)+)/mg)
	{
		my ($namespace, $query, $listed) = ($1, $2, $3);
		my @listed = $listed =~ /^    - (\w+):$/mg;
		my ($ret, $stdout, $stderr) = $node->psql('postgres',
			"\\pset footer off\n\\pset format csv\n$query");

		is($stderr, '', "query of $namespace works");
		$node->safe_psql('postgres', "CREATE VIEW columns_of AS $query");
		is( $node->safe_psql(
				'postgres',
				q{SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute
				  WHERE attrelid = 'columns_of'::regclass AND attnum > 0}),
			join(' ', @listed),
			"metrics of $namespace are its columns");
		$node->safe_psql('postgres', 'DROP VIEW columns_of');
		$metrics{"${namespace}_$_"} = 1 foreach @listed;
	}
	cmp_ok(scalar(keys %metrics), '>', 20, 'queries were found');

	my $dashboard = decode_json(slurp_file("$dir/grafana-dashboard.json"));
	my %unknown;
	foreach my $panel (@{ $dashboard->{panels} })
	{
		foreach my $target (@{ $panel->{targets} })
		{
			foreach my $metric ($target->{expr} =~ /\b(pg_double_write\w+)/g)
			{
				$unknown{$metric} = 1 unless $metrics{$metric};
			}
		}
	}
	is(join(' ', sort keys %unknown), '',
		'dashboard uses metrics that exist');
}

$node->stop;
done_testing();
