
# Copyright (c) 2025, PostgreSQL Global Development Group

# Compression of the log: pages of every method are restored, whatever the
# setting is by then, and what cannot be decompressed is refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my %number = (off => 0, lz4 => 1, zstd => 2);

# Nothing goes home unless the test says so
my $node = dw_new_node(
	'main', conf => q{
shared_buffers = 16MB
double_write_stage_size = 8MB
double_write_buffer_size = 64MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
wal_writer_delay = 10s
});

sub set_method
{
	my ($method) = @_;

	$node->safe_psql('postgres',
		"ALTER SYSTEM SET double_write_compression = '$method'");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('double_write_compression') = '$method'")
	  or die "setting does not arrive";
	return;
}

# Change tables and write them back.  Returns how many pages were logged, the
# space they took in the log, and all that was written to it.
sub change
{
	my (@tables) = @_;
	my $counters = 'SELECT logged, logged_bytes, log_bytes FROM dw_stats()';
	my @before = split /\|/, $node->safe_psql('postgres', $counters);

	$node->safe_psql('postgres',
		join(';', map { "UPDATE $_ SET v = v + 1" } @tables));
	$node->safe_psql('postgres',
		join(';', map { "SELECT dw_evict('$_')" } @tables)
		  . '; SELECT dw_drain()');
	my @after = split /\|/, $node->safe_psql('postgres', $counters);
	return map { $after[$_] - $before[$_] } (0 .. 2);
}

# What a table holds
sub contents
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*), sum(v), md5(string_agg(filler::text, '' ORDER BY id)) FROM $table"
	);
}

# A short sequence that lz4 decompresses to less than a page: literals only
sub lz4_literals
{
	my ($length) = @_;

	foreach my $extra (1 .. 40)
	{
		my $n = $length - 1 - $extra;
		my $rest = $n - 15 - 255 * ($extra - 1);

		return pack('C*', 0xF0, (255) x ($extra - 1), $rest) . 'x' x $n
		  if $rest >= 0 && $rest < 255;
	}
	die "no literals of length $length";
}

# Change bytes of the log; the tool and the server say why they refuse it.
# With dry_run, the tool finds it only when it decompresses pages.
sub refuses
{
	my ($what, $changes, $tool, $server, %params) = @_;
	my @was;

	foreach my $change (@$changes)
	{
		my ($segno, $offset, $bytes) = @$change;
		my $path = sprintf('pg_doublewrite/%016X', $segno);
		my $was = substr(slurp_file($node->data_dir . "/$path"),
			$offset, length($bytes));

		isnt($was, $bytes, "$what: bytes differ");
		push @was, [ $path, $offset, $was ];
		write_block($node, $path, $offset, $bytes);
	}

	my $logged = -s $node->logfile;
	command_checks_all(
		[ 'pg_doublewrite', 'check', $node->data_dir ],
		$params{dry_run} ? 0 : 2,
		[ $params{dry_run} ? qr/would restore pages/ : $tool ],
		[qr/^$/],
		"$what: check");
	command_fails_like([ 'pg_doublewrite', 'dry-run', $node->data_dir ],
		$tool, "$what: dry run")
	  if $params{dry_run};
	ok(!dw_poll_start($node), "$what: server does not start");
	like(slurp_file($node->logfile, $logged), $server, "$what: says why");

	write_block($node, @$_) foreach @was;
	return;
}

$node->start;
dw_extensions($node);
my @methods = grep { $_ ne 'off' } split /\n/,
  $node->safe_psql('postgres',
	"SELECT unnest(enumvals) FROM pg_settings WHERE name = 'double_write_compression'"
  );
plan skip_all => 'no compression is supported by this build' unless @methods;

my ($ret, $stdout, $stderr) = $node->psql('postgres',
	"ALTER SYSTEM SET double_write_compression = 'pglz'");
like(
	$stderr,
	qr/invalid value for parameter "double_write_compression": "pglz"\nHINT: .*: @{[join ', ', @methods]}, off\./,
	'a method that is not supported is refused');

# A row of 'noise' fills a page with random bytes.
foreach my $table ('off', 'resumed', @methods)
{
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE t_$table (id int, v int, filler text) WITH (fillfactor = 45);
		INSERT INTO t_$table SELECT i, 0, repeat('x', 150)
			FROM generate_series(1, 2000) i});
}
$node->safe_psql(
	'postgres', q{
	CREATE TABLE noise (id int, v int, filler bytea);
	ALTER TABLE noise ALTER filler SET STORAGE PLAIN;
	INSERT INTO noise SELECT i, 0,
			(SELECT decode(string_agg(md5(format('%s %s', i, j)), ''), 'hex')
			 FROM generate_series(1, 507) j)
		FROM generate_series(1, 20) i;
	CHECKPOINT});

is( $node->safe_psql(
		'postgres',
		"SELECT boot_val FROM pg_settings WHERE name = 'double_write_compression'"
	),
	$methods[0] eq 'lz4' ? 'lz4' : 'off',
	'lz4 is the default, if the build has it');

# One method after the other, in one live range
foreach my $method ('off', @methods)
{
	set_method($method);
	my ($pages, $bytes, $written) = change("t_$method");

	cmp_ok($pages, '>', 50, "$method: pages were logged");
	cmp_ok($written, '>=', $bytes + BLCKSZ, "$method: bytes, with headers");
	if ($method eq 'off')
	{
		is($bytes, $pages * BLCKSZ, 'off: pages are logged as they are');
	}
	else
	{
		cmp_ok($written, '<', $pages * BLCKSZ / 2, "$method: fewer bytes");
	}
}

# Pages that do not get shorter, alone and beside others that do
set_method($methods[0]);
my ($pages, $bytes) = change('noise');
is("$pages $bytes", '20 ' . 20 * BLCKSZ, 'noise is logged as it is');
$node->safe_psql('postgres', 'CHECKPOINT');
change('noise', "t_$methods[0]");

# The other methods follow in the same live range.
foreach my $method ('off', @methods[ 1 .. $#methods ])
{
	set_method($method);
	change("t_$method");
}

# A batch that cannot be written is resumed, with another method.
$node->safe_psql('postgres', "UPDATE t_resumed SET v = v + 1");
$node->safe_psql('postgres',
	"SELECT points_fail_at('doublewrite-log-write', 'EIO', 1, 4)");
$node->psql('postgres', q{SELECT dw_evict('t_resumed')});
foreach my $method ($methods[-1], 'off', $methods[0])
{
	set_method($method);
	$node->psql('postgres', 'SELECT dw_drain()');
}
cmp_ok(
	$node->safe_psql(
		'postgres', "SELECT points_hits('doublewrite-log-write')"),
	'>=', 3,
	'writes of the log failed');
is( $node->safe_psql('postgres', 'SELECT dw_drain(), staged FROM dw_state()'),
	'|0',
	'... and then did not');

my @tables = ('noise', map { "t_$_" } 'off', 'resumed', @methods);
my %contents = map { $_ => contents($_) } @tables;
$node->stop('immediate');

my $log = dw_read_log($node);
my @live = grep { $_->{npages} > 0 } @{ $log->{live} };
foreach my $method ('off', @methods)
{
	ok((grep { $_->{compression} == $number{$method} } @live),
		"$method: batch in the live range");
}
my ($mixed) = grep {
	my @entries = @{ $_->{entries} };
	(grep { $_->{length} == BLCKSZ } @entries)
	  && (grep { $_->{length} < BLCKSZ } @entries)
} @live;
ok(defined $mixed, 'a batch has pages that are not shorter, and others');

# the next batch begins where the last one ends
my @gaps;
foreach my $i (1 .. $#{ $log->{live} })
{
	my ($a, $b) = @{ $log->{live} }[ $i - 1, $i ];

	push @gaps, $b->{batchno}
	  if $a->{segno} == $b->{segno}
	  && $a->{blockno} + $a->{nblocks} != $b->{blockno};
}
is_deeply(\@gaps, [], 'no gaps between batches');

# The tool sees the same.
my $list = dw_tool($node, 'list', '--pages');
my %listed = map { $_->{batch} => $_ } @{ $list->{batches} };
my $live_bytes = 0;
foreach my $batch (@{ $log->{live} })
{
	my $l = $listed{ $batch->{batchno} };

	$live_bytes += $batch->{nblocks} * BLCKSZ;
	is( join(' ',
			$number{ $l->{compression} },
			$l->{bytes},
			map { "$_->{offset}+$_->{length}" } @{ $l->{pages} }),
		join(' ',
			$batch->{compression},
			$batch->{nblocks} * BLCKSZ,
			map { "$_->{offset}+$_->{length}" } @{ $batch->{entries} }),
		"batch $batch->{batchno} is listed as it is");
}
is($list->{state}{live_bytes}, $live_bytes, 'size of the live range');
command_like(
	[ 'pg_doublewrite', 'list', $node->data_dir ],
	qr/^ *\d+ +[0-9A-F]{16} +\d+ +\d+ +\d+ +$methods[0] .* live$/m,
	'list for people');

# Damage, in pages of each method
foreach my $method (@methods)
{
	my ($batch) =
	  grep { $_->{compression} == $number{$method} && $_ != $live[-1] } @live;
	my ($page) = grep { $_->{length} > 0 && $_->{length} < BLCKSZ }
	  @{ $batch->{entries} };
	my $segment = sprintf('%016X', $page->{segno});
	my $header = $batch->{blockno} * BLCKSZ;
	my $garbage = "\xFF" x $page->{length};

	# bytes whose checksum is right nevertheless
	my $forged = sub {
		my ($bytes, %fields) = @_;
		my @entries = map {
			$_ == $page
			  ? { %$page, crc => dw_crc32c($bytes), %fields }
			  : $_
		} @{ $batch->{entries} };

		return [
			[ $page->{segno}, $page->{offset}, $bytes ],
			[
				$batch->{segno}, $header,
				dw_forged_header($node, $batch, entries => \@entries)
			]
		];
	};
	my $decompress =
	  qr/could not decompress page copy in .*$segment" at offset $page->{offset}\b/;

	refuses(
		"$method: byte changed",
		[
			[
				$page->{segno},
				$page->{offset} + int($page->{length} / 2),
				~substr($page->{stored}, $page->{length} / 2, 1)
			]
		],
		qr/wrong checksum of a page in batch $batch->{batchno},.*$segment" at offset $page->{offset}\b/s,
		qr/wrong checksum of a page in batch $batch->{batchno},.*$segment" at offset $page->{offset}\b/s
	);
	refuses("$method: garbage",
		$forged->($garbage), $decompress, $decompress, dry_run => 1);
	refuses(
		"$method: less than a page",
		$forged->(lz4_literals($page->{length})),
		$decompress, $decompress, dry_run => 1) if $method eq 'lz4';
	refuses(
		"$method: length of more than a page",
		[ $forged->($page->{stored}, length => BLCKSZ + 1)->[1] ],
		qr/batch $batch->{batchno} is missing/,
		qr/batch $batch->{batchno} is missing/);
	refuses(
		"$method: length of a note",
		[ $forged->($page->{stored}, length => 0)->[1] ],
		qr/wrong checksum of a page in batch $batch->{batchno},/,
		qr/wrong checksum of a page in batch $batch->{batchno},/);
	refuses(
		"$method: unknown method",
		[
			[
				$batch->{segno}, $header,
				dw_forged_header($node, $batch, compression => 9)
			]
		],
		qr/was compressed with method "9", which is not supported by this build.  Batch $batch->{batchno} /,
		qr/was compressed with method "9", which is not supported by this build.*HINT/s
	);
}

# Nothing lost
$node->append_conf('postgresql.auto.conf', 'double_write_compression = off');
my $torn = dw_tear_copied($node);
cmp_ok($torn, '>', 100, 'pages were torn');
is(dw_tool($node, 'dry-run', '--pages')->{restored},
	$torn, 'dry run finds them');
my $offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts');
is(dw_restore_line($node, $offset)->{restored}, $torn, 'and restores them');
is(contents($_), $contents{$_}, "$_: nothing lost") foreach @tables;
dw_check_amcheck($node);

dw_check_stopped($node);

done_testing();
