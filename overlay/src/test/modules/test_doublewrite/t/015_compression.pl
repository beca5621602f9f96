
# Copyright (c) 2025, PostgreSQL Global Development Group

# Compression of the log: pages of every method are restored, whatever the
# setting is by then, and what cannot be decompressed is refused.  With "auto"
# it is used where it saves more time than it takes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use JSON::PP;
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

sub tool
{
	my ($command) = @_;
	my ($out, $err) = run_command(
		[ 'pg_doublewrite', $command, '--pages', '--json', $node->data_dir ]);

	return decode_json($out);
}

# Tear each page that has a copy in the live log: what we have here is its
# newest version, since nothing has been written home after the copy.
sub tear
{
	my $copies = dw_live_copies(dw_read_log($node));
	my $n = 0;

	foreach my $copy (values %$copies)
	{
		my ($path, $offset) = dw_home_path($node, $copy);

		next
		  unless $path =~ /^base/
		  && defined dw_read_block($node, $path, $offset);
		dw_write_block($node, $path, $offset + BLCKSZ / 2,
			"\xA5" x (BLCKSZ / 2));
		$n++;
	}
	return $n;
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
		dw_write_block($node, $path, $offset, $bytes);
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

	dw_write_block($node, @$_) foreach @was;
	return;
}

$node->start;
dw_extensions($node);
my @methods = grep { !/^(auto|off)$/ } split /\n/,
  $node->safe_psql('postgres',
	"SELECT unnest(enumvals) FROM pg_settings WHERE name = 'double_write_compression'"
  );
plan skip_all => 'no compression is supported by this build' unless @methods;

my ($ret, $stdout, $stderr) = $node->psql('postgres',
	"ALTER SYSTEM SET double_write_compression = 'pglz'");
like(
	$stderr,
	qr/invalid value for parameter "double_write_compression": "pglz"\nHINT: .*: @{[join ', ', 'auto', @methods]}, off\./,
	'a method that is not supported is refused');

# A row of 'noise' fills a page with random bytes.
foreach my $table ('auto', 'off', 'resumed', @methods)
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
	CREATE TABLE noise_auto (LIKE noise INCLUDING STORAGE);
	INSERT INTO noise_auto SELECT * FROM noise;
	CHECKPOINT});

# a tenth of a millisecond for each block
my @bandwidth = ([ 1, 200 ], [ 1e6, 1e6 + 199 * 1e5 ]);

# "auto" goes by what writes of the log and compression have taken.  What others have
# taken is out of the way when a batch is chosen for: we set it before each.
sub pretend
{
	my ($blocks, $nsec, $page_nsec, $pages_per_block, $zstd_nsec, $lengths) = @_;

	$pages_per_block //= 1;
	$zstd_nsec //= 1e12;
	$lengths //= '{}';

	# so that pages are logged again
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres',
		"SELECT dw_pretend_log_writes('{@{[join ',', @$blocks]}}', '{@{[join ',', @$nsec]}}', $page_nsec, $pages_per_block, $zstd_nsec, '$lengths')"
	);
	return;
}

sub is_compressed
{
	my ($table, $what, $blocks, $nsec, $page_nsec, $expected, $pages_per_block,
		$lengths) = @_;

	pretend($blocks, $nsec, $page_nsec, $pages_per_block, undef, $lengths);
	my ($pages, $bytes) = change($table);
	cmp_ok($pages, '>', 50, "auto: $what: pages were logged");
	is($bytes < $pages * BLCKSZ / 2 ? 'compressed' : 'as they are',
		$expected, "auto: $what");
	return;
}

# With which method is the newest batch of some size compressed?
sub method_of
{
	my ($page_nsec, $zstd_nsec) = @_;

	pretend(@bandwidth, $page_nsec, 1, $zstd_nsec, "{2500, 1500}");
	change('t_auto');
	my ($batch) = grep { $_->{npages} > 50 } reverse @{ dw_read_log($node)->{batches} };
	return $batch->{compression};
}

# Change a table again and again
sub change_until
{
	my ($table, $condition) = @_;

	for (1 .. 1000)
	{
		return
		  if $node->safe_psql('postgres',
			"SELECT $condition FROM dw_log_cost()") eq 't';
		$node->safe_psql('postgres', 'CHECKPOINT');
		change($table);
	}
	return;
}

SKIP:
{
	skip 'lz4 is not supported by this build', 46
	  unless grep { $_ eq 'lz4' } @methods;

	is($node->safe_psql('postgres', 'SELECT boot_val FROM pg_settings '
			  . "WHERE name = 'double_write_compression'"),
		'auto', 'auto is the default');
	set_method('auto');
	change('t_auto');
	is( $node->safe_psql(
			'postgres', q{
		SELECT writes >= 1, blocks >= writes, nsec > 0, page_nsec > 0,
			page_length BETWEEN 1 AND 8191 FROM dw_log_cost()}),
		't|t|t|t|t',
		'auto: writes of the log and compression are measured');

	is_compressed('t_auto', 'bandwidth is the limit', @bandwidth, 1e4,
		'compressed');
	is_compressed('t_auto', '... but so is the processor',
		@bandwidth, 1e5, 'as they are');
	is_compressed(
		't_auto', 'each write takes long, whatever its size',
		[ 1, 200 ],
		[ 1e8, 1e8 + 199 * 100 ],
		1e4, 'as they are');
	is_compressed('t_auto', 'some more for each page',
		[ 20, 100 ], [ 2.5e7, 3.3e7 ], 1e4, 'compressed');
	is_compressed(
		't_auto', '... or so it seems, for times differ much',
		[ 20, 20, 100, 100 ],
		[ 1e6, 4.9e7, 9e6, 5.7e7 ],
		7e4, 'as they are');
	is_compressed(
		't_auto', '... and compression takes little beside them',
		[ 20, 20, 100, 100 ],
		[ 1e6, 4.9e7, 9e6, 5.7e7 ],
		1e4, 'compressed');

	# A device that is held to a bandwidth lets a large write pass at once when it has
	# just had a small one wait.
	my @in_turns = (
		[ (32) x 4, (249) x 4 ],
		[ (9e7) x 3, 2e5, 1e6, 1e6, 2e6, 1e8 ]);
	is_compressed('t_auto', 'small writes wait longer than large ones',
		@in_turns, 2e4, 'compressed');
	is_compressed('t_auto', '... and compression takes long, too',
		@in_turns, 1.2e5, 'as they are');
	is_compressed(
		't_auto', 'large writes, all alike',
		[ 200, 200 ],
		[ 2e7, 2e7 ],
		1e4, 'compressed');
	is_compressed(
		't_auto', 'large writes, which differ much',
		[ 150, 150, 200, 200 ],
		[ 1e6, 9e7, 1e6, 9e7 ],
		1e4, 'compressed');

	# What is not known yet may be a volume that many rent, as after the first write
	# of all, which has no pages.
	is_compressed('t_auto', 'all that is known is that a write takes some time',
		[1], [3e5], 1e4, 'compressed', 0);
	is_compressed('t_auto', '... or little time', [1], [1e4], 1e4, 'as they are', 0);
	is_compressed('t_auto', '... and compression takes long',
		[1], [3e5], 5e4, 'as they are', 0);
	is_compressed('t_auto', 'small writes, all alike',
		[ 8, 8 ], [ 2e7, 2e7 ], 1e4, 'compressed');
	is_compressed('t_auto', '... and compression takes long',
		[ 8, 8 ], [ 2e7, 2e7 ], 1.2e5, 'as they are');
	is_compressed('t_auto', 'small writes, all alike and quick',
		[ 8, 8 ], [ 8e4, 8e4 ], 1e4, 'as they are');

	# Whether small ones are compressed already makes no difference.
	is_compressed('t_auto', 'small writes of more pages, which are compressed, and quick',
		[ 8, 8 ], [ 3e5, 3e5 ], 1e4, 'as they are', 7);
	is_compressed('t_auto', 'small writes of large batches, which are compressed already',
		[ 40, 40 ], [ 2e7, 2e7 ], 1e5, 'compressed', 3);

	is_compressed('t_auto', 'slow writes, all alike, of pages that hardly get shorter',
		[ 100, 100 ], [ 2e7, 2e7 ], 1.6e4, 'as they are', 1, '{7946,7946}');
	change_until('t_auto', "page_length < 0.7 * @{[BLCKSZ]}");

	# That pages do not get shorter shows when they are compressed, and later, as that
	# they do again, when some are tried now and then.
	is_compressed('t_auto', 'pages that get shorter',
		@bandwidth, 1e4, 'compressed');
	change_until('noise_auto', "page_length > 0.81 * @{[BLCKSZ]}");
	is_compressed('t_auto', 'pages that do not',
		@bandwidth, 1e4, 'as they are');
	change_until('t_auto', "page_length < 0.7 * @{[BLCKSZ]}");
	is_compressed('t_auto', 'pages that do again',
		@bandwidth, 1e4, 'compressed');
}

# Of several methods it takes the one that saves most.
SKIP:
{
	skip 'lz4 and zstd are not both supported by this build', 3 if @methods < 2;

	set_method('auto');
	is(method_of(1e4, 1.2e4), 2, 'auto: zstd saves more than it takes longer');
	is(method_of(1e4, 5e4), 1, 'auto: zstd takes longer than it saves');
	is(method_of(1e5, 1e4), 2, 'auto: lz4 takes longer than it saves, and zstd does not');
}

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
	"SELECT dw_fail_at('doublewrite-log-write', 'EIO', 1, 2)");
$node->psql('postgres', q{SELECT dw_evict('t_resumed')});
foreach my $method ($methods[-1], 'off', $methods[0])
{
	set_method($method);
	$node->psql('postgres', 'SELECT dw_drain()');
}
cmp_ok(
	$node->safe_psql('postgres', "SELECT dw_hits('doublewrite-log-write')"),
	'>=', 3, 'writes of the log failed');
is($node->safe_psql('postgres', 'SELECT dw_drain(), staged FROM dw_state()'),
	'|0', '... and then did not');

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
my $list = tool('list');
my %listed = map { $_->{batch} => $_ } @{ $list->{batches} };
my $live_bytes = 0;
foreach my $batch (@{ $log->{live} })
{
	my $l = $listed{ $batch->{batchno} };

	$live_bytes += $batch->{nblocks} * BLCKSZ;
	is( join(' ', $number{ $l->{compression} }, $l->{bytes},
			map { "$_->{offset}+$_->{length}" } @{ $l->{pages} }),
		join(' ', $batch->{compression}, $batch->{nblocks} * BLCKSZ,
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
	my ($page) = grep { $_->{length} > 0 && $_->{length} < BLCKSZ } @{ $batch->{entries} };
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
		qr/wrong checksum of a page in batch $batch->{batchno}, .* in segment $segment at offset $page->{offset}\b/,
		qr/wrong checksum of a page in batch $batch->{batchno},.*$segment" at offset $page->{offset}\b/s
	);
	refuses("$method: garbage", $forged->($garbage),
		$decompress, $decompress, dry_run => 1);
	refuses("$method: less than a page",
		$forged->(lz4_literals($page->{length})),
		$decompress, $decompress, dry_run => 1)
	  if $method eq 'lz4';
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
		qr/Batch $batch->{batchno} .* was compressed with method "9", which is not supported by this build/,
		qr/was compressed with method "9", which is not supported by this build.*HINT/s
	);
}

# Nothing lost
$node->append_conf('postgresql.auto.conf', 'double_write_compression = off');
my $torn = tear();
cmp_ok($torn, '>', 100, 'pages were torn');
is(tool('dry-run')->{restored}, $torn, 'dry run finds them');
my $offset = -s $node->logfile;
ok(dw_poll_start($node), 'server starts');
is(dw_restore_line($node, $offset)->{restored}, $torn, 'and restores them');
is(contents($_), $contents{$_}, "$_: nothing lost") foreach @tables;
dw_check_amcheck($node);

dw_check_stopped($node);

done_testing();
