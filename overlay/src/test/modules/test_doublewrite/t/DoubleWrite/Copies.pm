
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Copies - copies that stay in the log until their pages are needed

=head1 DESCRIPTION

For servers with C<instant_recovery> on which nothing goes home unless the test says so.

=cut

package DoubleWrite::Copies;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Crash;
use DoubleWrite::Log;
use DoubleWrite::Pages;
use Exporter 'import';
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  dw_log_copies
  dw_copies_at_home
  dw_crash_torn
  dw_start_on_demand
  dw_copies_left
);

=pod

=head1 FUNCTIONS

=over

=item dw_log_copies(node, tables)

Have copies of all pages of these tables in the log, and a checkpoint before.  A table may
be one of another database, as C<db.table>.  No record tells of these pages, so what is at home,
torn, would show.

=cut

sub dw_log_copies
{
	my ($node, @tables) = @_;

	$node->safe_psql('postgres', 'SELECT dw_evict_all(), dw_drain()');
	$node->safe_psql('postgres', 'CHECKPOINT');
	foreach my $table (@tables)
	{
		my ($db, $name) =
		  $table =~ /^(.*)\.(.*)$/ ? ($1, $2) : ('postgres', $table);

		$node->{dw_path}{$table} =
		  $node->safe_psql($db, "SELECT pg_relation_filepath('$name')");
		$node->safe_psql($db,
			"SELECT dw_dirty('$name'); SELECT dw_evict_all(), dw_drain()");
	}
	return;
}

=pod

=item dw_copies_at_home(node)

The newest live copies in the log, by path of the file and offset.

=cut

sub dw_copies_at_home
{
	my ($node) = @_;
	my %by_path;

	foreach my $copy (values %{ dw_live_copies(dw_read_log($node)) })
	{
		my ($path, $offset) = dw_home_path($node, $copy);

		$by_path{$path}{$offset} = $copy;
	}
	return \%by_path;
}

=pod

=item dw_crash_torn(node, tables)

Crash, and tear all pages of these tables that the log has a copy of.  Returns what
C<dw_copies_at_home> does.

=cut

sub dw_crash_torn
{
	my ($node, @tables) = @_;

	$node->stop('immediate');
	my $copies = dw_copies_at_home($node);

	foreach my $table (@tables)
	{
		my $path = $node->{dw_path}{$table};
		my $found = $copies->{$path} // {};

		cmp_ok(scalar(keys %$found),
			'>', 5, "the log has copies of table $table");
		foreach my $offset (keys %$found)
		{
			write_block($node, $path, $offset,
				substr($found->{$offset}{page}, 0, 4096) . "\0" x 4096)
			  if defined read_block($node, $path, $offset);
		}
	}
	return $copies;
}

=pod

=item dw_start_on_demand(node, test_name)

Start, and check that copies are left in the log.

=cut

sub dw_start_on_demand
{
	my ($node, $test_name) = @_;
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), "server starts $test_name")
	  or BAIL_OUT('no start');
	like(
		slurp_file($node->logfile, $offset),
		qr/double-write log: \d+ pages are restored when they are needed/,
		'... and leaves copies in the log');
	return;
}

=pod

=item dw_copies_left(node)

How many copies are in the log only.

=cut

sub dw_copies_left
{
	my ($node) = @_;

	return $node->safe_psql('postgres', 'SELECT dw_copies_left()');
}

=pod

=back

=cut

1;
