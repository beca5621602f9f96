
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Pages - pages in relation files

=cut

package DoubleWrite::Pages;

use strict;
use warnings FATAL => 'all';

use Digest::MD5 qw(md5_hex);
use Exporter 'import';
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  dw_path_of
  dw_home_path
  dw_relation_files
  dw_snapshot
  dw_digest
  dw_checksum
);

my @fork_suffix = ('', '_fsm', '_vm', '_init');
my $relfile_re =
  qr/^(?:base\/\d+|global|pg_tblspc\/\d+\/[^\/]+\/\d+)\/\d+(?:_fsm|_vm|_init)?(?:\.\d+)?$/;

=pod

=head1 FUNCTIONS

=over

=item dw_path_of(node, table)

Relative path of the first file of a relation in database C<postgres>.

=cut

sub dw_path_of
{
	my ($node, $table) = @_;

	return $node->safe_psql('postgres',
		"SELECT pg_relation_filepath('$table')");
}

=pod

=item dw_home_path(node, entry)

Relative path of the file that a page belongs to, and offset in it.

=cut

sub dw_home_path
{
	my ($node, $e) = @_;
	my $dir;

	if ($e->{spc} == 1664)
	{
		$dir = 'global';
	}
	elsif ($e->{spc} == 1663)
	{
		$dir = "base/$e->{db}";
	}
	else
	{
		my $top = "pg_tblspc/$e->{spc}";
		my ($version) =
		  -d $node->data_dir . "/$top"
		  ? grep { /^PG_/ } slurp_dir($node->data_dir . "/$top")
		  : ();

		$dir = "$top/" . ($version // 'none') . "/$e->{db}";
	}
	return place_of_block($node, "$dir/$e->{rel}$fork_suffix[$e->{fork}]",
		$e->{blkno});
}

=pod

=item dw_relation_files(node)

Paths of all relation files, in order.

=cut

sub dw_relation_files
{
	my ($node) = @_;
	my $dir = $node->data_dir;
	my @dirs = ('global');
	my @files;

	push @dirs, map { "base/$_" } grep { /^\d+$/ } slurp_dir("$dir/base");
	foreach my $spc (grep { /^\d+$/ } slurp_dir("$dir/pg_tblspc"))
	{
		next unless -d "$dir/pg_tblspc/$spc";
		foreach my $v (grep { /^PG_/ } slurp_dir("$dir/pg_tblspc/$spc"))
		{
			push @dirs, map { "pg_tblspc/$spc/$v/$_" }
			  grep { /^\d+$/ } slurp_dir("$dir/pg_tblspc/$spc/$v");
		}
	}
	foreach my $d (@dirs)
	{
		push @files,
		  grep { $_ =~ $relfile_re } map { "$d/$_" } slurp_dir("$dir/$d");
	}
	return sort @files;
}

=pod

=item dw_snapshot(node)

Contents of all relation files, by path: the old versions for C<dw_tear>.
Take it when everything is durable, after a CHECKPOINT or a clean stop.

=cut

sub dw_snapshot
{
	my ($node) = @_;

	return { map { $_ => slurp_file($node->data_dir . "/$_") }
		  dw_relation_files($node) };
}

=pod

=item dw_digest(node)

Text that changes whenever a relation file does.

=cut

sub dw_digest
{
	my ($node) = @_;

	return join("\n",
		map { "$_ " . md5_hex(slurp_file($node->data_dir . "/$_")) }
		  dw_relation_files($node));
}

=pod

=item dw_checksum(page, blkno)

The data checksum that a page should have, given the number of its block in the fork.

=cut

# what the 32 sums of a page begin with
my @checksum_offsets = (
	0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3,
	0x217E7CD2, 0x83E13D2C, 0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA,
	0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB, 0xE58F764B, 0x187636BC,
	0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4,
	0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE,
	0xF2CA9FD3, 0x959BD756);

sub dw_checksum
{
	my ($page, $blkno) = @_;
	my @sums = @checksum_offsets;
	my $result = $blkno;
	my $at = 0;

	substr($page, 8, 2) = "\0\0";
	foreach my $word (unpack('L*', $page), (0) x 64)
	{
		my $mixed = $sums[ $at % 32 ] ^ $word;

		$sums[ $at++ % 32 ] =
		  (($mixed * 16777619) & 0xFFFFFFFF) ^ ($mixed >> 17);
	}
	$result ^= $_ foreach @sums;
	return $result % 65535 + 1;
}

=pod

=back

=cut

1;
