
# Copyright (c) 2025, PostgreSQL Global Development Group

# A session or transaction may choose full-page images for itself, and nothing
# weaker than what the server does.

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

my $SETTING = 'io_torn_pages_protection';
my $node = dw_new_node('main', init => { allows_streaming => 1 });

$node->start;
dw_workload_setup($node);
$node->safe_psql(
	'postgres',
	'CREATE TABLE t (i int, f text);
	 INSERT INTO t SELECT i, \'x\' FROM generate_series(1, 2000) i;
	 CREATE FUNCTION fpi(q text) RETURNS int LANGUAGE plpgsql AS $$
		DECLARE j json;
		BEGIN
			EXECUTE \'EXPLAIN (ANALYZE, WAL, FORMAT JSON) \' || q INTO j;
			RETURN coalesce((j -> 0 -> \'Plan\' ->> \'WAL FPI\')::int, 0);
		END $$;');

# Number of images that an update of all pages after a checkpoint writes, in a
# session that does something before and after
my $updates = 0;

sub images
{
	my ($before, $after) = (@_, '', '');

	$updates++;
	$node->safe_psql('postgres', 'CHECKPOINT');
	return $node->safe_psql('postgres',
		"$before; SELECT fpi('UPDATE t SET f = ''y'' WHERE i % 100 = $updates'); $after"
	);
}

sub refused
{
	my ($sql, $detail, $what) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql);

	isnt($ret, 0, "$what: refused");
	like($stderr, qr/invalid value for parameter "$SETTING"/, "$what: error");
	like($stderr, $detail, "$what: says why");
	return;
}

# ---------------------------------------------------------------------
# Images where they were asked for, and nowhere else
# ---------------------------------------------------------------------

is(images(), 0, 'double_writes: no images');
cmp_ok(images("SET $SETTING = full_pages"), '>', 5, 'session with images');
cmp_ok(images("BEGIN; SET LOCAL $SETTING = full_pages", 'COMMIT'),
	'>', 5, 'transaction with images');

# As ever when images are switched off, one more record may carry some.
cmp_ok(
	images(
		"BEGIN; SET LOCAL $SETTING = full_pages; INSERT INTO t VALUES (0); COMMIT"
	),
	'<=', 2,
	'next transaction without');
is(images("SET $SETTING = full_pages; SET $SETTING = double_writes"),
	0, 'back to what the server does');
is(images("SET $SETTING = full_pages; RESET $SETTING"), 0, 'reset');

my $session = $node->background_psql('postgres');
$session->query_safe("SET $SETTING = full_pages");
is(images(), 0, 'other sessions are not concerned');
is($node->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
	't', 'nor is the server');

# ---------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------

my $only =
  qr/DETAIL:  A session can only choose "full_pages", or what the server does\.\nHINT:  To change the setting of the server, use ALTER SYSTEM/;

refused("SET $SETTING = off", $only, 'off');
refused("ALTER ROLE CURRENT_USER SET $SETTING = off", $only,
	'off for a role');
{
	local $ENV{PGOPTIONS} = "-c $SETTING=off";
	$node->connect_fails(
		'dbname=postgres',
		'off at connection',
		expected_stderr => $only);
}
{
	local $ENV{PGOPTIONS} = "-c $SETTING=full_pages";
	is($node->safe_psql('postgres', "SHOW $SETTING"),
		'full_pages', 'full_pages at connection');
	is( $node->safe_psql(
			'postgres',
			'SET debug_parallel_query = on; SELECT count(*) FROM t WHERE f <> \'\''
		),
		2000,
		'parallel workers take it over');
}
$node->safe_psql('postgres',
	"ALTER DATABASE postgres SET $SETTING = full_pages");
is($node->safe_psql('postgres', "SHOW $SETTING"),
	'full_pages', 'setting of a database');
$node->safe_psql('postgres', "ALTER DATABASE postgres RESET $SETTING");

$node->append_conf('postgresql.conf', 'full_page_writes = off');
$node->reload;
$node->poll_query_until('postgres',
	"SELECT current_setting('full_page_writes') = 'off'");
refused(
	"SET $SETTING = full_pages",
	qr/DETAIL:  Full-page images are disabled by "full_page_writes"/,
	'full_page_writes off');
$node->append_conf('postgresql.conf', 'full_page_writes = on');
$node->reload;

# ---------------------------------------------------------------------
# The server changes its mode under a session
# ---------------------------------------------------------------------

$node->append_conf('postgresql.conf', "$SETTING = full_pages");
$node->reload;
$node->poll_query_until('postgres',
	"SELECT disarm_after <> '0/0' FROM dw_state()")
  or die 'no change';
$node->safe_psql('postgres', 'CHECKPOINT');
is($node->safe_psql('postgres', 'SELECT armed FROM dw_state()'),
	'f', 'server has switched to full_pages');
refused("SET $SETTING = double_writes", $only, 'double_writes in full_pages');
$session->query_safe("SET $SETTING = full_pages");
cmp_ok(images(), '>', 5, 'images for everybody');
$node->append_conf('postgresql.conf', "$SETTING = double_writes");
$node->reload;
$node->poll_query_until('postgres', 'SELECT armed FROM dw_state()')
  or die 'no change';
is($session->query_safe("SHOW $SETTING"),
	'full_pages', 'session keeps its choice');
$session->quit;

# ---------------------------------------------------------------------
# A crash with transactions of both kinds, on a standby as well
# ---------------------------------------------------------------------

$node->append_conf('postgresql.conf', 'wal_keep_size = 1GB');
$node->reload;
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;

my $script = slurp_file($node->{dw_script});
unlink($node->{dw_script});
$script =~
  s/^BEGIN;$/\\set images random(0, 1)\nBEGIN;\n\\if :images\nSET LOCAL $SETTING = full_pages;\n\\endif/m
  or die 'no transaction in the script';
append_to_file($node->{dw_script}, $script);

$node->safe_psql('postgres', 'CHECKPOINT');
my $old = dw_snapshot($node);
my $offset = -s $node->logfile;
dw_workload_start($node);
$node->poll_query_until('postgres',
	"SELECT count(*) > 300 FROM history WHERE run = $node->{dw_run}")
  or die 'workload does not work';
$node->psql(
	'postgres',
	"SELECT points_crash_at('doublewrite-home-run-written', 3)",
	on_error_die => 0);
dw_wait_for_crash($node, $offset);
dw_workload_finish($node);
my $torn = dw_tear($node, $old);
dw_start_after_crash($node, $torn);
dw_check_history($node);
dw_check_amcheck($node);

$node->wait_for_replay_catchup($standby);
is( $standby->safe_psql(
		'postgres', 'SELECT sum(bal), count(*) FROM accounts'),
	$node->safe_psql('postgres', 'SELECT sum(bal), count(*) FROM accounts'),
	'standby agrees');
my ($ret, $stdout, $stderr) =
  $standby->psql('postgres', "SET $SETTING = full_pages");
like(
	$stderr,
	qr/cannot be set for a session during recovery/,
	'not on a standby');
$standby->promote;
is( $standby->safe_psql(
		'postgres', "SET $SETTING = full_pages; SHOW $SETTING"),
	'full_pages',
	'but after its promotion');
$standby->stop;

dw_check($node);
done_testing();
