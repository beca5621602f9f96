
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Check - what must be true of a server after a crash

=cut

package DoubleWrite::Check;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Pages;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  dw_images_between
  dw_check_history
  dw_check_amcheck
  dw_check_stopped
  dw_check_torn
  dw_check
);

=pod

=head1 FUNCTIONS

=over

=item dw_images_between(node, from, to)

Number of WAL records with full-page images between two locations.  Segments are
named, as pg_waldump would otherwise look into any file to learn their size, and
that may be one that has been preallocated.

=cut

sub dw_images_between
{
	my ($node, $from, $to) = @_;
	my @segments = split(
		/\n/,
		$node->safe_psql(
			'postgres',
			"SELECT pg_walfile_name(l) FROM unnest('{$from, $to}'::pg_lsn[]) l"
		));
	my ($stdout, $stderr) = run_command(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--start' => $from,
			'--end' => $to,
			'--fullpage', @segments
		]);

	note $stderr if $stderr ne '';
	return scalar(split(/\n/, $stdout));
}

=pod

=item dw_check_history(node)

The oracle: all that was acknowledged is there, at most one more transaction
per client of each run, none missing in between; balances agree with history.

=cut

sub dw_check_history
{
	my ($node) = @_;
	my @problems;
	my %found;

	foreach my $line (
		split(
			/\n/,
			$node->safe_psql(
				'postgres', q{
		SET enable_indexscan = off; SET enable_indexonlyscan = off;
		SET enable_bitmapscan = off;
		SELECT run, client, count(*), min(n), max(n), count(DISTINCT n)
			FROM history GROUP BY 1, 2})))
	{
		my ($run, $client, $count, $min, $max, $distinct) =
		  split(/\|/, $line);
		my $acked = $node->{dw_acked}{$run}{$client} // 0;

		$found{"$run/$client"} = 1;
		push @problems,
		  "run $run client $client: $acked acknowledged, found $count from $min to $max, $distinct distinct"
		  if $min != 1
		  || $max != $count
		  || $distinct != $count
		  || $count < $acked
		  || $count > $acked + 1;
	}
	foreach my $run (keys %{ $node->{dw_acked} })
	{
		foreach my $client (keys %{ $node->{dw_acked}{$run} })
		{
			push @problems, "run $run client $client: nothing found"
			  unless $found{"$run/$client"};
		}
	}

	# once by the heap, once by an index
	foreach my $scan ('indexscan', 'seqscan')
	{
		my $bad = $node->safe_psql(
			'postgres', qq{
			SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
			SET enable_$scan = off;
			SELECT 'sum', sum(bal) FROM accounts HAVING sum(bal) <> 0
			UNION ALL
			SELECT 'account ' || a.id, a.bal - coalesce(h.s, 0) FROM accounts a
				FULL JOIN (SELECT id, sum(d) AS s FROM
							(SELECT src AS id, -amount AS d FROM history
							 UNION ALL
							 SELECT dst, amount FROM history) GROUP BY id) h
				USING (id)
				WHERE a.bal IS DISTINCT FROM coalesce(h.s, 0)});

		push @problems, "$scan off: $bad" if $bad ne '';
	}

	is(join("\n", @problems),
		'', 'all acknowledged transactions are there, and no others');
	return !@problems;
}

=pod

=item dw_check_amcheck(node)

amcheck of all tables and indexes of database C<postgres>, catalogs included.

=cut

sub dw_check_amcheck
{
	my ($node, @options) = @_;

	return $node->command_ok(
		[
			'pg_amcheck',
			'--database' => 'postgres',
			'--heapallindexed', @options
		],
		'amcheck finds nothing');
}

=pod

=item dw_check_stopped(node)

Stop cleanly; then: no marker left, checksums right, and another start and
stop change nothing.

=cut

sub dw_check_stopped
{
	my ($node) = @_;

	$node->stop;
	ok(!-e $node->data_dir . '/backup_label', 'no marker after a clean stop');
	$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		'checksums are right')
	  if $node->{dw_checksums};

	my $digest = dw_digest($node);
	my $offset = -s $node->logfile;
	$node->start;
	$node->stop;
	is(dw_digest($node), $digest, 'second restart changes nothing');
	ok(!defined dw_restore_line($node, $offset), '... and restores nothing');
	return;
}

=pod

=item dw_check_torn(node, snapshot, value, what)

Crash, tear what may be torn since the snapshot, and look for the value in the
first row of table C<t>.  The server is stopped afterwards.

=cut

sub dw_check_torn
{
	my ($node, $old, $value, $what) = @_;

	$node->stop('immediate') if $node->{_pid};
	my $torn = dw_tear($node, $old, unlogged_too => 1, only => qr/^base/);
	cmp_ok($torn->{logged} + $torn->{unlogged},
		'>', 0, "$what: pages were torn");
	dw_start_after_crash($node, $torn);
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'),
		$value, "$what: nothing lost");
	$node->stop;
	return;
}

=pod

=item dw_check(node)

All checks of a server that has been started after a crash.  It is stopped
afterwards.

=cut

sub dw_check
{
	my ($node) = @_;

	dw_check_history($node);
	dw_check_amcheck($node);
	dw_check_stopped($node);
	return;
}

=pod

=back

=cut

1;
