
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite::Node - servers for the tests of double writes

=cut

package DoubleWrite::Node;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

our @EXPORT = qw(
  dw_require_injection_points
  dw_new_node
  dw_quiet_node
  dw_extensions
  dw_tablespace
  dw_control
  dw_restartpoint
  dw_wait_for_replay
  dw_fails
  dw_stop_processes
);

=pod

=head1 FUNCTIONS

=over

=item dw_require_injection_points()

Skip the test if the server was built without injection points.

=cut

sub dw_require_injection_points
{
	plan skip_all => 'Injection points not supported by this build'
	  if ($ENV{enable_injection_points} // '') ne 'yes';
	return;
}

=pod

=item dw_new_node(name, %params)

Make a cluster, not started: tiny buffers, one flusher however long writes take, no
autovacuum, the module loaded, real syncs, and no instant recovery, as most tests look at
what restore does at the start, and redo in order.  C<checksums> (default 1), C<mode> (default: what C<PGDW_TEST_MODE> says,
else C<double_writes>),
C<conf> (more settings), C<init> (reference to a hash of parameters of
C<< PostgreSQL::Test::Cluster->init >>).

=cut

sub dw_new_node
{
	my ($name, %params) = @_;
	my $mode = $params{mode} // $ENV{PGDW_TEST_MODE} // 'double_writes';
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		no_data_checksums => !($params{checksums} // 1),
		%{ $params{init} // {} });
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'test_points, test_doublewrite'
io_torn_pages_protection = $mode
instant_recovery = off
double_write_buffer_size = 16MB
double_write_compression = off
double_write_stage_size = 512kB
shared_buffers = 1MB
wal_level = replica
max_wal_size = 1GB
checkpoint_timeout = 1h
checkpoint_completion_target = 0
fsync = on
autovacuum = off
log_statement = none
log_checkpoints = on
max_connections = 20
jit = off
});
	$node->append_conf('postgresql.conf', $params{conf})
	  if defined $params{conf};
	$node->{dw_checksums} = $params{checksums} // 1;
	return $node;
}

=pod

=item dw_quiet_node(name, %params)

The same, started and with the extensions: a server on which nothing goes home
unless the test says so.  The background writer writes nothing back there, not even
when a batch is ready.

=cut

sub dw_quiet_node
{
	my ($name, %params) = @_;
	my $node = dw_new_node(
		$name,
		%params,
		conf => q{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
wal_writer_delay = 10s
test_doublewrite.quiet = on
} . ($params{conf} // ''));

	$node->start;
	dw_extensions($node);
	return $node;
}

=pod

=item dw_extensions(node)

Create the extensions that the tests use, in database C<postgres>.

=cut

sub dw_extensions
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION IF NOT EXISTS test_doublewrite CASCADE;
		CREATE EXTENSION IF NOT EXISTS injection_points;
		CREATE EXTENSION IF NOT EXISTS amcheck;
	});
	return;
}

=pod

=item dw_tablespace(node, name)

Create a tablespace in a directory of its own, which is returned.

=cut

sub dw_tablespace
{
	my ($node, $name) = @_;
	my $dir = $node->basedir . "/$name";

	mkdir $dir or die "could not create directory \"$dir\": $!";
	$node->safe_psql('postgres', "CREATE TABLESPACE $name LOCATION '$dir'");
	return $dir;
}

=pod

=item dw_control(node, field)

A field of the control file, as pg_controldata shows it.

=cut

sub dw_control
{
	my ($node, $field) = @_;
	my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $stdout =~ /^\Q$field\E: +(.*)$/m
	  ? $1
	  : die "no $field in pg_control";
}

=pod

=item dw_restartpoint(primary, standby)

Have the standby make a restartpoint of a new checkpoint of the primary.

=cut

sub dw_restartpoint
{
	my ($primary, $standby) = @_;

	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return;
}

=pod

=item dw_wait_for_replay(lsn, standbys)

Wait until each standby has replayed WAL up to there, wherever it has that from.

=cut

sub dw_wait_for_replay
{
	my ($lsn, @standbys) = @_;

	foreach my $standby (@standbys)
	{
		$standby->poll_query_until('postgres',
			"SELECT pg_last_wal_replay_lsn() >= '$lsn'")
		  or die "timed out waiting for replay up to $lsn";
	}
	return;
}

=pod

=item dw_fails(node, sql, pattern, test_name)

Check that a statement fails, with a message like this.

=cut

sub dw_fails
{
	my ($node, $sql, $pattern, $test_name) = @_;
	my ($status, undef, $stderr) = $node->psql('postgres', $sql);

	isnt($status, 0, $test_name);
	like($stderr, $pattern, '... and why');
	return;
}

=pod

=item dw_stop_processes(node, types)

Stop processes of the server, the background writer or the checkpointer, while
they have nothing to do: they hold no lock then.  Returns their numbers, for
C<kill('CONT', ...)>.

=cut

sub dw_stop_processes
{
	my ($node, @types) = @_;
	my $types = join(', ', map { "'$_'" } @types);
	my @pids;
	my $idle = sub {
		return $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ($types) AND wait_event_type = 'Activity'"
		) == @pids;
	};

	watchdog_until(
		join(' and ', @types) . ' are there',
		sub {
			@pids = split(
				/\n/,
				$node->safe_psql(
					'postgres',
					"SELECT pid FROM pg_stat_activity WHERE backend_type IN ($types)"
				));
			return @pids >= @types;
		});
	watchdog_until(
		join(' and ', @types) . ' have nothing to do',
		sub {
			return 0 unless $idle->();
			kill('STOP', @pids);
			return 1 if $idle->();
			kill('CONT', @pids);
			return 0;
		});
	return @pids;
}

=pod

=back

=cut

1;
