
# Copyright (c) 2025, PostgreSQL Global Development Group

# Restore writes neighbouring pages together, and syncs files in groups.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $PAGES = 600;
my $quiet = q{
shared_buffers = 16MB
double_write_buffer_size = 64MB
bgwriter_lru_maxpages = 0
wal_log_hints = off
wal_pipeline = off
};

# Change pages of the table, write them back, crash, and tear them.
sub crash_with_copies
{
	my ($node, $value, $where) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	$node->safe_psql('postgres', "UPDATE t SET v = $value $where");
	$node->safe_psql('postgres', q{SELECT dw_evict('t'); SELECT dw_drain()});
	$node->stop('immediate');
	my $torn = dw_tear($node, $old, only => qr/^base/);
	cmp_ok($torn->{logged}, '>', $PAGES / 2, 'pages were torn');
	return ($old, $torn);
}

# Start, and see whether all is there.
sub start
{
	my ($node, $torn, $value, $where) = @_;
	dw_start_after_crash($node, $torn);

	# as redo left it, and as it is at home
	my $query =
		"SELECT count(*) FROM t $where"
	  . ($where ? ' AND' : 'WHERE')
	  . " v = $value";
	my $expected = $where ? int($PAGES * 2 * 4 / 5) : $PAGES * 2;
	for (1, 2)
	{
		is($node->safe_psql('postgres', $query), $expected,
			'nothing is lost');
		$node->safe_psql('postgres',
			q{SELECT dw_drain(); SELECT dw_evict_all(); SELECT dw_drain()});
	}
	$node->safe_psql('postgres', "SELECT bt_index_check('t_pkey', true)");
}

my $node = dw_new_node('main', conf => $quiet);

$node->start;
dw_extensions($node);

# two rows a page, and room for new versions of them
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE t (id int PRIMARY KEY, v int, filler text) WITH (fillfactor = 10);
	INSERT INTO t SELECT i, 0, repeat('x', 300) FROM generate_series(0, 2 * $PAGES - 1) i;
});
is($node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192}),
	$PAGES, 'size of the table');

# Gaps between the pages, and nothing is read ahead
{
	my $where = 'WHERE id / 2 % 5 <> 0';
	my (undef, $torn) = crash_with_copies($node, 3, $where);

	$node->append_conf('postgresql.conf', 'maintenance_io_concurrency = 0');
	start($node, $torn, 3, $where);
	$node->append_conf('postgresql.conf', 'maintenance_io_concurrency = 16');
}

# The device is told of pages while others are being read, and files are synced,
# more of them than in one group.
my $FILES = 70;
my $each = sprintf(
	q{DO $$BEGIN FOR i IN 1..%d LOOP EXECUTE format(%%s, i); END LOOP; END$$},
	$FILES);
my $GROUP = 'doublewrite-restore-group-synced';

# Change a page in each of many files, write them back, and crash.
sub crash_with_files
{
	my ($node, $value) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	$node->safe_psql('postgres',
		sprintf($each, "'UPDATE many_%s SET v = $value'"));
	$node->safe_psql('postgres', q{SELECT dw_evict_all(); SELECT dw_drain()});
	$node->stop('immediate');
	return $old;
}

$node->safe_psql('postgres',
	sprintf($each, q{'CREATE TABLE many_%s AS SELECT 0 AS v'}));
{
	crash_with_files($node, 1);
	# far more than there are: they are counted
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = '$GROUP:1000'");
	my $line = dw_start_after_crash($node);
	my ($writebacks, $fsyncs) = split /\|/, $node->safe_psql(
		'postgres', q{
		SELECT sum(writebacks), sum(fsyncs) FROM pg_stat_io
		WHERE backend_type = 'startup' AND object = 'relation'});

	cmp_ok($line->{examined}, '>=', 70, 'many files: pages were logged');
	is( $writebacks,
		$line->{examined} - $line->{missing},
		'many files: writing to disk begins at once');
	cmp_ok($fsyncs, '>=', $FILES, 'many files: all are synced');
	is($node->safe_psql('postgres', "SELECT points_hits('$GROUP')"),
		2, 'many files: in two groups');
}

# The power fails when the first group has been synced: all is restored once more.
{
	my $old = crash_with_files($node, 2);
	my $torn = dw_tear($node, $old, only => qr/^base/);
	my $offset = -s $node->logfile;

	cmp_ok($torn->{logged}, '>=', $FILES, 'between groups: pages were torn');
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = '$GROUP:1'");
	ok(!dw_poll_start($node), 'between groups: server does not start');
	dw_wait_for_crash($node, $offset);

	# those of the second group may be torn again, and those of the first are as well
	$torn = dw_tear($node, $old, only => qr/^base/);
	cmp_ok($torn->{logged}, '>', $FILES / 2,
		'between groups: they were torn again');
	$node->append_conf('postgresql.conf',
		"test_points.crash_at = '$GROUP:1000'");
	my $line = dw_start_after_crash($node, $torn);

	cmp_ok($line->{examined}, '>=', $FILES,
		'between groups: the log still has them');
	cmp_ok($line->{restored}, '>=', $torn->{logged},
		'between groups: all are restored');
	$node->safe_psql(
		'postgres',
		'CREATE FUNCTION many() RETURNS SETOF int LANGUAGE plpgsql AS '
		  . sprintf(
			q{$$BEGIN FOR i IN 1..%d LOOP RETURN QUERY EXECUTE format('SELECT v FROM many_%%s', i);
			END LOOP; END$$}, $FILES));
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), min(v), max(v) FROM many() v'),
		"$FILES|2|2",
		'between groups: nothing is lost');
}

# Few tables of many files: no more than so many are kept open for a sync.
{
	my $size = blocks_per_file($node) * BLCKSZ;
	my @paths = map {
		$node->data_dir . '/'
		  . $node->safe_psql('postgres',
			"SELECT pg_relation_filepath('many_$_')")
	} (1, 2, 3);

	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->stop;
	# with holes: they take no space
	foreach my $path (@paths)
	{
		foreach my $file ($path, map { "$path.$_" } (1 .. 130))
		{
			open my $handle, '>>', $file or die "could not open $file: $!";
			truncate($handle, $size) or die "could not enlarge $file: $!";
			close $handle;
		}
	}
	$node->start;
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres',
		"UPDATE many_$_ SET v = 3 WHERE ctid = (SELECT ctid FROM many_$_ LIMIT 1)"
	) foreach (1, 2, 3);
	$node->safe_psql('postgres', q{SELECT dw_evict_all(); SELECT dw_drain()});
	$node->stop('immediate');
	my $line = dw_start_after_crash($node);
	cmp_ok($line->{examined}, '<', 64,
		'large tables: fewer than the forks of a group');
	is($node->safe_psql('postgres', "SELECT points_hits('$GROUP')"),
		2, 'large tables: in two groups');
	is( $node->safe_psql(
			'postgres',
			join(' UNION ',
				map { "(SELECT v FROM many_$_ LIMIT 1)" } (1, 2, 3))),
		3,
		'large tables: nothing is lost');
	$node->safe_psql('postgres', "DROP TABLE many_$_") foreach (1, 2, 3);
}
$node->append_conf('postgresql.conf', "test_points.crash_at = ''");

# Crashes in restore, between two runs of pages.  Page by page there are more than
# a hundred, in runs of 16 there are not.
{
	my ($old, $torn) = crash_with_copies($node, 4, '');
	my $offset = -s $node->logfile;

	$node->append_conf(
		'postgresql.conf', q{
io_combine_limit = 8kB
test_points.crash_at = 'doublewrite-restore-run:100'});
	ok(!dw_poll_start($node), 'page by page: server does not start');
	dw_wait_for_crash($node, $offset);
	$torn = dw_tear($node, $old, only => qr/^base/);

	$offset = -s $node->logfile;
	$node->append_conf(
		'postgresql.conf', q{
io_combine_limit = 128kB
test_points.crash_at = 'doublewrite-restore-run:10'});
	ok(!dw_poll_start($node), 'in runs: server does not start');
	dw_wait_for_crash($node, $offset);
	$torn = dw_tear($node, $old, only => qr/^base/);

	$node->append_conf('postgresql.conf',
		q{test_points.crash_at = 'doublewrite-restore-run:100'});
	start($node, $torn, 4, '');
	$node->append_conf('postgresql.conf', q{test_points.crash_at = ''});
}
$node->stop;

done_testing();
