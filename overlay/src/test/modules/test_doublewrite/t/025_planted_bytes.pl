
# Copyright (c) 2025, PostgreSQL Global Development Group

# Compressed pages put bytes that users have chosen at the start of blocks of
# the log, and recycled segments keep them there.  Such bytes are never taken
# for a batch, nor is anything in a batch used to index an array before it has
# been looked at.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_quiet_node('main', conf => "double_write_buffer_size = 64MB\n");

# A live range in two segments, and torn pages.  Bytes are planted in those behind it.
$node->poll_query_until('postgres',
	'SELECT last_segno - segno >= 4 FROM dw_state()')
  or die 'no segments are prepared';
$node->safe_psql(
	'postgres', q{
	CREATE TABLE t AS SELECT i AS id, 0 AS v, repeat('x', 1000) AS filler
		FROM generate_series(1, 5000) i;
	CHECKPOINT;
	SELECT dw_sync_cycle();
	UPDATE t SET v = 1;
	SELECT dw_evict('t'); SELECT dw_drain();
	UPDATE t SET v = 2 WHERE id <= 100;
	SELECT dw_evict('t'); SELECT dw_drain()});
$node->stop('immediate');

my $log = dw_read_log($node);
my @live = @{ $log->{live} };
my $newest = $live[-1];
my $end = $newest->{blockno} + $newest->{nblocks};
my $torn = dw_tear_copied($node);

cmp_ok($torn, '>', 500, 'pages are torn');
cmp_ok($newest->{segno}, '>', $live[0]{segno},
	'live range has several segments');
cmp_ok($end, '<', 500, 'there is room behind the newest batch');

my $said = dw_tool($node, 'dry-run');
is($said->{verdict}, 'restore', 'the log is good');
is($said->{restored}, $torn, '... for all torn pages');

# An empty batch that makes the log empty, as an attacker would write it that knows
# all except the random number.
sub planted
{
	my ($segno, $blockno, %fields) = @_;

	return dw_forged_header(
		$node, $newest,
		batchno => $newest->{batchno} + 1,
		low_water => $newest->{batchno} + 1,
		segno => $segno,
		blockno => $blockno,
		npages => 0,
		entries => [],
		nonce => 4711,
		%fields);
}

my @places = (
	[ 'right behind the newest batch', $newest->{segno}, $end ],
	[ 'further behind', $newest->{segno}, $end + 7 ],
	[ 'in the next segment', $newest->{segno} + 1, 5 ],
	[ 'in the segment after that', $newest->{segno} + 2, 5 ]);

# The control: with the right number it would be believed.
my ($what, $segno, $blockno) = @{ $places[0] };
my $path = sprintf('pg_doublewrite/%016X', $segno);
my $was = read_block($node, $path, $blockno * BLCKSZ);

write_block(
	$node, $path,
	$blockno * BLCKSZ,
	planted($segno, $blockno, nonce => $newest->{nonce}));
is(dw_tool($node, 'dry-run')->{verdict},
	'nothing', 'a batch of the server itself is believed');
write_block($node, $path, $blockno * BLCKSZ, $was);

foreach my $place (@places)
{
	($what, $segno, $blockno) = @$place;
	$path = sprintf('pg_doublewrite/%016X', $segno);
	foreach my $fields ({}, { sysid => 4711 })
	{
		write_block(
			$node, $path,
			$blockno * BLCKSZ,
			planted($segno, $blockno, %$fields));
		$said = dw_tool($node, 'dry-run');
		is( "$said->{verdict} $said->{restored}",
			"restore $torn",
			"$what: planted bytes change nothing, " . join(' ', keys %$fields)
		);
	}
}

# A fork that does not exist, in a batch that is intact otherwise
my $middle = (grep { $_->{npages} > 0 } @live)[1];
my @entries = map {
	{ %$_ }
} @{ $middle->{entries} };
$path = sprintf('pg_doublewrite/%016X', $middle->{segno});
$was = read_block($node, $path, $middle->{blockno} * BLCKSZ);
$entries[0]{fork} = 65000;
write_block(
	$node, $path,
	$middle->{blockno} * BLCKSZ,
	dw_forged_header($node, $middle, entries => \@entries));
command_checks_all(
	[ 'pg_doublewrite', 'list', '--pages', $node->data_dir ], 2,
	[qr/batch $middle->{batchno} is missing/], [qr/^$/],
	'unknown fork: the tool takes it for damage');
my $offset = -s $node->logfile;
ok(!dw_poll_start($node), 'unknown fork: server does not start');
like(
	slurp_file($node->logfile, $offset),
	qr/double-write log is damaged: batch $middle->{batchno} is missing/,
	'unknown fork: says why');
write_block($node, $path, $middle->{blockno} * BLCKSZ, $was);

# All that has been planted is still there.
$offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts');
is(dw_restore_line($node, $offset)->{restored},
	$torn, 'all torn pages are restored');
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'),
	'5000|5100', 'nothing is lost');
$node->stop;

done_testing();
