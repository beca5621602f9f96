
# Copyright (c) 2025, PostgreSQL Global Development Group

# What a crash would mean is counted: pages that redo would read, pages that would be
# restored, and where redo would begin.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

# Pages of the table; beside them some of the catalogs and maps may change.
my $PAGES = 200;
my $OTHERS = 20;

sub counts
{
	my ($node) = @_;

	return decode_json(
		$node->safe_psql(
			'postgres',
			'SELECT row_to_json(r) FROM pg_double_write_recovery r'));
}

sub to_redo
{
	my ($node, $least, $what) = @_;
	my $n = counts($node)->{pages_to_redo} // 'unknown';

	ok($n ne 'unknown' && $n >= $least && $n <= $least + $OTHERS,
		"$what: $n pages to redo, $least expected");
	return;
}

# Each row has a page, and room on it.
my $update = 'UPDATE t SET v = v + 1';

my $node = dw_new_node(
	'main',
	init => { allows_streaming => 1 },
	conf => 'shared_buffers = 16MB');
$node->start;
dw_extensions($node);
$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION pg_doublewrite_stats;
	CREATE TABLE t (id int, v int, filler text) WITH (fillfactor = 50, autovacuum_enabled = off);
	ALTER TABLE t ALTER filler SET STORAGE PLAIN;
	INSERT INTO t SELECT i, 0, repeat('x', 3000) FROM generate_series(1, $PAGES) i;
	VACUUM FREEZE t;
	CHECKPOINT});

to_redo($node, 0, 'after a checkpoint');
$node->safe_psql('postgres', $update);
to_redo($node, $PAGES, 'changed once');
$node->safe_psql('postgres', "VACUUM t; $update");
to_redo($node, $PAGES, 'changed again');

# A checkpoint is under way: until it has completed redo begins at the pointer before,
# and reads each page once.
my $redo = counts($node)->{redo_lsn};
$node->safe_psql('postgres',
	q{SELECT injection_points_attach('doublewrite-checkpoint-scanned', 'wait')}
);
my $checkpoint = dw_start($node, 'checkpoint', 'CHECKPOINT');
$node->{dw_held} = 'doublewrite-checkpoint-scanned';
dw_wait_until_held($node);
$node->safe_psql('postgres', $update);
to_redo($node, $PAGES, 'across a checkpoint');
is(counts($node)->{redo_lsn}, $redo, '... from where redo begins');
dw_wake($node, 'doublewrite-checkpoint-scanned');
dw_finish($checkpoint);
to_redo($node, $PAGES, 'changed since it began');
isnt(counts($node)->{redo_lsn}, $redo, '... from the new place');
$node->safe_psql('postgres', 'CHECKPOINT');
to_redo($node, 0, 'after another one');

# A standby counts what its restart would redo, from its last restartpoint.
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
to_redo($standby, 0, 'standby');
$redo = counts($standby)->{redo_lsn};

foreach my $passed (0 .. 2)
{
	$node->safe_psql('postgres', "$update; CHECKPOINT");
	$node->wait_for_catchup($standby);
	to_redo($standby, $PAGES, "standby, $passed redo pointers passed");
	is(counts($standby)->{redo_lsn}, $redo, '... but no restartpoint');
}
$standby->safe_psql('postgres', 'CHECKPOINT');
to_redo($standby, 0, 'standby after a restartpoint');

# It remembers as many redo pointers as there is room for.
$node->safe_psql('postgres', 'VACUUM t; CHECKPOINT') foreach (1 .. 10);
$node->wait_for_catchup($standby);
is(counts($standby)->{pages_to_redo}, undef, 'standby: not known any more');
$standby->stop;

# Pages in the log, which the program counts as the server restores them.
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "$update; SELECT dw_evict('t'), dw_drain()");
my $counts = counts($node);
cmp_ok($counts->{pages_to_restore}, '>=', $PAGES, 'pages to restore');
cmp_ok($counts->{log_bytes}, '>', 0, '... which the log has');
cmp_ok($counts->{files}, '>=', 1, '... and files');
cmp_ok($counts->{wal_bytes}, '>', 0, 'WAL to replay');
$node->stop('immediate');
my ($out) = run_command([ 'pg_doublewrite', '--json', $node->data_dir ]);
my $state = decode_json($out)->{state};
cmp_ok($state->{wal_to_replay_bytes},
	'>=', $counts->{wal_bytes}, 'WAL, as the program counts it');
my $offset = -s $node->logfile;
$node->start;
my $line = dw_restore_line($node, $offset);
is($line->{examined}, $state->{pages_to_restore}, 'pages that were restored');
cmp_ok(
	$line->{examined}, '<=',
	$counts->{pages_to_restore},
	'... were counted');
like(
	slurp_file($node->logfile, $offset),
	qr/redo starts at \Q$counts->{redo_lsn}\E\n/,
	'redo began where it was said');
$node->stop;

done_testing();
