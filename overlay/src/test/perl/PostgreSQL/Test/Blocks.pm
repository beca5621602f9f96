
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

PostgreSQL::Test::Blocks - blocks in files of relations

=head1 DESCRIPTION

Tests read and change pages behind the back of a server, which should be stopped.

=cut

package PostgreSQL::Test::Blocks;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  blocks_per_file
  place_of_block
  read_block
  write_block
  BLCKSZ
);

use constant BLCKSZ => 8192;

my %blocks_per_file;

=pod

=head1 FUNCTIONS

=over

=item blocks_per_file(node)

Blocks in a file of a relation: builds for tests have small files.

=cut

sub blocks_per_file
{
	my ($node) = @_;
	my $dir = $node->data_dir;

	if (!defined $blocks_per_file{$dir})
	{
		my ($control) = run_command([ 'pg_controldata', $dir ]);

		($blocks_per_file{$dir}) =
		  $control =~ /^Blocks per segment of large relation: +(\d+)$/m
		  or die 'no size of segments in pg_control';
	}
	return $blocks_per_file{$dir};
}

=pod

=item place_of_block(node, path, block)

Path of the file of a relation that has a block, and offset in it.

=cut

sub place_of_block
{
	my ($node, $path, $block) = @_;
	my $segno = int($block / blocks_per_file($node));

	return (
		$path . ($segno > 0 ? ".$segno" : ''),
		($block % blocks_per_file($node)) * BLCKSZ);
}

=pod

=item read_block(node, path, offset)

A page of a file in the data directory, or undef if the file is shorter.

=cut

sub read_block
{
	my ($node, $path, $offset) = @_;
	my $page;

	open(my $fh, '<:raw', $node->data_dir . "/$path") or return undef;
	sysseek($fh, $offset, 0) or die "could not seek in $path: $!";
	my $n = sysread($fh, $page, BLCKSZ) // die "could not read $path: $!";
	close($fh);
	return $n == BLCKSZ ? $page : undef;
}

=pod

=item write_block(node, path, offset, bytes)

=cut

sub write_block
{
	my ($node, $path, $offset, $page) = @_;

	open(my $fh, '+<:raw', $node->data_dir . "/$path")
	  or die "could not open $path: $!";
	sysseek($fh, $offset, 0) or die "could not seek in $path: $!";
	syswrite($fh, $page) == length($page) or die "could not write $path: $!";
	close($fh);
	return;
}

=pod

=back

=cut

1;
