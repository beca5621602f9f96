
# Copyright (c) 2025, PostgreSQL Global Development Group

# After clients have got in, a page that cannot be redone is an error for sessions
# that need it, and for checkpoints, and for no other process.  When the page is repaired, given
# up, or removed, redo is completed.  Before clients get in recovery ends, as ever.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

# Nothing is in the double-write log, from which pages would be restored.
my $node = dw_quiet_node(
	'fails', conf => q{
instant_recovery = on
recovery_workers = 2
allow_in_place_tablespaces = on
});
my $complete = qr/redo is complete/;
my $failed_error =
  qr/block \d+ of relation "base\/\d+\/\d+" could not be redone after the last crash/;
my (%path, %saved);

# Rows of each table are spread over some pages, all of which are changed after
# the checkpoint.
sub work
{
	foreach my $table ('bad', 'good', 'gone')
	{
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE IF NOT EXISTS $table (i int, f text) WITH (fillfactor = 50);
			TRUNCATE $table;
			INSERT INTO $table SELECT g, repeat('x', 100) FROM generate_series(1, 200) g;
		});
		$path{$table} =
		  $node->safe_psql('postgres',
			"SELECT pg_relation_filepath('$table')");
	}
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', "UPDATE $_ SET i = i + 1")
	  foreach ('bad', 'good', 'gone');
	return;
}

# The checksum of the table's second page does not fit.
sub crash_and_damage
{
	my (@tables) = @_;

	crash_and_write(
		{
			map {
				$_ => sub { substr($_[0], 5000, 100) = 'y' x 100 }
			} @tables
		});
	return;
}

# Change the second page of each of these tables.
sub crash_and_write
{
	my ($tables) = @_;

	$node->stop('immediate');
	foreach my $table (sort keys %$tables)
	{
		$saved{$table} = read_block($node, $path{$table}, 8192);
		my $damaged = $saved{$table};
		$tables->{$table}->($damaged);
		write_block($node, $path{$table}, 8192, $damaged);
	}
	return;
}

sub repair
{
	my ($table) = @_;

	write_block($node, $path{$table}, 8192, $saved{$table});
	return;
}

# A page is not counted as failed while it is tried again.
sub pages_are
{
	my ($pages, $test_name) = @_;

	ok( $node->poll_query_until(
			'postgres',
			'SELECT pages_pending, pages_failed FROM pg_instant_recovery',
			$pages),
		$test_name);
	return;
}

sub total
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*), sum(i) FROM $table");
}

# The checkpoint that the start asked for has failed.  A client that asks for another
# while it does would be told of its failure.
sub first_checkpoint_has_failed
{
	my ($log) = @_;

	$node->wait_for_log(
		qr/ERROR:  \d+ pages? could not be redone after the last crash\n/,
		$log);
	return;
}

# Crash, and let redo of a page of the table fail half-way, once, after so many of its
# records.  In the end the table holds so many rows, with such a sum.  Returns where the
# server log of that begins.
sub redo_is_spoilt
{
	my ($table, $after, $expected) = @_;
	my $nth = $after + 1;
	my $spoilt =
	  $node->safe_psql('postgres', "SELECT pg_relation_filenode('$table')");

	crash_and_damage();
	$node->append_conf(
		'postgresql.conf', qq{
test_doublewrite.spoil_redo_of = $spoilt
test_points.fail_at = 'test-doublewrite-redo:EIO:$nth'
});
	my $log = -s $node->logfile;
	ok(dw_poll_start($node), "$table: server starts");
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM $table")
	  or die 'the page is not redone';
	like(
		slurp_file($node->logfile, $log),
		qr/ERROR:  test error in redo of a page/,
		'... and redo fails when it has changed a page');
	is( $node->safe_psql(
			'postgres',
			"SELECT count(*), sum(i) FROM $table WHERE f = repeat('x', 100)"),
		$expected,
		'... and begins again with what was there before');
	return $log;
}

my $all = '200|20300';

$node->safe_psql('postgres', 'CREATE EXTENSION pg_doublewrite_stats');
pages_are('', 'nothing has been recovered');
work();
crash_and_damage('bad', 'gone');
my $offset = -s $node->logfile;
ok(dw_poll_start($node),
	'server starts with two pages that cannot be redone');
is(total('good'), $all, '... and other tables can be read');
is($node->safe_psql('postgres', "SELECT i FROM bad WHERE ctid = '(0,1)'"),
	'', '... and other pages of the same table');
dw_fails($node, 'SELECT * FROM bad',
	$failed_error, 'a session that needs the page gets an error');
dw_fails($node, 'SELECT * FROM bad', $failed_error, '... each time');
dw_fails(
	$node, 'CHECKPOINT',
	qr/checkpoint request failed/,
	'no checkpoint is made');
like(
	slurp_file($node->logfile, $offset),
	qr/ERROR:  2 pages could not be redone after the last crash/,
	'... and the log says why');
like(
	slurp_file($node->logfile, $offset),
	qr/ERROR:  invalid page in block 1 of relation "\Q$path{bad}\E"/,
	'... and which pages these are');
pages_are('2|2', '... and the view how many');
ok( $node->poll_query_until(
		'postgres',
		q{SELECT bool_or(query = 'redoing pages, 2 to go, 2 failed')
			FROM pg_stat_activity WHERE backend_type = 'recovery worker'}),
	'... and so do workers, without an extension');
ok( $node->poll_query_until(
		'postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'recovery worker'}
	),
	'... of which one stays');

# The cluster cannot be shut down, and the next start begins at the same place.
$node->stop('fast', fail_ok => 1);
dw_wait_for_exit($node);
is( dw_control($node, 'Database cluster state'),
	'in production',
	'a stop leaves the cluster to be recovered');
ok(dw_poll_start($node), 'server starts again');
dw_fails($node, 'SELECT * FROM bad', $failed_error, '... to the same errors');

# Removing a table removes its pages.
dw_fails($node, 'SELECT * FROM gone',
	$failed_error, 'the other table cannot be read');
$node->safe_psql('postgres', 'DROP TABLE gone');
pages_are('1|1', 'a page of a table that is dropped is not needed');

# The page is repaired.
$offset = -s $node->logfile;
repair('bad');
is(total('bad'), $all, 'a page that has been repaired is redone');
ok($node->wait_for_log($complete, $offset), '... and redo is complete');
$node->safe_psql('postgres', 'CHECKPOINT');
pages_are('0|0', '... and a checkpoint is made');

# The page is given up.
work();
crash_and_damage('bad');
ok(dw_poll_start($node), 'server starts');
dw_fails(
	$node, 'CHECKPOINT',
	qr/checkpoint request failed/,
	'... with a page that cannot be redone');
$offset = -s $node->logfile;
$node->append_conf('postgresql.conf', 'zero_damaged_pages = on');
$node->reload;
$node->poll_query_until('postgres', 'SELECT count(*) >= 0 FROM bad')
  or die 'the page is not given up';
like(
	slurp_file($node->logfile, $offset),
	qr/WARNING:  invalid page in block 1 of relation "\Q$path{bad}\E"; zeroing out page/,
	'a page is given up');
$node->safe_psql('postgres', 'CHECKPOINT');
is(total('good'), $all, '... and others are complete');
isnt(total('bad'), $all, '... and its rows are lost');
$node->append_conf('postgresql.conf', 'zero_damaged_pages = off');
$node->reload;

# Redo has changed a page in part when it fails: the page is thrown away, and redo begins
# again with what is at home.
$node->safe_psql(
	'postgres', q{
	CREATE TABLE half (i int, f text) WITH (fillfactor = 50);
	INSERT INTO half SELECT g, repeat('x', 100) FROM generate_series(1, 200) g});
$node->safe_psql('postgres', $_)
  foreach ('CHECKPOINT', 'UPDATE half SET i = i WHERE i % 2 = 0');
redo_is_spoilt('half', 0, '200|20100');

# The page has been changed in an earlier round, and not been written home: a
# tablespace is a barrier.  There is room in the page, so nothing is pruned.
$node->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE rounds AS SELECT g AS i, repeat('x', 100) AS f FROM generate_series(1, 40) g},
	'CHECKPOINT',
	'DELETE FROM rounds WHERE i % 4 = 0',
	q{SET allow_in_place_tablespaces = on; CREATE TABLESPACE barrier LOCATION ''},
	'UPDATE rounds SET i = i WHERE i % 4 = 1');
$offset = redo_is_spoilt('rounds', 10, '30|600');
like(
	slurp_file($node->logfile, $offset),
	qr/round of redo before clients get in.*ERROR:  test error/s,
	'... in a later round');
$node->append_conf('postgresql.conf', 'test_doublewrite.spoil_redo_of = 0');
$node->restart;

# Redo of a page raises a PANIC each time.  The page is given up by its name, as it was
# at the last checkpoint, and later recoveries take it for that.
$node->safe_psql('postgres', $_)
  foreach (
	q{CREATE TABLE given AS SELECT g AS i, repeat('x', 100) AS f FROM generate_series(1, 20) g},
	'CHECKPOINT',
	'DELETE FROM given WHERE i > 10',
	'VACUUM (TRUNCATE off) given',
	# which flushes WAL
	'CREATE EXTENSION pageinspect');
my ($number, $path) = split(
	/\|/,
	$node->safe_psql(
		'postgres',
		q{SELECT pg_relation_filenode('given'), pg_relation_filepath('given')}
	));
crash_and_damage();
$node->append_conf(
	'postgresql.conf', qq{
test_doublewrite.spoil_redo_of = $number
test_points.fail_at = 'test-doublewrite-redo:EIO:1:1000000'
});
$offset = -s $node->logfile;
ok(dw_poll_start($node),
	'server starts, and redo of a page is going to raise a PANIC');
dw_fails($node, 'SELECT * FROM given',
	$failed_error, 'a session that needs it gets an error');
is(total('good'), $all, '... and the server goes on');
dw_fails(
	$node, 'CHECKPOINT',
	qr/checkpoint request failed/,
	'... without checkpoints');
unlike(slurp_file($node->logfile, $offset), qr/PANIC/, '... or a PANIC');
my $give_up = 'SELECT pg_instant_recovery_give_up';
dw_fails(
	$node,
	"$give_up('$path', 1)",
	qr/redo of block 1 of relation "$path" has not failed/,
	'another page of it cannot be given up');
$node->safe_psql('postgres', 'CREATE ROLE other');
dw_fails(
	$node,
	"SET ROLE other; $give_up('$path', 0)",
	qr/permission denied/,
	'... nor by others');
$offset = -s $node->logfile;
$node->safe_psql('postgres', "$give_up('$path', 0)");
like(
	slurp_file($node->logfile, $offset),
	qr/WARNING:  block 0 of relation "$path" has been given up/,
	'the page is given up, which the log says');
is(total('given'), '20|210', '... and is what it was');
is( $node->safe_psql(
		'postgres',
		q{SELECT get_byte(get_raw_page('given', 'vm', 0), 24) & 3}),
	0,
	'... of which the visibility map says nothing');
dw_fails(
	$node,
	"$give_up('$path', 0)",
	qr/has not failed/,
	'... which is done once');
$node->safe_psql('postgres', 'DELETE FROM given WHERE i <= 5');
$node->append_conf('postgresql.conf', 'test_doublewrite.spoil_redo_of = 0');
crash_and_damage();
ok(dw_poll_start($node), 'server starts after one more crash');
is(total('given'), '15|195', '... and the page is what it has become since');
$node->safe_psql('postgres', 'CHECKPOINT');

# A page of zeroes that records do not rebuild is none that they can be applied to.
work();
crash_and_write({ bad => sub { $_[0] = "\0" x 8192 } });
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts with a page of zeroes');
dw_fails($node, 'SELECT * FROM bad',
	$failed_error, '... and no record of it is lost');
first_checkpoint_has_failed($offset);

# The file loses the page.  The other one is given up all the same.
my $file = $node->data_dir . "/$path{bad}";
truncate($file, 8192) or die "could not truncate $file: $!";
$node->safe_psql('postgres', "$give_up('$path{bad}', 1)");
$node->safe_psql('postgres', 'DROP TABLE bad');
$node->safe_psql('postgres', 'CHECKPOINT');
pages_are('0|0', 'a page that its file does not have any more is given up');

# A page of zeroes, and the setting with which stock goes on without such a page.
work();
crash_and_write({ bad => sub { $_[0] = "\0" x 8192 } });
$node->append_conf('postgresql.conf', 'ignore_invalid_pages = on');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts with ignore_invalid_pages');
$node->safe_psql('postgres', 'CHECKPOINT');
pages_are('0|0', '... which gives a page of zeroes up');
like(
	slurp_file($node->logfile, $offset),
	qr/WARNING:  block 1 of relation "\Q$path{bad}\E" is missing or uninitialized/,
	'... and says so');
is(total('good'), $all, '... and others are complete');
$node->append_conf('postgresql.conf', 'ignore_invalid_pages = off');

# Crashes without a checkpoint in between, which cannot be made: clients get in.
work();
crash_and_damage('bad');
foreach my $crash (1 .. 5)
{
	$offset = -s $node->logfile;
	ok(dw_poll_start($node), "server starts after crash $crash")
	  or BAIL_OUT('no start');
	dw_fails($node, 'SELECT * FROM bad',
		$failed_error, '... with the page pending');
	$node->stop('immediate');
}
like(
	slurp_file($node->logfile, $offset),
	qr/redo of pages is completed before clients get in/,
	'... and all others redone');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts');
is(total('good'), $all, '... and tables can be read');
first_checkpoint_has_failed($offset);
repair('bad');
$node->safe_psql('postgres', 'CHECKPOINT');
pages_are('0|0', '... a checkpoint has that one redone when it is repaired');
is(total('bad'), $all, '... completely');

# Pages are gone when they are to be redone, as a record behind the one that all have to be
# redone for removes them.  That is as it should be.
work();
$node->safe_psql('postgres', $_)
  foreach (q{CREATE TABLESPACE round LOCATION ''}, 'TRUNCATE gone');
$node->stop('immediate');
$node->append_conf(
	'postgresql.conf', q{
test_points.fail_at = 'instant-recovery-workers-only:EIO'
});
$offset = -s $node->logfile;
ok(dw_poll_start($node),
	'server starts though pages had been removed when they were to be redone'
);
$node->wait_for_log($complete, $offset);
my $log = slurp_file($node->logfile, $offset);
like($log, qr/1 round of redo before clients get in/, '... which they were');
unlike($log, qr/ERROR:/, '... of which no worker complains');
is(total('good'), $all, '... and tables can be read');

# The startup process needs a page at the end of redo, for a resource manager of an extension.
work();
my $filenode = $path{good} =~ s/.*\///r;
$node->stop('immediate');
$node->append_conf(
	'postgresql.conf', qq{
test_points.fail_at = ''
test_points.cleanup_reads = $filenode
});
$offset = -s $node->logfile;
ok(dw_poll_start($node),
	'server starts though an extension reads a page at the end of redo');
like(
	slurp_file($node->logfile, $offset),
	qr/redo of pages is completed before clients get in\n.*DETAIL: .*custom resource manager/,
	'... when all pages have been redone');
is(total('good'), $all, '... and tables can be read');
$node->append_conf('postgresql.conf', 'test_points.cleanup_reads = 0');

# Workers redo pages before clients get in, and leave the error to the startup process.
work();
crash_and_damage('bad');
$node->append_conf(
	'postgresql.conf', q{
instant_recovery = off
test_points.fail_at = 'instant-recovery-workers-only:EIO'
});
$offset = -s $node->logfile;
ok(!$node->start(fail_ok => 1), 'server does not start');
dw_wait_for_exit($node);
like(
	slurp_file($node->logfile, $offset),
	qr/FATAL:  invalid page in block 1 of relation "\Q$path{bad}\E"/,
	'... for a page that cannot be redone before clients get in');
like(
	slurp_file($node->logfile, $offset),
	qr/CONTEXT: .*WAL redo of block 1 of relation "\Q$path{bad}\E"/s,
	'... and the log says which');
unlike(slurp_file($node->logfile, $offset),
	qr/ERROR:/,
	'... and the worker that has failed to redo it leaves it at that');
repair('bad');
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts when it has been repaired');
like(
	slurp_file($node->logfile, $offset),
	qr/Pages redone: 0 by the startup process/,
	'... and workers redo all pages');
is(total('bad'), $all, '... and nothing is lost');
dw_check_stopped($node);

done_testing();
