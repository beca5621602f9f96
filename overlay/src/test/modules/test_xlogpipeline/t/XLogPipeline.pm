
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

XLogPipeline - what the tests of the WAL pipeline share

=cut

package XLogPipeline;

use strict;
use warnings FATAL => 'all';

use Digest::MD5;
use Exporter 'import';
use File::Find;
use List::Util qw(sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

our @EXPORT = qw(
  xlp_require_injection_points
  xlp_conf
  xlp_wait_conf
  xlp_primary
  xlp_page_images
  xlp_workload
  xlp_pause
  xlp_digest
  xlp_differences
  xlp_messages
  xlp_decoded
  xlp_ranges
  xlp_crash
  xlp_start_no_wait
  xlp_start_held
  xlp_refusal
  xlp_recover
  xlp_pending
  xlp_redone
);

sub xlp_require_injection_points
{
	plan skip_all => 'Injection points not supported by this build'
	  if ($ENV{enable_injection_points} // '') ne 'yes';
	return;
}

=pod

=over

=item xlp_conf(mode)

Settings for a server whose recovery, in order, is compared: C<off>, C<on>, or
C<small> for a queue that many records do not fit into.  Nothing but recovery writes
relation files there.

=cut

sub xlp_conf
{
	my ($mode) = @_;
	my $pipeline = $mode eq 'off' ? 'off' : 'on';
	my $size = $mode eq 'small' ? '64kB' : '1MB';

	return qq{
wal_pipeline = $pipeline
wal_pipeline_queue_size = $size
instant_recovery = off
autovacuum = off
max_logical_replication_workers = 0
log_min_messages = debug1
} . xlp_wait_conf();
}

=pod

=item xlp_wait_conf()

Settings that make redo wait for the pipeline at its start.  Otherwise a short
recovery might be over before that is ready.

=cut

sub xlp_wait_conf
{
	return q{
shared_preload_libraries = 'injection_points, test_points'
test_points.fail_at = 'xlogpipeline-wait-for-worker:EIO'
};
}

=pod

=item xlp_primary(name, %init)

A running server with small segments, which writes no relation files but at
checkpoints.

=cut

sub xlp_primary
{
	my ($name, %init) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		allows_streaming => 1,
		extra => ['--wal-segsize=1'],
		%init);
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
max_wal_size = 1GB
checkpoint_timeout = 1h
max_prepared_transactions = 5
shared_buffers = 128MB
bgwriter_lru_maxpages = 0
wal_keep_size = 256MB
});
	$node->start;
	return $node;
}

=pod

=item xlp_page_images(node, wanted)

Have a server write images of pages to WAL, or not, from its next start on.

=cut

sub xlp_page_images
{
	my ($node, $wanted) = @_;
	my $mode = $wanted ? 'full_pages' : 'off';

	$node->append_conf('postgresql.conf', "io_torn_pages_protection = $mode");
	return;
}

=pod

=item xlp_workload(node, run)

Some megabytes of WAL of many kinds: records of all sizes up to some megabytes,
relations and databases that come and go, switches of segments.

=cut

sub xlp_workload
{
	my ($node, $run) = @_;

	# These make checkpoints, so crash recovery will not see them.
	$node->safe_psql('postgres',
		"CREATE DATABASE copy$run STRATEGY file_copy");
	$node->safe_psql("copy$run", "CREATE TABLE x AS SELECT 1 AS a");
	$node->safe_psql('postgres', "DROP DATABASE copy$run");

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE t$run (id int PRIMARY KEY, v int, filler text);
		INSERT INTO t$run SELECT i, 0, repeat('x', 100)
			FROM generate_series(1, 5000) i;
		CREATE INDEX t${run}_v ON t$run (v);
		UPDATE t$run SET v = id % 100;
		UPDATE t$run SET v = v + 1 WHERE id % 7 = 0;
		SELECT length(pg_logical_emit_message(false, 'test', repeat('m', 3000000))::text);
		SELECT length(pg_logical_emit_message(false, 'test', repeat('k', 40000))::text)
			FROM generate_series(1, 30);
		CREATE TABLE gone$run AS SELECT * FROM t$run;
		CREATE TABLE cut$run AS SELECT * FROM t$run;
		DELETE FROM cut$run WHERE id > 1000;
		VACUUM cut$run;
		DROP TABLE gone$run;
		CREATE TABLE again$run (b bytea);
		ALTER TABLE again$run ALTER b SET STORAGE EXTERNAL;
		INSERT INTO again$run SELECT decode(repeat('ab', 50000), 'hex')
			FROM generate_series(1, 10);
		TRUNCATE again$run;
	});
	$node->safe_psql('postgres', "SELECT pg_switch_wal()");
	$node->safe_psql('postgres', "CREATE DATABASE db$run STRATEGY wal_log");
	$node->safe_psql(
		'postgres', qq{
		BEGIN; INSERT INTO t$run VALUES (0, 0, 'prepared');
		PREPARE TRANSACTION 'p$run'; COMMIT PREPARED 'p$run';
		DELETE FROM t$run WHERE id % 3 = 0;
		VACUUM t$run;
		INSERT INTO t$run SELECT i, i, repeat('y', 50)
			FROM generate_series(10000, 15000) i;
	});
	return;
}

=pod

=item xlp_pause(node)

Pause replay on a standby, and wait until it is.

=cut

sub xlp_pause
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$node->poll_query_until('postgres',
		"SELECT pg_get_wal_replay_pause_state() = 'paused'");
	return;
}

=pod

=item xlp_digest(node)

The relation files and commit logs of a stopped server: path => checksum.

=cut

sub xlp_digest
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my %digest;

	find(
		sub {
			return unless -f $_;
			my $path = substr($File::Find::name, length($data) + 1);

			return
			  if $path =~
			  /pg_control|pg_internal\.init|pgsql_tmp|config_exec_params/;
			open(my $fh, '<:raw', $_) or die "$path: $!";
			$digest{$path} = Digest::MD5->new->addfile($fh)->hexdigest;
			close($fh);
		},
		map { "$data/$_" } qw(base global pg_xact pg_multixact));
	return \%digest;
}

=pod

=item xlp_differences(a, b)

Paths of the files that differ, as a string.

=cut

sub xlp_differences
{
	my ($one, $other) = @_;
	my %all = (%$one, %$other);

	return join(' ',
		grep { ($one->{$_} // '') ne ($other->{$_} // '') } sort keys %all);
}

=pod

=item xlp_messages(node)

What the server has logged about recovery, without what differs between
servers: one string.  (Without the pipeline, the prefetcher may restore a segment
from the archive before the one before it has been replayed.)

=cut

sub xlp_messages
{
	my ($node) = @_;
	my @lines;

	foreach my $line (split(/\n/, slurp_file($node->logfile)))
	{
		next unless $line =~ /(?:LOG|FATAL|WARNING|ERROR|PANIC):  (.*)/;
		my $message = $1;

		next
		  if $message =~
		  /WAL pipeline|background worker|listening on|database system is ready|starting PostgreSQL|interrupted|was shut down|last known up|checkpoint|restartpoint|write-back|double-write|received .* shutdown request|^shutting down|is shut down|selected new timeline|archive recovery complete|database system was|elapsed time: |restored log file|registered custom cumulative statistics/;
		$message =~ s/system usage.*//;
		$message =~ s/^crash recovery took\K .*//;
		push @lines, $message;
	}
	return join("\n", @lines);
}

=pod

=item xlp_decoded(node), xlp_ranges(node)

How many records the pipeline has decoded, as it says in the server log at the
end of recovery; how many ranges it has taken so far.

=cut

sub xlp_decoded
{
	my ($node) = @_;

	return slurp_file($node->logfile) =~
	  /WAL pipeline: decoded (\d+) records/ ? $1 : 0;
}

sub xlp_ranges
{
	my ($node, $offset) = @_;
	my @ends =
	  slurp_file($node->logfile, $offset // 0) =~ /WAL pipeline ended at/g;

	return scalar(@ends);
}

=pod

=item xlp_crash(node, backup)

Crash a server, and keep its data directory as a backup.

=cut

sub xlp_crash
{
	my ($node, $backup) = @_;

	$node->stop('immediate');
	$node->backup_fs_cold($backup);
	unlink($node->backup_dir . "/$backup/pg_doublewrite/owner");
	return;
}

=pod

=item xlp_start_no_wait(node)

Start a server, and do not wait until clients get in.

=cut

sub xlp_start_no_wait
{
	my ($node) = @_;

	append_to_file($node->logfile, '');
	run_log(
		[
			'pg_ctl',
			'--no-wait',
			'--pgdata' => $node->data_dir,
			'--log' => $node->logfile,
			'start'
		]);
	return;
}

=pod

=item xlp_start_held(node, point)

Start a server that is held at an injection point during recovery, and return when it is.

=cut

sub xlp_start_held
{
	my ($node, $point) = @_;

	xlp_start_no_wait($node);
	$node->wait_for_log(qr/held at injection point "$point"/);
	return;
}

=pod

=item xlp_refusal(node, host)

What a client is told that connects to a server in recovery, through its socket
unless a host is given.

=cut

sub xlp_refusal
{
	my ($node, $host) = @_;
	$host //= $node->host;

	my (undef, $message) = run_command(
		[
			'psql',
			'--no-psqlrc',
			'-c' => 'SELECT 1',
			"host=$host port=" . $node->port . ' dbname=postgres'
		]);
	return $message;
}

=pod

=item xlp_recover(primary, backup, name, conf)

Recover a copy of a crashed server, all of it, and stop it; no client connects, and
so no other process changes pages.  Returns the server, and a digest of its files except
maps of free space, which redo page by page leaves behind.

=cut

sub xlp_recover
{
	my ($primary, $backup, $name, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, $backup);
	$node->append_conf(
		'postgresql.conf', "
autovacuum = off
max_logical_replication_workers = 0
$conf");

	local %ENV = $node->_get_env();
	system_or_bail(
		'pg_ctl',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'--wait', 'start');
	$node->_update_pid(1);
	$node->wait_for_log(qr/redo is complete/) if xlp_pending($node);
	$node->stop;

	my $digest = xlp_digest($node);
	delete @$digest{ grep { /_fsm(?:\.\d+)?$/ } keys %$digest };
	return ($node, $digest);
}

=pod

=item xlp_pending(node), xlp_redone(node)

How many pages were pending when clients got in before redo, and how many
records; how many pages had been redone one by one when redo was complete.
Nothing, if clients got in after redo.

=cut

sub xlp_pending
{
	my ($node) = @_;

	return slurp_file($node->logfile) =~
	  /opening before redo: (\d+) pages are pending, with (\d+) records/;
}

sub xlp_redone
{
	my ($node) = @_;
	my ($detail) =
	  slurp_file($node->logfile) =~
	  /redo is complete, .* after opening: .*\n.*Pages redone: (.*)\./
	  or return;

	return sum0($detail =~ /(\d+) by/g);
}

=pod

=back

=cut

1;
