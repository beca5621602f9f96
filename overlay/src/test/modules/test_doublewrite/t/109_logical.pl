
# Copyright (c) 2025, PostgreSQL Global Development Group

# Logical replication and replication slots between servers in double_writes:
# publisher, its standby and subscriber crash with torn pages, and nothing is
# lost, applied twice, or removed too early.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# Small WAL, and nothing but slots keeps it.
my $CONF = qq{
wal_level = logical
wal_log_hints = off
double_write_buffer_size = 1GB
max_wal_size = 1GB
min_wal_size = 32MB
hot_standby_feedback = on
sync_replication_slots = on
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 100ms
};

my %old;    # files of a node at its last checkpoint, by name

sub checkpoint
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'CHECKPOINT');
	$old{ $node->name } = dw_snapshot($node);
	return;
}

sub tear_and_start
{
	my ($node) = @_;
	my $torn = dw_tear($node, $old{ $node->name });

	cmp_ok($torn->{logged}, '>', 0, $node->name . ': pages were torn');
	dw_start_after_crash($node, $torn);
	return;
}

# Crash under load, lose what may be lost, start again.
sub crash
{
	my ($node, $test_name) = @_;

	note "crash of $test_name";
	$node->stop('immediate');
	tear_and_start($node);
	return;
}

sub catch_up
{
	my ($publisher, $subscriber) = @_;

	$publisher->wait_for_catchup('sub');
	is(dw_contents($subscriber),
		dw_contents($publisher), 'subscriber has the same data');
	return;
}

# The slots are where they are needed, and WAL is kept for them.
sub slots_are
{
	my ($node, $expected, $test_name) = @_;

	is( $node->safe_psql(
			'postgres',
			q{SELECT slot_name, wal_status IN ('reserved', 'extended')
			  FROM pg_replication_slots ORDER BY 1}),
		$expected,
		$test_name);
	return;
}

my $publisher = dw_new_node(
	'publisher',
	init => { allows_streaming => 'logical' },
	conf => $CONF);
$publisher->start;
dw_workload_setup($publisher);
$publisher->safe_psql(
	'postgres',
	q{SELECT pg_create_physical_replication_slot('standby', true);
	  CREATE PUBLICATION pub FOR TABLE accounts, history});
$publisher->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($publisher, 'base', has_streaming => 1);
my $connstr =
  $publisher->connstr . ' dbname=postgres application_name=standby';
$standby->append_conf('postgresql.conf',
	"primary_slot_name = 'standby'\nprimary_conninfo = '$connstr'\n");
$standby->{dw_checksums} = 1;
$standby->start;
$publisher->append_conf('postgresql.conf',
	"synchronized_standby_slots = 'standby'\n");
$publisher->reload;

# The load starts from the same tables at both ends.
my $subscriber = dw_new_node('subscriber', conf => $CONF);
$subscriber->start;
dw_workload_setup($subscriber);
$connstr = $publisher->connstr . ' dbname=postgres';
$subscriber->safe_psql('postgres',
		"CREATE SUBSCRIPTION sub CONNECTION '$connstr' PUBLICATION pub"
	  . ' WITH (copy_data = false, failover = true)');
$subscriber->wait_for_subscription_sync($publisher, 'sub');

my $synced =
  q{SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'sub' AND synced AND NOT temporary};
$publisher->safe_psql('postgres', 'SELECT pg_log_standby_snapshot()');
$standby->poll_query_until('postgres', $synced)
  or die 'timed out waiting for the slot on the standby';

# ---------------------------------------------------------------------
# Crashes of the subscriber, of the publisher, and of both
# ---------------------------------------------------------------------

checkpoint($_) foreach ($publisher, $subscriber);
dw_workload_start($publisher);
dw_wait_for_pages($subscriber, 100);
crash($subscriber, 'the subscriber');
checkpoint($subscriber);
dw_wait_for_pages($subscriber, 100);
crash($publisher, 'the publisher');
dw_workload_finish($publisher);
dw_check_history($publisher);
catch_up($publisher, $subscriber);

checkpoint($_) foreach ($publisher, $subscriber);
dw_workload_start($publisher);
dw_wait_for_pages($subscriber, 100);
$publisher->stop('immediate');
crash($subscriber, 'the subscriber, while the publisher is down');
tear_and_start($publisher);
dw_workload_finish($publisher);
catch_up($publisher, $subscriber);

# ---------------------------------------------------------------------
# Slots keep WAL for servers that are away, also across a crash
# ---------------------------------------------------------------------

my $slots = "standby|t\nsub|t";

slots_are($publisher, $slots, 'slots of the publisher');
$standby->stop;
$subscriber->stop;
for (1 .. 3)
{
	$publisher->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(false, 'test', 'filler')});
	$publisher->safe_psql('postgres', 'SELECT pg_switch_wal()');
}
checkpoint($publisher);
dw_workload_start($publisher, transactions => 300);
dw_workload_finish($publisher);
crash($publisher, 'the publisher, while the others are away');
$publisher->safe_psql('postgres', 'CHECKPOINT');
is( $publisher->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_replication_slots WHERE wal_status IN ('reserved', 'extended')}
	),
	2,
	'WAL is kept for the slots');
$standby->start;
$subscriber->start;
$publisher->wait_for_replay_catchup($standby);
catch_up($publisher, $subscriber);
is(dw_contents($standby), dw_contents($publisher),
	'standby has the same data');

# ---------------------------------------------------------------------
# Failover: the slot is on the standby, too, which has crashed before
# ---------------------------------------------------------------------

checkpoint($publisher);
$publisher->wait_for_replay_catchup($standby);
checkpoint($standby);
dw_workload_start($publisher);
dw_wait_for_pages($standby, 100);
crash($standby, 'the standby');
is($standby->safe_psql('postgres', $synced),
	't', 'the standby still has the slot');
dw_wait_for_pages($subscriber, 100);
$publisher->stop('immediate');
dw_workload_finish($publisher);
$standby->promote;
slots_are($standby, 'sub|t', 'slot of the new publisher');

$connstr = $standby->connstr . ' dbname=postgres';
$subscriber->safe_psql('postgres',
	"ALTER SUBSCRIPTION sub CONNECTION '$connstr'");
$standby->append_conf('postgresql.conf', "synchronized_standby_slots = ''\n");
$standby->reload;
$standby->{$_} = $publisher->{$_} for qw(dw_script dw_run);
$standby->{dw_acked} = {};
dw_workload_start($standby, transactions => 100);
dw_workload_finish($standby);
catch_up($standby, $subscriber);
is( $subscriber->safe_psql(
		'postgres',
		'SELECT sum(bal) FROM accounts;'
		  . 'SELECT count(*) = count(DISTINCT (run, client, n)) FROM history'
	),
	"0\nt",
	'data of the subscriber are consistent');
dw_check_amcheck($_) foreach ($standby, $subscriber);

# Redo of the move of a database removes its old files, and no slot made since.
$standby->append_conf('postgresql.conf',
	"allow_in_place_tablespaces = on\nsync_replication_slots = off\n");
$standby->restart;
$standby->safe_psql('postgres', $_)
  foreach (
	'CREATE DATABASE moved',
	q{CREATE TABLESPACE elsewhere LOCATION ''},
	'ALTER DATABASE moved SET TABLESPACE elsewhere');
$standby->safe_psql('moved',
	q{SELECT pg_create_logical_replication_slot('of_moved', 'pgoutput')});
$standby->stop('immediate');
$standby->start;
is( $standby->safe_psql(
		'postgres',
		q{SELECT database FROM pg_replication_slots WHERE slot_name = 'of_moved'}
	),
	'moved',
	'a slot of a database that was moved outlasts a crash');
$_->stop foreach ($subscriber, $standby);

done_testing();
