
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Hold - processes held at injection points

=cut

package DoubleWrite::Hold;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Log;
use DoubleWrite::Pages;
use Exporter 'import';
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Watchdog;
use Test::More;

our @EXPORT = qw(
  dw_hold_flusher
  dw_hold_torn
  dw_wait_until_held
  dw_release_flusher
  dw_leave_runs
  dw_wake
  dw_start
  dw_waits_for
  dw_finish
);

=pod

=head1 FUNCTIONS

=over

=item dw_hold_flusher(node, point)

From now on a process that flushes a batch stops at the given injection point
(default C<doublewrite-log-synced>), with the flush lock held, until
C<dw_release_flusher> is called.  With C<bgwriter_lru_maxpages = 0> and enough
buffers, only evictions by the test give it anything to flush.

=cut

sub dw_hold_flusher
{
	my ($node, $point) = @_;

	$point //= 'doublewrite-log-synced';
	$node->{dw_held} = $point;
	$node->safe_psql('postgres',
		"SELECT dw_drain(); SELECT injection_points_attach('$point', 'wait')"
	);
	return;
}

=pod

=item dw_hold_torn(node, sub)

Call the function given, which is to change pages and push them out of shared
buffers, fewer than there are slots in the stage.  On return, some process is
about to write some of them home, neighbours, and each of these is half there:
a process that reads the file meets torn pages.  It waits, as their writer, for
C<dw_release_flusher>.  Returns a reference to an array of the torn pages:
C<path>, C<offset>, C<page>, the bytes as they are at home, and C<whole>, as they
will be.

The stage is filled while the flusher is held at the end of an earlier batch, so
that this one is large.

=cut

sub dw_hold_torn
{
	my ($node, $change) = @_;
	my $point = 'doublewrite-home-sent';
	my @torn;

	# Pages with a copy in the log would be in no batch.  From the moment when
	# the point is attached, a process may wait there with the flush lock: nothing
	# below may take it.
	$node->safe_psql('postgres',
		"SELECT dw_drain(); SELECT dw_sync_cycle(); SELECT injection_points_attach('$point', 'wait')"
	);
	$node->{dw_held} = $point;
	$change->();
	dw_wait_until_held($node);
	$node->safe_psql(
		'postgres', q{
		SELECT dw_carry_runs();
		SELECT dw_tear_at('doublewrite-home-write');
		SELECT injection_points_attach('test-doublewrite-torn', 'wait')});
	dw_release_flusher($node);
	$node->{dw_held} = 'test-doublewrite-torn';
	dw_wait_until_held($node);

	# of pages with hints alone the batch has notes, and no copies
	foreach my $copy (grep { defined $_->{page} }
		@{ dw_read_log($node)->{batches}[-1]{entries} })
	{
		my ($path, $offset) = dw_home_path($node, $copy);
		my $page = read_block($node, $path, $offset);

		push @torn,
		  {
			path => $path,
			offset => $offset,
			page => $page,
			whole => $copy->{page}
		  }
		  if $page ne $copy->{page}
		  && substr($page, 0, BLCKSZ / 2) eq
		  substr($copy->{page}, 0, BLCKSZ / 2);
	}
	cmp_ok(scalar(@torn), '>', 4, $node->name . ': pages are half at home');
	return \@torn;
}

=pod

=item dw_wait_until_held(node)

Wait until a process has stopped there.  There must be something to flush.

=cut

sub dw_wait_until_held
{
	my ($node) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$node->{dw_held}'"
	) or die "no process flushes";
	return;
}

=pod

=item dw_release_flusher(node)

=cut

sub dw_release_flusher
{
	my ($node) = @_;

	dw_wake($node, $node->{dw_held});
	return;
}

=pod

=item dw_leave_runs(node)

Have a batch sent home by a session that fails then: its runs stay in the queue.

=cut

sub dw_leave_runs
{
	my ($node) = @_;
	my $point = 'doublewrite-home-sent';

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'error')");
	isnt($node->psql('postgres', 'SELECT dw_flush_batch(false)'),
		0, 'runs are left in the queue');
	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	return;
}

=pod

=item dw_wake(node, point)

Detach an injection point of action C<wait>, and wake up the processes that wait there.
The other way round, the next one to arrive would wait for ever; and each call
of C<injection_points_wakeup> wakes up one process only.

=cut

sub dw_wake
{
	my ($node, $point) = @_;

	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	watchdog_until(
		"no process waits at $point",
		sub {
			# the server may end when it has been woken up
			my ($rc, $waiting) = eval {
				$node->psql('postgres',
					"SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$point'"
				);
			};
			return 1 if !defined $rc || $rc != 0 || $waiting == 0;
			eval {
				$node->psql('postgres',
					"SELECT injection_points_wakeup('$point')");
			};
			return 0;
		});
	return;
}

=pod

=item dw_start(node, name, sql)

Have a session of that name begin with something that may take long.  Returns it.

=cut

sub dw_start
{
	my ($node, $name, $sql) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$session->query_until(qr/started/,
		"\\echo started\nSET application_name = '$name';\n$sql;\n");
	return $session;
}

=pod

=item dw_waits_for(node, name, event)

Wait until that session waits for an event, given as a regular expression.  False if
it does not come to that.

=cut

sub dw_waits_for
{
	my ($node, $name, $event) = @_;

	return $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = '$name' AND wait_event ~ '$event'"
	);
}

=pod

=item dw_finish(sessions)

Wait until sessions are done with what they have begun, and end them.

=cut

sub dw_finish
{
	my @sessions = @_;

	$_->query('SELECT 1') foreach @sessions;
	$_->quit foreach @sessions;
	return;
}

=pod

=back

=cut

1;
