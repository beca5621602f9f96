
# Copyright (c) 2025, PostgreSQL Global Development Group

# What pg_doublewrite says of a log is what the server then does with it, and
# saying it changes nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../../test/modules/test_doublewrite/t";

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_new_node('main', conf => 'double_write_buffer_size = 64MB');
my $dir = $node->data_dir . '/pg_doublewrite';

sub digest
{
	return dw_digest($node) . dw_log_digest($dir);
}

# The tool says that the server refuses, and why, and it does.
sub refuses
{
	my ($what, $reason) = @_;

	command_checks_all(
		[ 'pg_doublewrite', 'check', $node->data_dir ],
		2, [ $reason, qr/Verdict: a server would refuse to start/ ],
		[qr/^$/], "$what: refused");
	is(dw_tool($node, 'dry-run')->{verdict},
		'refuse', "$what: dry run says so");
	ok(!dw_poll_start($node), "$what: server does not start");
	return;
}

sub refuses_bytes
{
	my ($what, $segno, $offset, $bytes, $reason) = @_;
	my $path = sprintf('pg_doublewrite/%016X', $segno);
	my $was =
	  substr(slurp_file($node->data_dir . "/$path"), $offset, length($bytes));

	write_block($node, $path, $offset, $bytes);
	refuses($what, $reason);
	write_block($node, $path, $offset, $was);
	return;
}

# Start; the server restores what a dry run has said.
sub restores
{
	my ($what) = @_;
	my $before = digest();
	my $said = dw_tool($node, 'dry-run', '--pages');
	my $offset = -s $node->logfile;

	is(digest(), $before, "$what: dry run changes nothing");
	is($said->{verdict}, 'restore', "$what: verdict");
	is( scalar(@{ $said->{pages} }),
		$said->{restored},
		"$what: each page is listed");
	foreach my $count (qw(restored identical beyond_end))
	{
		my $sum = 0;

		$sum += $_->{$count} foreach @{ $said->{files} };
		is($sum, $said->{$count}, "$what: files add up, $count");
	}

	dw_start_after_crash($node);
	my $line = dw_restore_line($node, $offset);
	is( "$line->{restored} $line->{identical} $line->{missing}",
		"$said->{restored} $said->{identical} $said->{beyond_end}",
		"$what: the server does what the dry run said");
	dw_check_history($node);
	return $said;
}

sub crash
{
	my ($point) = @_;
	my $offset = -s $node->logfile;

	# new pages would need no log
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres',
		q{SELECT dw_remember_truncated(oid) FROM pg_class WHERE relname ~ '^(accounts|history)'}
	);
	my $old = dw_snapshot($node);
	my $segno = $node->safe_psql('postgres', 'SELECT segno FROM dw_state()');
	dw_workload_start($node);
	$node->poll_query_until('postgres',
		"SELECT segno >= $segno + 1 FROM dw_state()")
	  or die "log does not grow";
	$node->psql(
		'postgres',
		"SELECT points_crash_at('$point', 3)",
		on_error_die => 0);
	dw_wait_for_crash($node, $offset);
	dw_workload_finish($node);
	return $old;
}

$node->start;
dw_workload_setup($node);
my $old = crash('doublewrite-log-synced');
dw_tear($node, $old);

my $log = dw_read_log($node);
my @live = @{ $log->{live} };
my $list = dw_tool($node, 'list', '--pages');

# the tool sees what the test's own reader sees
is($list->{state}{low_water}, $live[-1]{low_water}, 'low-water mark');
is($list->{state}{newest_batch}, $live[-1]{batchno}, 'newest batch');
is_deeply(
	[
		map  { $_->{batch} }
		grep { $_->{status} eq 'live' } @{ $list->{batches} }
	],
	[ map { $_->{batchno} } @live ],
	'live batches');
is( $list->{state}{live_pages},
	keys(%{ dw_live_copies($log) }) + keys(%{ dw_live_notes($log) }),
	'distinct live pages');
command_like(
	[ 'pg_doublewrite', 'list', '--pages', $node->data_dir ],
	qr/base\/\d+\/\d+ block \d+, LSN 0\/[0-9A-F]+/,
	'list for people');
command_like(
	[ 'pg_doublewrite', 'dry-run', '--pages', $node->data_dir ],
	qr/block \d+: LSN \S+ would be replaced by \S+ from segment [0-9A-F]{16} at offset \d+\n.*\btotal\n/s,
	'dry run for people');

# a batch that is not the newest one, and a page of it of which it has more than a note
my $middle;
foreach my $batch (@live[ 0 .. $#live - 1 ])
{
	$middle = $batch if grep { $_->{length} > 0 } @{ $batch->{entries} };
}
my ($page) = grep { $_->{length} > 0 } @{ $middle->{entries} };

refuses_bytes('header lost', $middle->{segno}, $middle->{blockno} * BLCKSZ,
	"\0" x 512, qr/damaged: batch $middle->{batchno} is missing/);
refuses_bytes('page changed', $page->{segno}, $page->{offset} + 4000,
	"damage",
	qr/damaged: wrong checksum of a page in batch $middle->{batchno}/);

my ($opens_file) = grep { $_->{blockno} == 0 } @live;
refuses_bytes(
	'other version',
	$opens_file->{segno}, 8,
	pack('L', 999),
	qr/has format version 999/);

# another cluster: a header with another identifier and the right checksum
refuses_bytes(
	'another cluster',
	$middle->{segno},
	$middle->{blockno} * BLCKSZ,
	dw_forged_header($node, $middle, sysid => $middle->{sysid} + 1),
	qr/belongs to another database cluster/);

# while that of a backup is thrown away, whatever it is
my $marker = $node->data_dir . '/backup_label';
my $backup = "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n"
  . "CHECKPOINT LOCATION: 0/2000060\n";
my $path = sprintf('pg_doublewrite/%016X', $opens_file->{segno});
my $version = substr(slurp_file($node->data_dir . "/$path"), 8, 4);

write_block($node, $path, 8, pack('L', 999));
rename($marker, "$marker.away") or die "could not rename: $!";
append_to_file($marker, $backup);
is(dw_tool($node, 'check')->{state}{verdict},
	'discard', 'other version beside the label of a backup: discarded');
rename("$marker.away", $marker) or die "could not rename: $!";
write_block($node, $path, 8, $version);

# a link to a directory that others can write to
rename($dir, "$dir.away") or die "could not rename: $!";
symlink("$dir.away", $dir) or die "could not symlink: $!";
chmod(0770, "$dir.away") or die "could not chmod: $!";
refuses('open to others', qr/has invalid permissions/);
chmod(0700, "$dir.away") or die "could not chmod: $!";
unlink($dir);

refuses('directory gone', qr/could not access/);
rename($marker, "$marker.away") or die "could not rename: $!";
append_to_file($marker, "DOUBLE");
refuses('directory gone, label damaged', qr/neither the label of a backup/);
rename("$marker.away", $marker) or die "could not rename: $!";
mkdir($dir, 0700) or die "could not mkdir: $!";
refuses('files gone', qr/missing or unreadable/);
rmdir($dir) or die "could not rmdir: $!";
rename("$dir.away", $dir) or die "could not rename: $!";

PostgreSQL::Test::RecursiveCopy::copypath($dir, "$dir.stale");
my $said = restores('torn pages');
cmp_ok($said->{restored}, '>', 10, 'pages were restored');

# the newest batch is incomplete
$old = crash('doublewrite-log-written');
my $lost = dw_tear_log_tail($node, 'pages');
dw_tear($node, $old);

# of a batch of notes nothing but the header can be lost
is( dw_tool($node, 'state')->{state}{incomplete_batch},
	(grep { $_->{length} > 0 } @{ $lost->{entries} })
	? $lost->{batchno}
	: undef,
	'incomplete batch is named');
restores('incomplete batch');

# the log of another time, in use or not
crash('doublewrite-log-synced');
rename($dir, "$dir.away") or die "could not rename: $!";
PostgreSQL::Test::RecursiveCopy::copypath("$dir.stale", $dir);
refuses('stale log', qr/was written for redo location/);
rename($marker, "$marker.away") or die "could not rename: $!";
is(dw_tool($node, 'check')->{state}{verdict},
	'discard', 'stale log that was not in use: discarded');
rename("$marker.away", $marker) or die "could not rename: $!";
PostgreSQL::Test::Utils::system_or_bail('rm', '-r', $dir);
rename("$dir.away", $dir) or die "could not rename: $!";
restores('after all');

dw_check($node);
done_testing();
