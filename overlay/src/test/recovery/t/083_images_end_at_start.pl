
# Copyright (c) 2025, PostgreSQL Global Development Group

# If full_page_writes has been turned off while a server was down, WAL says so when it
# starts, and a standby allows no base backup before it has WAL with images again.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$primary->start;
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
$primary->wait_for_replay_catchup($standby);

# Restart the primary, changing something.
sub restart_primary
{
	my ($setting) = @_;

	$primary->stop;
	$primary->append_conf('postgresql.conf', "full_page_writes = $setting");
	$primary->start;
	$primary->safe_psql('postgres', "CREATE TABLE t_$setting (i int)");
	$primary->wait_for_replay_catchup($standby);
	return;
}

restart_primary('off');
my ($ret, undef, $stderr) =
  $standby->psql('postgres', q{SELECT pg_backup_start('without', true)});
isnt($ret, 0, 'no backup of a standby while WAL has no images');
like(
	$stderr,
	qr/WAL generated with "full_page_writes=off" was replayed since last restartpoint/,
	'... and why');

restart_primary('on');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
is($standby->psql('postgres', q{SELECT pg_backup_start('with', true)}),
	0, 'a backup when it has them again');

# The same at the end of recovery.
my $promoted = PostgreSQL::Test::Cluster->new('promoted');
my $follower = PostgreSQL::Test::Cluster->new('follower');
$promoted->init_from_backup($primary, 'b', has_streaming => 1);
$promoted->append_conf('postgresql.conf', 'full_page_writes = off');
$promoted->start;
$follower->init_from_backup($primary, 'b', has_streaming => 1);
$follower->enable_streaming($promoted);
$follower->start;
$primary->wait_for_replay_catchup($promoted);
$primary->stop;
$promoted->promote;
$promoted->safe_psql('postgres', 'CREATE TABLE t_promoted (i int)');
$promoted->wait_for_replay_catchup($follower);
isnt($follower->psql('postgres', q{SELECT pg_backup_start('without', true)}),
	0, 'no backup after a promotion that ends images');

$_->stop foreach ($follower, $promoted, $standby);

done_testing();
