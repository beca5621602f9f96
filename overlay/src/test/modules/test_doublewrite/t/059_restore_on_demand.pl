
# Copyright (c) 2025, PostgreSQL Global Development Group

# With instant recovery copies stay in the double-write log until their pages are
# needed.  All pages that have copies are torn here: no process sees one at home.
# Another crash in between, also into a server that restores at its start, finds all
# copies again.  A copy that cannot be read is an error of its page.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $on_demand =
  qr/double-write log: (\d+) pages are restored when they are needed/;
my $restored =
  qr/double-write log: examined \d+ pages in \d+ batches, restored [1-9]/;
my $complete = qr/redo is complete/;
my @tables = ('t', 'idle', 'dropped', 'cut', 'moved');

# Workers redo what is asked for, and nothing else.
my $POINT = 'instant-recovery-only-demands';

my $node = dw_new_node(
	'on_demand', conf => q{
instant_recovery = on
recovery_workers = 2
shared_buffers = 2MB
bgwriter_lru_maxpages = 0
double_write_buffer_size = 256MB
});
$node->start;
dw_extensions($node);
dw_tablespace($node, 'space');
foreach my $table (@tables)
{
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $table (i int PRIMARY KEY, v int, f text) WITH (fillfactor = 80);
		INSERT INTO $table SELECT g, 0, repeat('x', 300) FROM generate_series(1, 1000) g;
	});
}

# Change pages and have them written home, of "idle" with no record after the last
# checkpoint: the log has copies all the same, since pages of it are marked dirty.
sub work
{
	foreach my $table (@tables)
	{
		$node->safe_psql('postgres',
			$table eq 'idle'
			? "SELECT dw_dirty('$table')"
			: "UPDATE $table SET v = v + 1 WHERE i % 5 = 0");
	}
	$node->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
	return;
}

sub sums
{
	my @sums;

	push @sums,
	  $node->safe_psql('postgres', "SELECT '$_', count(*), sum(v) FROM $_")
	  foreach @_;
	return join(' ', @sums);
}

# Crash, and tear all pages that the log has copies of.
sub crash
{
	my ($snapshot) = @_;

	$node->stop('immediate');
	my $torn = dw_tear($node, $snapshot);
	cmp_ok($torn->{logged}, '>', 20, 'many pages are torn');
	return;
}

sub start
{
	my ($pattern, $test_name, @conf) = @_;
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf', "$_\n") foreach @conf;
	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	like(slurp_file($node->logfile, $offset), $pattern, "... and $test_name");
	return $offset;
}

sub let_go
{
	my ($offset) = @_;

	$node->append_conf('postgresql.conf', "test_points.fail_at = ''");
	$node->safe_psql('postgres', "SELECT injection_points_detach('$POINT')");
	$node->wait_for_log($complete, $offset);
	return;
}

# A database is moved; redo of that does not take away copies of what has been changed since.
$node->safe_psql('postgres', 'CREATE DATABASE db');
$node->safe_psql('db',
	q{CREATE TABLE t (i int, f text); INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 1000) g}
);

my $pending = "test_points.fail_at = '$POINT:EIO'";
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', 'ALTER DATABASE db SET TABLESPACE space');
my $snapshot = dw_snapshot($node);
$node->safe_psql('db', 'UPDATE t SET i = i + 1 WHERE i % 10 = 0');
work();
my $expected = sums(@tables);

note 'sessions';
crash($snapshot);
my $offset = start($on_demand, 'leaves copies in the log', $pending);
is( sums('t', 'idle', 'moved'),
	sums('t', 'idle', 'moved'),
	'tables can be read twice');
is(sums(@tables), $expected, '... and are what they were');
is($node->safe_psql('db', 'SELECT count(*), sum(i) FROM t'),
	'1000|500600', 'so is one in a database that has been moved');

note 'files';
my $path =
  $node->safe_psql('postgres', "SELECT pg_relation_filepath('idle')");
$node->safe_psql('postgres', 'ALTER TABLE moved SET TABLESPACE space');
$node->safe_psql('postgres', 'DROP TABLE dropped');
$node->safe_psql('postgres', 'DELETE FROM cut WHERE i > 500');
$node->safe_psql('postgres', 'VACUUM cut');
$node->safe_psql('postgres',
	'INSERT INTO cut SELECT g, 7, repeat(\'y\', 300) FROM generate_series(501, 1000) g'
);
@tables = ('t', 'idle', 'cut', 'moved');
$expected = sums(@tables);
$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE i % 3 = 0');
$node->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
$expected = sums(@tables);

note 'another crash while copies wait, into a server like it';
crash($snapshot);
$offset = start($on_demand, 'finds the copies again');
is(sums(@tables), $expected, 'nothing is lost');

note 'and into one that restores at its start, in another mode';
crash($snapshot);
$offset = start(
	$restored,
	'restores copies',
	'instant_recovery = off',
	"io_torn_pages_protection = 'full_pages'");
unlike(slurp_file($node->logfile, $offset), $on_demand, '... all of them');
is(sums(@tables), $expected, 'nothing is lost');
$node->append_conf(
	'postgresql.conf', qq{
instant_recovery = on
io_torn_pages_protection = 'double_writes'
test_points.fail_at = ''
});
$node->restart;

note 'the first checkpoint brings home what no process has needed';
work();
$expected = sums(@tables);
crash($snapshot);
$offset = start($on_demand, 'leaves copies in the log', $pending);
$node->safe_psql('postgres', 'DROP TABLE moved');
$node->safe_psql('postgres', 'DELETE FROM cut WHERE i > 300');
$node->safe_psql('postgres', 'VACUUM cut');
# no process reads "idle" before the checkpoint
$expected = sums('t', 'cut') . ' idle|1000|0';
@tables = ('t', 'cut', 'idle');
my $length = $node->safe_psql('postgres', q{SELECT pg_relation_size('cut')});
let_go($offset);
$node->safe_psql('postgres', 'CHECKPOINT');
is($node->safe_psql('postgres', q{SELECT pg_relation_size('cut')}),
	$length, '... but none of a block that has been truncated away');
like(
	$node->safe_psql(
		'postgres', "SELECT length(pg_read_binary_file('$path'))"),
	qr/^[1-9]/,
	'files can be read');
crash_without_copies();
$offset = start(qr/redo done/, 'needs no copies');
is(sums(@tables), $expected, 'nothing is lost');

# Nothing is torn: files are as the checkpoint has left them.
sub crash_without_copies
{
	$node->stop('immediate');
	is(scalar(keys %{ dw_live_copies(dw_read_log($node)) }),
		0, 'the log is empty after that');
	return;
}

note 'a copy that cannot be read';
work();
$node->stop('immediate');
my $log = dw_read_log($node);
my ($copy) =
  grep { (dw_home_path($node, $_))[0] eq $path && $_->{blkno} == 1 }
  values %{ dw_live_copies($log) };
my $segment = 'pg_doublewrite/' . sprintf('%016X', $copy->{segno});
ok(defined $copy, 'there is one of a page of table idle');
dw_tear($node, $snapshot);
my $newest = $log->{live}[-1];
isnt($newest->{batchno}, undef, 'there is a newest batch');
$offset = start($on_demand, 'leaves copies in the log', $pending);
write_block($node, $segment, $copy->{offset} + 100, 'z' x 100);
dw_fails(
	$node,
	'SELECT count(*) FROM idle',
	qr/could not read the copy of block 1 of relation "$path" in the double-write log/,
	'a query that needs the page fails');
is(sums('t', 'cut'), sums('t', 'cut'), 'others do not');
let_go($offset);
dw_fails(
	$node, 'CHECKPOINT',
	qr/checkpoint request failed/,
	'no checkpoint is made');
write_block($node, $segment, $copy->{offset}, $copy->{page});
$node->safe_psql('postgres', 'CHECKPOINT');
is(sums('idle'), 'idle|1000|0', 'when it can be read, all is well');
dw_check_amcheck($node);

$node->stop;
done_testing();
