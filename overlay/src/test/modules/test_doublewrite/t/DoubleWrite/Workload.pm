
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Workload - clients that transfer money between accounts

=cut

package DoubleWrite::Workload;

use strict;
use warnings FATAL => 'all';

use DoubleWrite::Node;
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

our @EXPORT = qw(
  dw_workload_setup
  dw_workload_start
  dw_workload_finish
  dw_workload_stop
  dw_wait_for_history
  dw_wait_for_pages
  dw_contents
);

=pod

=head1 FUNCTIONS

=over

=item dw_workload_setup(node, accounts => n)

Tables and indexes for transfers between accounts, each with a row of history
that names the client, and its number among the client's transactions.

=cut

sub dw_workload_setup
{
	my ($node, %params) = @_;
	my $accounts = $params{accounts} // 3000;
	my $script = $node->basedir . '/transfer.sql';

	dw_extensions($node);
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE accounts (id int PRIMARY KEY, bal int NOT NULL, n int,
							   filler text) WITH (fillfactor = 80);
		INSERT INTO accounts SELECT i, 0, 0, repeat('x', 150)
			FROM generate_series(1, $accounts) i;
		CREATE INDEX accounts_bal ON accounts (n);
		CREATE TABLE history (run int, client int, n int, src int, dst int,
							  amount int, filler text);
		CREATE UNIQUE INDEX history_key ON history (run, client, n);
		CREATE INDEX history_src ON history (src);
		CHECKPOINT;
	});

	PostgreSQL::Test::Utils::append_to_file(
		$script, qq{
\\set n :n + 1
\\set a random(1, $accounts - 1)
\\set b random(:a + 1, $accounts)
\\set d random(-100, 100)
BEGIN;
UPDATE accounts SET bal = bal - :d, n = :n WHERE id = :a;
UPDATE accounts SET bal = bal + :d WHERE id = :b;
INSERT INTO history VALUES (:run, :client_id, :n, :a, :b, :d, repeat('y', 60));
COMMIT;
});
	$node->{dw_script} = $script;
	$node->{dw_acked} = {};
	$node->{dw_run} = 0;
	return;
}

=pod

=item dw_workload_start(node, %params)

Start clients in the background: C<clients> (default 4), C<transactions> for
each (default: until the server is gone).

=cut

sub dw_workload_start
{
	my ($node, %params) = @_;
	my $run = ++$node->{dw_run};
	my $clients = $params{clients} // 4;
	my $prefix = $node->basedir . "/run$run";

	$node->{dw_output} = '';
	$node->{dw_prefix} = $prefix;
	$node->{dw_handle} = IPC::Run::start(
		[
			'pgbench', '--no-vacuum',
			'--client' => $clients,
			'--transactions' => $params{transactions} // 1_000_000,
			'--file' => $node->{dw_script},
			'--define' => "run=$run",
			'--define' => 'n=0',
			'--log',
			'--log-prefix' => $prefix,
			'--host' => $node->host,
			'--port' => $node->port,
			'postgres'
		],
		'<' => \undef,
		'>' => \$node->{dw_output},
		'2>' => \$node->{dw_output});
	return;
}

=pod

=item dw_workload_finish(node)

Wait for the clients to end, and note what was acknowledged to them.  Returns
how many transactions were.

=cut

sub dw_workload_finish
{
	my ($node) = @_;
	my $run = $node->{dw_run};
	my $handle = $node->{dw_handle};
	my $total = 0;

	watchdog_until(
		'clients of ' . $node->name . ' have ended',
		sub {
			$handle->pump_nb if $handle->pumpable;
			return !$handle->pumpable;
		});
	$handle->finish;
	foreach my $file (glob("$node->{dw_prefix}.*"))
	{
		foreach my $line (split(/\n/, slurp_file($file)))
		{
			my ($client, $no) = split(' ', $line);

			$node->{dw_acked}{$run}{$client}++;
			$total++;
		}
	}
	note "run $run: $total transactions acknowledged";
	return $total;
}

=pod

=item dw_workload_stop(node)

End the clients that go on until the server is gone, and note what was
acknowledged to them.

=cut

sub dw_workload_stop
{
	my ($node) = @_;
	my $handle = $node->{dw_handle};

	# some may not have connected yet
	watchdog_until(
		'clients of ' . $node->name . ' have been ended',
		sub {
			$node->psql('postgres',
					'SELECT pg_terminate_backend(pid) FROM pg_stat_activity'
				  . " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
			);
			$handle->pump_nb if $handle->pumpable;
			return !$handle->pumpable;
		});
	return dw_workload_finish($node);
}

=pod

=item dw_wait_for_history(node, rows)

Wait until this run has more than so many rows of history (default 200).

=cut

sub dw_wait_for_history
{
	my ($node, $rows) = @_;

	$rows //= 200;
	$node->poll_query_until('postgres',
		"SELECT count(*) > $rows FROM history WHERE run = $node->{dw_run}")
	  or die "workload does not work";
	return;
}

=pod

=item dw_wait_for_pages(node, n)

Wait until the load has brought home so many more pages, on this server.

=cut

sub dw_wait_for_pages
{
	my ($node, $n) = @_;
	my $now =
	  $node->safe_psql('postgres', 'SELECT home_pages FROM dw_stats()');

	$node->poll_query_until('postgres',
		"SELECT home_pages >= $now + $n FROM dw_stats()")
	  or die 'timed out waiting for pages to be written';
	return;
}

=pod

=item dw_contents(node)

What is in the tables, as text.

=cut

sub dw_contents
{
	my ($node) = @_;

	return $node->safe_psql(
		'postgres', q{
		SET enable_indexscan = off; SET enable_bitmapscan = off;
		SELECT count(*), sum(hashtextextended(a::text, 0)) FROM accounts a;
		SELECT count(*), sum(hashtextextended(h::text, 0)) FROM history h;
	});
}

=pod

=back

=cut

1;
