
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Damage - what a crash of the machine may do to files

=head1 DESCRIPTION

What had not been synced may be lost or torn: C<dw_tear> replaces pages whose home
writes had not been synced by mixtures of old and new sectors, C<dw_tear_log_tail>
damages a batch that had not been synced.

=cut

package DoubleWrite::Damage;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Log;
use DoubleWrite::Pages;
use Exporter 'import';
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  dw_tear
  dw_tear_log_tail
  dw_lose
  dw_tear_copied
);

use constant SECTOR => 512;

# A mixture of two versions of a page, with the kind of tear rotating.
# Returns undef if no tear gives anything but one of the versions.
my $tear_turn = 0;

sub torn_page
{
	my ($old, $new) = @_;

	return undef if $old eq $new;
	for my $try (0 .. 60)
	{
		my $turn = $tear_turn++;
		my $kind = qw(head tail random head4k tail4k) [ $turn % 5 ];
		my $cut = 1 + int($turn / 5) % 15;
		my @take;    # which sectors are new

		if ($kind eq 'head')
		{
			@take = map { $_ < $cut } (0 .. 15);
		}
		elsif ($kind eq 'tail')
		{
			@take = map { $_ >= $cut } (0 .. 15);
		}
		elsif ($kind eq 'random')
		{
			@take = map { rand() < 0.5 } (0 .. 15);
		}
		else
		{
			@take = map { ($_ < 8) == ($kind eq 'head4k') } (0 .. 15);
		}

		my $page = join('',
			map { substr($take[$_] ? $new : $old, $_ * SECTOR, SECTOR) }
			  (0 .. 15));

		return $page if $page ne $old && $page ne $new;
	}
	return undef;
}

=pod

=head1 FUNCTIONS

=over

=item dw_tear(node, snapshot, %params)

Tear pages whose home writes may not have been durable at the crash.  The
pages in the live range of the log are, always: each gets a mixture of its
newest copy and of what is at home or, if that is the same, of what was there
when the snapshot was taken.  So are those of which there are only notes, if they
differ from the snapshot in nothing but hints.

With C<unlogged_too>, other pages that have changed since the snapshot are
torn as well; that is fair if there has been no checkpoint and no sync cycle
since, and then hits the pages that were not double-written because redo
rebuilds them.

With C<max>, tear no more than so many.  With C<only>, a regular expression,
only pages of files whose path matches.

Returns a hash: C<logged>, C<noted> and C<unlogged> (number of pages torn), C<pages>
(references to path and offset).

=cut

sub dw_tear
{
	my ($node, $snapshot, %params) = @_;
	my $log = dw_read_log($node);
	my $copies = dw_live_copies($log);
	my %result = (logged => 0, noted => 0, unlogged => 0, pages => []);
	my %logged_at;
	my $max = $params{max} // 1_000_000_000;

	my $tear = sub {
		my ($path, $offset, $old, $new) = @_;

		return 0 if @{ $result{pages} } >= $max;
		return 0 if defined $params{only} && $path !~ $params{only};
		my $page = torn_page($old, $new);
		return 0 unless defined $page;
		write_block($node, $path, $offset, $page);
		push @{ $result{pages} }, [ $path, $offset ];
		return 1;
	};
	my $old_version = sub {
		my ($path, $offset) = @_;

		return "\0" x BLCKSZ
		  if !defined $snapshot->{$path}
		  || length($snapshot->{$path}) < $offset + BLCKSZ;
		return substr($snapshot->{$path}, $offset, BLCKSZ);
	};

	foreach my $key (sort keys %$copies)
	{
		my $copy = $copies->{$key};
		my ($path, $offset) = dw_home_path($node, $copy);
		my $home = read_block($node, $path, $offset);

		$logged_at{"$path $offset"} = 1;
		next unless defined $home;
		$home = $old_version->($path, $offset) if $home eq $copy->{page};
		$result{logged} += $tear->($path, $offset, $home, $copy->{page});
	}

	my $notes = dw_live_notes($log);
	foreach my $key (sort keys %$notes)
	{
		my $note = $notes->{$key};
		my ($path, $offset) = dw_home_path($node, $note);
		my $home = read_block($node, $path, $offset);
		my $old = $old_version->($path, $offset);

		$logged_at{"$path $offset"} = 1;
		next unless defined $home && dw_hint_digest($old) == $note->{crc};
		$result{noted} += $tear->($path, $offset, $old, $home);
	}

	if ($params{unlogged_too})
	{
		foreach my $path (dw_relation_files($node))
		{
			my $data = slurp_file($node->data_dir . "/$path");

			for (my $off = 0; $off + BLCKSZ <= length($data); $off += BLCKSZ)
			{
				next if $logged_at{"$path $off"};
				$result{unlogged} += $tear->(
					$path, $off,
					$old_version->($path, $off),
					substr($data, $off, BLCKSZ));
			}
		}
	}

	note "tore $result{logged} pages in the log, $result{noted} noted there, "
	  . "$result{unlogged} others";
	return \%result;
}

=pod

=item dw_tear_copied(node)

Overwrite the second half of each page of a database that has a copy in the live
range of the log.  Returns the number of pages.

=cut

sub dw_tear_copied
{
	my ($node) = @_;
	my $n = 0;

	foreach my $copy (values %{ dw_live_copies(dw_read_log($node)) })
	{
		my ($path, $offset) = dw_home_path($node, $copy);

		next
		  unless $path =~ /^base|^pg_tblspc/
		  && defined read_block($node, $path, $offset);
		write_block($node, $path, $offset + BLCKSZ / 2,
			"\xA5" x (BLCKSZ / 2));
		$n++;
	}
	return $n;
}

=pod

=item dw_lose(node, snapshot, only)

Undo home writes since the snapshot was taken, half of them at random, but each
whole: what a crash may do to atomic writes that have not been synced.  Pages
in the live range of the log are left alone, as are files whose path does not
match C<only>.  Returns the number of pages.

=cut

sub dw_lose
{
	my ($node, $snapshot, $only) = @_;
	my $copies = dw_live_copies(dw_read_log($node));
	my %logged =
	  map { join(' ', dw_home_path($node, $_)) => 1 } values %$copies;
	my $n = 0;

	foreach my $path (grep { $_ =~ $only } dw_relation_files($node))
	{
		my $data = slurp_file($node->data_dir . "/$path");
		my $old = $snapshot->{$path} // '';

		$old .= "\0" x (length($data) - length($old))
		  if length($old) < length($data);
		for (my $off = 0; $off + BLCKSZ <= length($data); $off += BLCKSZ)
		{
			my $page = substr($old, $off, BLCKSZ);

			next
			  if $logged{"$path $off"}
			  || $page eq substr($data, $off, BLCKSZ)
			  || rand() < 0.5;
			write_block($node, $path, $off, $page);
			$n++;
		}
	}
	note "lost $n pages that were written atomically";
	return $n;
}

=pod

=item dw_tear_log_tail(node, kind)

Damage the newest batch of the log, as if it had not been synced: C<header>
(its first sector is lost), C<pages> (some sectors of its pages), C<all>
(all of it).  Returns the batch.

=cut

sub dw_tear_log_tail
{
	my ($node, $kind) = @_;
	my $log = dw_read_log($node);
	my $batch = $log->{torn} // $log->{batches}[-1];
	my $path = sprintf('pg_doublewrite/%016X', $batch->{segno});
	my $start = $batch->{blockno} * BLCKSZ;

	my @copies = grep { $_->{length} > 0 } @{ $batch->{entries} };

	$kind = 'header' if $kind eq 'pages' && !@copies;
	if ($kind eq 'header')
	{
		write_block($node, $path, $start, "\0" x SECTOR);
	}
	elsif ($kind eq 'all')
	{
		write_block($node, $path, $start,
			"\0" x (BLCKSZ * $batch->{nblocks}));
	}
	else
	{
		my $page = $copies[ @copies / 2 ];
		my $n = 0;

		for my $sector (0 .. 15)
		{
			next
			  if substr($page->{page}, $sector * SECTOR, SECTOR) eq "\0" x
			  SECTOR;
			write_block(
				$node, $path,
				$page->{offset} + $sector * SECTOR,
				"\0" x SECTOR) if ++$n % 2 == 1;
		}
		die "page in batch is empty" if $n == 0;
	}
	return $batch;
}

=pod

=back

=cut

1;
