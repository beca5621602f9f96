
# Copyright (c) 2025, PostgreSQL Global Development Group

# The startup process ends with an error if it cannot start to read a page, not with a crash,
# though it has a handle for asynchronous I/O in its hands then.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $TABLES = 100;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
full_page_writes = off
});
$primary->start;
$primary->backup('base');

# Few buffers, so that the page is evicted, and few files, so that its file is closed
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
hot_standby = off
shared_buffers = 128kB
max_files_per_process = 64
recovery_prefetch = off
});
$standby->start;

sub catch_up
{
	my $lsn = $primary->lsn('insert');

	$primary->poll_query_until('postgres',
		"SELECT replay_lsn >= '$lsn' FROM pg_stat_replication")
	  or die 'standby does not catch up';
}

$primary->safe_psql('postgres',
	'CREATE TABLE t (i int); INSERT INTO t VALUES (0)');
$primary->safe_psql(
	'postgres',
	join(
		';',
		map { "CREATE TABLE other$_ (i int); INSERT INTO other$_ VALUES (0)" }
		  1 .. $TABLES));
catch_up();

my $path = $standby->data_dir . '/'
  . $primary->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
rename($path, "$path.away") or die "$path: $!";
$primary->safe_psql('postgres', 'INSERT INTO t VALUES (1)');

$standby->wait_for_log(qr/startup process .*(exited with|was terminated by)/);
my $log = slurp_file($standby->logfile);
like(
	$log,
	qr/FATAL:  could not start reading blocks/,
	'a file cannot be opened for a read: an error');
like(
	$log,
	qr/startup process \(PID \d+\) exited with exit code 1$/m,
	'... which ends the startup process in order');

done_testing();
