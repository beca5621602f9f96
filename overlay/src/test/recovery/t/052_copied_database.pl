
# Copyright (c) 2025, PostgreSQL Global Development Group

# A standby replays twice that a database moves to another tablespace.  The second time its
# source is gone, or partly so, and the copy stays as it is.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
allow_in_place_tablespaces = on
autovacuum = off
});
$primary->start;
$primary->safe_psql('postgres', $_)
  foreach ("CREATE TABLESPACE space LOCATION ''", 'CREATE DATABASE moved');
$primary->safe_psql('moved',
	'CREATE TABLE t AS SELECT generate_series(1, 10000) AS i');
$primary->backup('b');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf(
	'postgresql.conf', q{
checkpoint_timeout = 1d
bgwriter_lru_maxpages = 0
log_min_messages = debug1
});
$standby->start;
my $source =
  $standby->data_dir . '/'
  . dirname(
	$primary->safe_psql('moved', q{SELECT pg_relation_filepath('t')}));

# Crash the standby, and look at the database when it has replayed again.
sub crash
{
	my ($how) = @_;
	my $offset = -s $standby->logfile;

	$standby->stop('immediate');
	if ($how eq 'partly')
	{
		mkdir($source) or die "$source: $!";
		append_to_file("$source/1", '');
	}
	$standby->start;
	$primary->wait_for_replay_catchup($standby);
	is( $standby->safe_psql('moved', 'SELECT count(*), sum(i) FROM t'),
		$primary->safe_psql('moved', 'SELECT count(*), sum(i) FROM t'),
		"source removed $how: rows of the database");
	ok( $standby->log_contains(
			qr/keeping database directory .* whose source is gone/, $offset),
		'... whose copy has been replayed again');
	return;
}

# Nothing of it is dirty when it moves, and nothing is changed after that, so no page that is
# written tells how far replay has come.
$primary->safe_psql('moved', 'VACUUM');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', 'ALTER DATABASE moved SET TABLESPACE space');
# The record of the removal has not been flushed yet.
$primary->safe_psql('postgres',
	q{SELECT pg_logical_emit_message(true, 'test', 'flushed')});
$primary->wait_for_replay_catchup($standby);
crash('and nothing else');

$primary->safe_psql('moved',
	'INSERT INTO t SELECT generate_series(1, 10000)');
$primary->wait_for_replay_catchup($standby);
crash('as a whole');
crash('partly');
ok(!-e $source, 'the source is gone');

$standby->stop;
$primary->stop;

done_testing();
