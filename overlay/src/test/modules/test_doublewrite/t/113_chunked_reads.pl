
# Copyright (c) 2025, PostgreSQL Global Development Group

# pg_read_binary_file() holds up home writes for a chunk at a time: between
# two of them pages go home and it can be canceled, and yet it returns no page of
# which one half is older than the other.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use Digest::SHA qw(sha256_hex);
use List::Util  qw(min);
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $between = 'doublewrite-chunk-read';
my ($node, $file, $chunk);

sub new_node
{
	my ($mode) = @_;

	$node = PostgreSQL::Test::Cluster->new($mode);
	$node->init;
	$node->append_conf(
		'postgresql.conf', qq{
io_torn_pages_protection = $mode
checkpoint_timeout = 1h
autovacuum = off
});
	$node->start;
	$node->safe_psql(
		'postgres',
		"CREATE EXTENSION injection_points; CREATE EXTENSION test_doublewrite CASCADE;
		 CREATE TABLE t (i int, n int, f text) WITH (fillfactor = 40);
		 INSERT INTO t SELECT i, 0, repeat('x', 900) FROM generate_series(1, 1800) i;
		 VACUUM t; CHECKPOINT");
	$file = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});

	# a megabyte, or a quarter of a file in a build with small ones
	$chunk = min(1024 * 1024, blocks_per_file($node) * BLCKSZ / 4);
	return;
}

# The pages of the file, as they are on disk
sub pages
{
	my ($content) = @_;
	return
	  unpack('(a8192)*', $content // slurp_file($node->data_dir . "/$file"));
}

# Where sessions put what they read: in the output of a test it would be a line
# of megabytes.
my $result = PostgreSQL::Test::Utils::tempdir() . '/result';

# A session that reads the file and stops at the point
sub read_until
{
	my ($point, $arguments) = @_;
	my $reader = $node->background_psql('postgres', on_error_stop => 0);

	$reader->query_safe(q{SELECT 1});
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	$reader->query_until(qr/begin/,
		"\\echo begin\nSELECT encode(pg_read_binary_file('$file'$arguments), 'hex') \\g '$result'\n"
	);
	watchdog_until(
		'a backend reads',
		sub {
			return $node->safe_psql('postgres',
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$point'"
			);
		});
	return $reader;
}

sub result
{
	my ($reader) = @_;

	$reader->query_safe(q{SELECT 1});
	$reader->quit;
	my $hex = slurp_file($result);
	chomp($hex);
	return pack('H*', $hex);
}

# Change all pages and write them home, by a session that must not wait
my $rounds = 0;

sub change_pages
{
	my $psql = $node->background_psql('postgres',
		timeout => $PostgreSQL::Test::Utils::timeout_default);

	$rounds++;
	$psql->query_safe('UPDATE t SET n = n + 1, f = upper(f)'
		  . ($rounds % 2 ? '' : ' || md5(f)'));
	my $done = eval { $psql->query_safe('CHECKPOINT'); 1 };
	$psql->quit if $done;
	return $done;
}

new_node('double_writes');
my $size = -s $node->data_dir . "/$file";
cmp_ok($size, '>', 3 * $chunk, 'file has several chunks');

# What is read is what is there.
my $content = slurp_file($node->data_dir . "/$file");
foreach my $case (
	[ 0, 100 ],
	[ 100, 20000 ],
	[ 5000, 2 * $chunk ],
	[ 0, $size ],
	[ 8192 * 3 + 1, $size ],
	[ -100, 100 ],
	[ -2 * $chunk - 7, 2 * $chunk ],
	[ $size, 10 ],
	[ 0, 0 ])
{
	my ($offset, $length) = @$case;

	is( $node->safe_psql(
			'postgres',
			"SELECT encode(sha256(pg_read_binary_file('$file', $offset, $length)), 'hex')"
		),
		sha256_hex(substr($content, $offset, $length)),
		"$length bytes from $offset");
}
is( $node->safe_psql(
		'postgres',
		"SELECT encode(sha256(pg_read_binary_file('$file')), 'hex')"),
	sha256_hex($content),
	'whole file');

# How often the lock is let go
my (undef, undef, $stderr) = $node->psql(
	'postgres',
	"SELECT injection_points_set_local(); SELECT injection_points_attach('$between', 'notice');
	 SELECT length(pg_read_binary_file('$file', 100, 3 * $chunk))");
is(() = $stderr =~ /notice triggered/g, 4, 'length of a chunk');

# Pages go home between chunks, and none is read in two, wherever reading begins
foreach my $arguments (', 4096, ' . 3 * $chunk,
	', -' . int(2.8 * $chunk) . ', ' . int(2.7 * $chunk), '')
{
	my @before = pages();
	my $reader = read_until($between, $arguments);

	ok(change_pages(), "pages go home between chunks ($arguments)")
	  or BAIL_OUT('home writes are held up');
	my @after = pages();
	dw_wake($node, $between);
	my $read = result($reader);
	my ($offset) = $arguments =~ /^, (-?\d+)/;
	my $file_size = @before * 8192;
	my $start = $offset // 0;
	$start += $file_size if $start < 0;
	my $skip = -$start % 8192;
	my $block = ($start + $skip) / 8192;
	my ($old, $new, $torn) = (0, 0, 0);

	foreach my $page (pages(substr($read, $skip)))
	{
		last if length($page) < 8192;
		if    ($page eq ($before[$block] // '')) { $old++ }
		elsif ($page eq $after[$block])          { $new++ }
		else                                     { $torn++ }
		$block++;
	}
	is($torn, 0,
		"... and no page is torn, of $old that were read before and $new after"
	);
	ok($old > 0 && $new > 0, '... which are some of each');
}

# It can be canceled.
my $reader = read_until($between, '');
$node->safe_psql('postgres',
	"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = '$between'"
);
watchdog_until(
	'it is canceled',
	sub {
		return $node->safe_psql('postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event = '$between'"
		) eq 't';
	});

$node->safe_psql('postgres', "SELECT injection_points_detach('$between')");
$reader->query('SELECT 1');
like(
	$reader->{stderr},
	qr/canceling statement due to user request/,
	'reading is canceled');
$reader->quit;
$node->stop;
done_testing();
