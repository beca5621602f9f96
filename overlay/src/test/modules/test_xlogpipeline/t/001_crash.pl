
# Copyright (c) 2025, PostgreSQL Global Development Group

# Crash recovery with the WAL pipeline, and without: same files, same end of
# WAL, same messages.  WAL is cut off and damaged in many places.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run ();
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $segment_size = 1024 * 1024;
my $primary = xlp_primary('primary');

# full-page images and, for comparison, records without
xlp_page_images($primary, 1);
$primary->restart;
xlp_workload($primary, 1);
my $redo_lsn =
  $primary->safe_psql('postgres',
	'SELECT redo_lsn FROM pg_control_checkpoint()');
my $end_lsn =
  $primary->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$primary->stop('immediate');
$primary->backup_fs_cold('crashed');

sub lsn_number
{
	my ($lsn) = @_;
	my ($high, $low) = split(/\//, $lsn);

	return hex($high) * 2**32 + hex($low);
}

# Overwrite WAL in a data directory, from a position on, to the end of its
# segment, or for a number of bytes.  Later segments are removed if $cut.
sub damage
{
	my ($node, $at, $byte, $length, $cut) = @_;
	my $wal = $node->data_dir . '/pg_wal';
	my $segno = int($at / $segment_size);
	my $offset = $at % $segment_size;

	foreach my $name (grep { /^[0-9A-F]{24}$/ } slurp_dir($wal))
	{
		my $this =
		  hex(substr($name, 8, 8)) * (2**32 / $segment_size) +
		  hex(substr($name, 16, 8));

		if ($this > $segno && $cut)
		{
			unlink("$wal/$name") or die;
		}
		next unless $this == $segno;
		open(my $fh, '+<:raw', "$wal/$name") or die "$name: $!";
		seek($fh, $offset, 0);
		print $fh $byte x ($length // ($segment_size - $offset));
		close($fh);
	}
	return;
}

# Recover copies of the crashed server in each mode.
sub compare
{
	my ($what, @damage) = @_;
	my ($digest, $messages);
	my $n = 0;

	foreach my $mode ('off', 'on', 'small')
	{
		my $node = PostgreSQL::Test::Cluster->new("${what}_$mode");

		$node->init_from_backup($primary, 'crashed');
		$node->append_conf('postgresql.conf', xlp_conf($mode));
		damage($node, @$_) foreach @damage;
		$node->start;
		$node->stop;

		my $this_digest = xlp_digest($node);
		my $this_messages = xlp_messages($node);

		if ($mode eq 'off')
		{
			($digest, $messages) = ($this_digest, $this_messages);
			like(
				$messages,
				qr/redo done at/,
				"$what, $mode: WAL was replayed");
			is(xlp_ranges($node), 0, "$what, $mode: without a pipeline");
		}
		else
		{
			is(xlp_differences($digest, $this_digest),
				'', "$what, $mode: same files");
			is($this_messages, $messages, "$what, $mode: same messages");
			cmp_ok(xlp_decoded($node), '>', 0,
				"$what, $mode: pipeline decoded records");
		}
		$node->clean_node;
	}
	return $messages;
}

# WAL as the crash has left it
compare('plain');

# WAL that ends anywhere: in the middle of a record, of one that spans pages, of
# one that spans segments.  What follows is zeroes, garbage, or nothing.
my $start = lsn_number($redo_lsn) + 200_000;
my $end = lsn_number($end_lsn);
srand($ENV{XLP_SEED} // 1);
foreach my $n (1 .. ($ENV{XLP_RUNS} // 4))
{
	my $at = int($start + rand($end - $start));

	compare("zero$n", [ $at, "\0", undef, 1 ]);
}
compare('garbage', [ int($start + rand($end - $start)), "\x5a", undef, 1 ]);

# One byte is wrong, everything behind it is intact
compare('bit', [ int($start + rand($end - $start)), "\xa5", 1, 0 ]);

# A segment is missing altogether
my $boundary = (int($start / $segment_size) + 2) * $segment_size;
like(compare('missing', [ $boundary - 1, "\0", 1, 1 ]),
	qr/redo done/, 'redo up to missing segment');

# Single-user mode, where no process can be started
my $single = PostgreSQL::Test::Cluster->new('single');
$single->init_from_backup($primary, 'crashed');
$single->append_conf('postgresql.conf', "wal_pipeline = on\n");
my ($stdout, $stderr);
ok( IPC::Run::run(
		[ 'postgres', '--single', '-D', $single->data_dir, 'postgres' ],
		'<' => \"SELECT count(*) FROM t1;\n",
		'>' => \$stdout,
		'2>' => \$stderr),
	'recovery in single-user mode');
like($stderr, qr/redo done at/, '... replays WAL');
unlike($stderr, qr/WAL pipeline/, '... without a pipeline');

done_testing();
