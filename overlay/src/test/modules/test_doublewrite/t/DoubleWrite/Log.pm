
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Log - the double-write log, as it is on disk

=cut

package DoubleWrite::Log;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use JSON::PP;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  dw_crc32c
  dw_segments
  dw_log_digest
  dw_segment_path
  dw_read_log
  dw_forged_header
  dw_page_key
  dw_live_copies
  dw_live_notes
  dw_hint_digest
  dw_tool
);

use constant {
	SEGMENT_BLOCKS => 512,
	MAGIC => 'PGDWLOG1',
	HEADER_LEN => 96,
	ENTRY_LEN => 32,
};

# CRC-32C, for what little of the log we have to verify
my @crc_table = map {
	my $c = $_;
	$c = ($c & 1) ? (0x82F63B78 ^ ($c >> 1)) : ($c >> 1) for (1 .. 8);
	$c
} (0 .. 255);

sub dw_crc32c
{
	my $crc = 0xFFFFFFFF;

	foreach my $data (@_)
	{
		$crc = $crc_table[ ($crc ^ $_) & 0xFF ] ^ ($crc >> 8)
		  foreach unpack('C*', $data);
	}
	return $crc ^ 0xFFFFFFFF;
}

=pod

=head1 FUNCTIONS

=over

=item dw_segments(directory)

Names of the segments of the log in that directory, in order.

=cut

sub dw_segments
{
	my ($dir) = @_;
	my @names = sort grep { /^[0-9A-F]{16}$/ } slurp_dir($dir);

	return @names;
}

=pod

=item dw_log_digest(directory)

Text that changes whenever a segment of the log in that directory does.

=cut

sub dw_log_digest
{
	my ($dir) = @_;

	return join(' ',
		map { "$_:" . unpack('%32C*', slurp_file("$dir/$_")) }
		  dw_segments($dir));
}

=pod

=item dw_segment_path(node, segno)

=cut

sub dw_segment_path
{
	my ($node, $segno) = @_;

	return $node->data_dir . sprintf('/pg_doublewrite/%016X', $segno);
}

sub parse_batch
{
	my ($data, $segno, $blockno) = @_;
	my $start = $blockno * BLCKSZ;
	my %b;

	return undef if substr($data, $start, 8) ne MAGIC;

	@b{
		qw(version blcksz sysid batchno low_water segno blockno npages
		  redo redo_pending nonce wal_end compression crc)
	  }
	  = unpack('L L Q Q Q Q L L Q Q Q Q L L', substr($data, $start + 8, 88));

	return undef
	  if $b{segno} != $segno
	  || $b{blockno} != $blockno
	  || $b{npages} > 248;

	my $entries = substr($data, $start + HEADER_LEN, $b{npages} * ENTRY_LEN);
	return undef
	  if dw_crc32c(substr($data, $start, HEADER_LEN - 4), $entries) !=
	  $b{crc};

	my $offset = ($blockno + 1) * BLCKSZ;

	# a note has a length of 0
	$b{entries} = [];
	for my $i (0 .. $b{npages} - 1)
	{
		my %e;

		@e{qw(spc db rel fork length blkno crc lsn)} =
		  unpack('L L L S S L L Q',
			substr($entries, $i * ENTRY_LEN, ENTRY_LEN));
		$e{segno} = $segno;
		$e{offset} = $offset;
		$e{batchno} = $b{batchno};
		$e{stored} = substr($data, $offset, $e{length});
		$e{page} = $e{stored} if $e{length} == BLCKSZ;
		$offset += $e{length};
		push @{ $b{entries} }, \%e;
	}
	$b{nblocks} = int(($offset + BLCKSZ - 1) / BLCKSZ) - $blockno;
	return \%b;
}

=pod

=item dw_read_log(node)

Read the log of a cluster that is not running, or does not write at the
moment.  Returns a hash: C<segments> (numbers), C<batches> (all that are
intact, by number), C<live> (those in the live range, oldest first), C<torn>
(the newest, if it is incomplete).  A batch has C<batchno>, C<low_water>,
C<segno>, C<blockno>, C<npages>, C<nblocks>, C<redo>, C<redo_pending>,
C<compression>, and C<entries>: C<spc>, C<db>, C<rel>, C<fork>, C<blkno>,
C<lsn>, C<stored> (the bytes in the log), C<page> (the same, if they are not
compressed), and the place of the copy, C<segno>, C<offset> and C<length>.

=cut

sub dw_read_log
{
	my ($node) = @_;
	my $dir = $node->data_dir . '/pg_doublewrite';
	my %log = (segments => [], batches => [], live => [], torn => undef);
	my %batches;

	return \%log unless -d $dir;
	foreach my $name (dw_segments($dir))
	{
		my $segno = hex($name);
		my $data = slurp_file("$dir/$name");
		my $pos = 0;

		push @{ $log{segments} }, $segno;
		$data .= "\0" x (SEGMENT_BLOCKS * BLCKSZ - length($data))
		  if length($data) < SEGMENT_BLOCKS * BLCKSZ;

		# batches start at block boundaries
		while (($pos = index($data, MAGIC, $pos)) >= 0)
		{
			my $batch;

			$batch = parse_batch($data, $segno, $pos / BLCKSZ)
			  if $pos % BLCKSZ == 0;
			$batches{ $batch->{batchno} } = $batch if defined $batch;
			$pos += defined $batch ? $batch->{nblocks} * BLCKSZ : 8;
		}
	}

	my @sorted = sort { $a->{batchno} <=> $b->{batchno} } values %batches;
	if (@sorted)
	{
		my $last = $sorted[-1];

		$log{torn} = pop @sorted
		  if grep { $_->{length} > 0 && dw_crc32c($_->{stored}) != $_->{crc} }
		  @{ $last->{entries} };
	}
	$log{batches} = \@sorted;
	$log{live} = [ grep { $_->{batchno} >= $sorted[-1]{low_water} } @sorted ]
	  if @sorted;
	return \%log;
}

=pod

=item dw_forged_header(node, batch, %fields)

The header block of a batch with some fields replaced, C<entries> too, and a
right checksum.

=cut

sub dw_forged_header
{
	my ($node, $batch, %fields) = @_;
	my %b = (%$batch, %fields);
	my $file = slurp_file(dw_segment_path($node, $batch->{segno}));
	my $block = substr($file, $batch->{blockno} * BLCKSZ, BLCKSZ);
	my $entries = join(
		'',
		map {
			pack('L L L S S L L Q',
				@{$_}{qw(spc db rel fork length blkno crc lsn)})
		} @{ $b{entries} });

	substr($block, 8, 84) = pack(
		'L L Q Q Q Q L L Q Q Q Q L',
		@b{
			qw(version blcksz sysid batchno low_water segno blockno npages
			  redo redo_pending nonce wal_end compression)
		});
	substr($block, HEADER_LEN, length($entries)) = $entries;
	substr($block, HEADER_LEN - 4, 4) =
	  pack('L', dw_crc32c(substr($block, 0, HEADER_LEN - 4), $entries));
	return $block;
}

=pod

=item dw_page_key(entry)

Text that identifies a page: C<spc/db/rel/fork/blkno>.

=cut

sub dw_page_key
{
	my ($e) = @_;

	return join('/', @{$e}{qw(spc db rel fork blkno)});
}

=pod

=item dw_live_copies(log)

The newest copy of each page in the live range, by page key.

=cut

sub dw_live_copies
{
	my ($log) = @_;
	my %copies;

	foreach my $batch (@{ $log->{live} })
	{
		$copies{ dw_page_key($_) } = $_
		  foreach grep { $_->{length} > 0 } @{ $batch->{entries} };
	}
	return \%copies;
}

=pod

=item dw_live_notes(log)

The newest note of each page in the live range that has no copy there, by page key.

=cut

sub dw_live_notes
{
	my ($log) = @_;
	my $copies = dw_live_copies($log);
	my %notes;

	foreach my $batch (@{ $log->{live} })
	{
		$notes{ dw_page_key($_) } = $_
		  foreach grep { $_->{length} == 0 } @{ $batch->{entries} };
	}
	delete @notes{ keys %$copies };
	return \%notes;
}

=pod

=item dw_hint_digest(page)

Checksum of a heap page without its hints.

=cut

sub dw_hint_digest
{
	my ($page) = @_;
	my $lower = unpack('S', substr($page, 12, 2));

	# pd_lsn; pd_checksum; PD_HAS_FREE_LINES and PD_PAGE_FULL; pd_prune_xid
	substr($page, 0, 8) = "\0" x 8;
	substr($page, 8, 2) = "\0\0";
	substr($page, 10, 1) &= "\xfc";
	substr($page, 20, 4) = "\0\0\0\0";
	for (my $at = 24; $at < $lower; $at += 4)
	{
		my $item = unpack('L', substr($page, $at, 4));

		# of normal items, t_infomask
		substr($page, ($item & 0x7fff) + 21, 1) &= "\xf0"
		  if ($item >> 15 & 3) == 1;
	}
	return dw_crc32c($page);
}

=pod

=item dw_tool(node, command, options)

What pg_doublewrite says of a cluster, as its JSON has it.

=cut

sub dw_tool
{
	my ($node, $command, @options) = @_;
	my ($out) = run_command(
		[ 'pg_doublewrite', $command, '--json', @options, $node->data_dir ]);

	return decode_json($out);
}

=pod

=back

=cut

1;
