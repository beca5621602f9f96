# Copyright (c) 2025, PostgreSQL Global Development Group

# Pages of thousands of files: it is the log that gets full, not the table of
# files that it protects (R3).  Counts only.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# More than the table has room for when the log is small
my $TABLES = 4500;
my $LEAST_ROOM = 4096;

my $node = dw_quiet_node(
	'main', conf => q{
double_write_buffer_size = 128MB
double_write_stage_size = 8MB
});

$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION pg_doublewrite_stats;
	DO \$\$BEGIN
		FOR i IN 1..$TABLES LOOP
			EXECUTE format('CREATE TABLE t%s AS SELECT 0 AS v', i);
			IF i % 100 = 0 THEN COMMIT; END IF;
		END LOOP;
	END\$\$;
	CREATE PROCEDURE set_all(new int) LANGUAGE plpgsql AS \$\$BEGIN
		FOR i IN 1..$TABLES LOOP
			EXECUTE format('UPDATE t%s SET v = %s', i, new);
			IF i % 100 = 0 THEN COMMIT; PERFORM dw_evict_all(), dw_drain(); END IF;
		END LOOP;
	END\$\$;
	CREATE FUNCTION all_are(wanted int) RETURNS bool LANGUAGE plpgsql AS \$\$
	DECLARE found int;
	BEGIN
		FOR i IN 1..$TABLES LOOP
			EXECUTE format('SELECT v FROM t%s', i) INTO STRICT found;
			IF found <> wanted THEN RAISE 'table % has %', i, found; END IF;
		END LOOP;
		RETURN true;
	END\$\$;
	CHECKPOINT});

sub counters
{
	my %value;

	foreach (
		split /\n/,
		$node->safe_psql(
			'postgres', 'SELECT name, value FROM pg_double_write_counters()'))
	{
		my ($name, $number) = split /\|/;
		$value{$name} = $number;
	}
	return \%value;
}

# What some SQL counts
sub counted
{
	my ($sql) = @_;
	my $before = counters();

	$node->safe_psql('postgres', $sql);
	my $after = counters();
	return { map { $_ => $after->{$_} - $before->{$_} } keys %$after };
}

sub files_to_sync
{
	return $node->safe_psql('postgres',
		'SELECT files_to_sync FROM pg_double_write_log');
}

# Write a page of each of these tables home
sub write_tables
{
	my ($value, @tables) = @_;

	$node->safe_psql(
		'postgres',
		join(' ',
			map { "UPDATE t$_ SET v = $value; SELECT dw_evict('t$_');" }
			  @tables)
		  . ' SELECT dw_drain()');
	return;
}

# Do something while a sync cycle has begun, and has synced nothing yet
sub during_cycle
{
	my ($do) = @_;

	$node->safe_psql('postgres',
		q{SELECT injection_points_attach('doublewrite-sync-cycle', 'wait')});
	my $cycle = $node->background_psql('postgres');
	$cycle->query_until(qr/started/,
		"\\echo started\nSELECT dw_sync_cycle();\n");
	$node->wait_for_event('client backend', 'doublewrite-sync-cycle');
	$do->();
	dw_wake($node, 'doublewrite-sync-cycle');
	$cycle->query('SELECT 1');
	$cycle->quit;
	return;
}

# --- As many files as the log holds pages are no reason for a sync cycle

my $d = counted('CALL set_all(1)');
cmp_ok($d->{logged}, '>=', $TABLES, 'a page of each table was logged');
is($d->{sync_cycles}, 0, 'no sync cycle');
my $files = files_to_sync();
cmp_ok($files, '>=', $TABLES, 'all files are remembered');

# --- A cycle syncs each of them once

$d = counted('SELECT dw_sync_cycle()');
is($d->{sync_cycles}, 1, 'a sync cycle');
is($d->{sync_cycle_files}, $files, '... syncs all files');
is(files_to_sync(), 0, '... and forgets them');

# --- What is written during a cycle is not forgotten, be the file new or known

write_tables(2, 1 .. 40);
is(files_to_sync(), 40, 'files before a cycle');
during_cycle(
	sub {
		write_tables(3, 31 .. 60);
		is(files_to_sync(), 60, 'files during it');
	});
is(files_to_sync(), 30, '... which are left after it');

# they are found: that they are logged again, in another epoch, makes them no more
during_cycle(
	sub {
		write_tables(4, 21 .. 60);
		is(files_to_sync(), 40, 'each is remembered once');
	});
is(counted('SELECT dw_sync_cycle()')->{sync_cycle_files},
	40, '... and synced');

# --- The same goes for a checkpoint

write_tables(5, 1 .. 40);
$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-checkpoint-drained', 'wait')}
);
my $checkpoint = $node->background_psql('postgres');
$checkpoint->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
$node->wait_for_event('checkpointer', 'doublewrite-checkpoint-drained');
write_tables(6, 31 .. 60);
dw_wake($node, 'doublewrite-checkpoint-drained');
$checkpoint->query('SELECT 1');
$checkpoint->quit;
is(files_to_sync(), 30,
	'files written during a checkpoint are left after it');
is(counted('SELECT dw_sync_cycle()')->{sync_cycle_files},
	30, '... and synced');

# --- A crash with all of them in the log

$node->safe_psql('postgres', 'CALL set_all(7)');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', 'SELECT all_are(7)'),
	't', 'crash: nothing lost');

# --- A small log has least room.  If its bound is raised while the server runs, the
# table can get full: cycles make room, run by the checkpointer or by a process
# that needs the room.

sub restart_with_little_room
{
	$node->append_conf('postgresql.conf', 'double_write_buffer_size = 16MB');
	$node->restart;
	$node->append_conf('postgresql.conf', 'double_write_buffer_size = 1GB');
	$node->reload;
	$node->poll_query_until('postgres',
		'SELECT limit_bytes = 1 << 30 FROM pg_double_write_log')
	  or die 'setting was not changed';
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

restart_with_little_room();
my @stopped = dw_stop_processes($node, 'checkpointer');
$d = counted('CALL set_all(8)');
kill('CONT', @stopped);
cmp_ok($d->{files_full}, '>', 0, 'the table of files is full');
is($d->{log_full}, $d->{files_full}, '... and the log is not');
cmp_ok($d->{file_cycles}, '>', 0, '... which a cycle ends');
cmp_ok(
	$d->{sync_cycle_files},
	'<=',
	$d->{sync_cycles} * $LEAST_ROOM,
	'... of no more files than that');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', 'SELECT all_are(8)'),
	't', 'full table and crash: nothing lost');

# the checkpointer begins a cycle before that
restart_with_little_room();
my $cycles = counters()->{file_cycles};
$node->safe_psql('postgres', 'CALL set_all(9)');
ok( $node->poll_query_until(
		'postgres',
		"SELECT value > $cycles FROM pg_double_write_counters() WHERE name = 'file_cycles'"
	),
	'the checkpointer makes room by itself');
is($node->safe_psql('postgres', 'SELECT all_are(9)'),
	't', '... and nothing is lost');
$node->stop;

done_testing();
