
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Crash - crashes of servers, and the start after one

=head1 DESCRIPTION

A crash is real as far as processes go: at an injection point all processes of the
server are stopped, then killed, by the C module.

=cut

package DoubleWrite::Crash;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Log;
use DoubleWrite::Pages;
use Exporter 'import';
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  dw_psql_until_crash
  dw_wait_for_exit
  dw_wait_for_crash
  dw_poll_start
  dw_expected_restored
  dw_restore_line
  dw_start_after_crash
);

=pod

=head1 FUNCTIONS

=over

=item dw_psql_until_crash(node, sql)

Run what may end the server, or find that it is gone.  C<psql> of the node would not do: if
it cannot connect it does not read what it is given, which would be the end of the test.

=cut

sub dw_psql_until_crash
{
	my ($node, $sql) = @_;

	eval { $node->psql('postgres', $sql, on_error_die => 0); };
	die $@ if $@ && $@ !~ /Broken pipe/;
	return;
}

=pod

=item dw_wait_for_exit(node)

Wait until the server is gone, for whatever reason.

=cut

sub dw_wait_for_exit
{
	my ($node) = @_;
	my $pid = $node->{_pid};

	if (!defined $pid)
	{
		# start failed: look into the lock file
		my $file = $node->data_dir . '/postmaster.pid';

		return unless -e $file;
		($pid) = split(/\n/, slurp_file($file));
	}
	watchdog_until($node->name . ' has exited',
		sub { (!kill(0, $pid) || zombie($pid)) && !in_directory($node) });

	# A zombie that is not reaped would keep its lock files in force.
	unlink($node->data_dir . '/postmaster.pid',
		$node->host . '/.s.PGSQL.' . $node->port . '.lock');
	$node->{_pid} = undef;
	return;
}

sub zombie
{
	my ($pid) = @_;

	open(my $fh, '<', "/proc/$pid/stat") or return 0;
	my $line = <$fh> // '';
	close($fh);
	return $line =~ /\) Z /;
}

# Processes of the server that are still there, where /proc tells
sub in_directory
{
	my ($node) = @_;
	my $dir = $node->data_dir;

	return
	  scalar(grep { (readlink($_) // '') eq $dir } glob('/proc/[0-9]*/cwd'));
}

=pod

=item dw_wait_for_crash(node, log_offset)

Wait until the server has crashed at an injection point, and check that it
was that.

=cut

sub dw_wait_for_crash
{
	my ($node, $offset) = @_;

	dw_wait_for_exit($node);
	my $text = slurp_file($node->logfile, $offset // 0);
	my ($where) = $text =~ /test_points: crash at injection point "(.*)"/;
	ok(defined $where,
		'server crashed' . (defined $where ? " at $where" : ''));
	return;
}

=pod

=item dw_poll_start(node)

Start a server after a crash; what is left of its processes may take a while
to go.  Returns whether it started.  If it did not, it is gone.

=cut

sub dw_poll_start
{
	my ($node) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $offset = -s $node->logfile;

		return 1 if $node->start(fail_ok => 1);
		dw_wait_for_exit($node);
		return 0
		  unless slurp_file($node->logfile, $offset) =~
		  /pre-existing shared memory block/;
		usleep(100_000);
	}
	return 0;
}

=pod

=item dw_expected_restored(node)

How many pages restore has to write: those whose newest live copy differs
from home, in files that reach that far, and those with but a note that are torn
in hints.

=cut

sub dw_expected_restored
{
	my ($node) = @_;
	my $log = dw_read_log($node);
	my $copies = dw_live_copies($log);
	my $n = 0;

	foreach my $copy (values %$copies)
	{
		my $home = read_block($node, dw_home_path($node, $copy));

		$n++ if defined $home && $home ne $copy->{page};
	}
	foreach my $note (values %{ dw_live_notes($log) })
	{
		my $home = read_block($node, dw_home_path($node, $note));

		$n++
		  if defined $home
		  && dw_checksum($home, $note->{blkno}) !=
		  unpack('S', substr($home, 8, 2))
		  && dw_hint_digest($home) == $note->{crc};
	}
	return $n;
}

=pod

=item dw_restore_line(node, log_offset)

What the server log says about the restore after that offset: a hash with
C<examined>, C<batches>, C<restored>, C<identical>, C<missing>, or undef.

=cut

sub dw_restore_line
{
	my ($node, $offset) = @_;
	my $text = slurp_file($node->logfile, $offset);
	my %r;

	return undef
	  unless $text =~
	  /double-write log: examined (\d+) pages in (\d+) batches, restored (\d+), (\d+) identical, (\d+) beyond the end of their file, left/;
	@r{qw(examined batches restored identical missing)} =
	  ($1, $2, $3, $4, $5);
	return \%r;
}

=pod

=item dw_start_after_crash(node, torn)

Start and check that restore wrote exactly the pages that it had to, which are
no fewer than were torn.

=cut

sub dw_start_after_crash
{
	my ($node, $torn) = @_;
	my $expected = dw_expected_restored($node);
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	my $line = dw_restore_line($node, $offset);
	is($line ? $line->{restored} : 0, $expected, "pages restored: $expected");
	cmp_ok(
		$expected, '>=',
		$torn->{logged} + ($torn->{noted} // 0),
		'no fewer than were torn') if defined $torn;
	unlike(
		slurp_file($node->logfile, $offset),
		qr/PANIC|invalid page|could not read block/,
		'no complaints in the server log');
	return $line;
}

=pod

=back

=cut

1;
