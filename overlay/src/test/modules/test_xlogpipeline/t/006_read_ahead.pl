
# Copyright (c) 2025, PostgreSQL Global Development Group

# Blocks that the WAL pipeline reads before redo needs them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $primary = xlp_primary('primary');
$primary->append_conf('postgresql.conf', xlp_wait_conf());
xlp_page_images($primary, 1);
$primary->restart;
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION injection_points;
	CREATE EXTENSION pg_buffercache;
	CREATE EXTENSION test_points;
	CREATE TABLE torn (id int, v int) WITH (fillfactor = 50);
	INSERT INTO torn SELECT i, 0 FROM generate_series(1, 10) i;
	CREATE TABLE wide (id int, v int, filler text) WITH (fillfactor = 50);
	INSERT INTO wide SELECT i, 0, repeat('x', 800) FROM generate_series(1, 8000) i;
	CREATE TABLE filler (id int);
});

# --- A torn page that is rebuilt by an image must not be read before that

$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('torn')");
$primary->safe_psql('postgres', "UPDATE torn SET v = $_ WHERE id = $_")
  foreach (1 .. 5);
$primary->stop('immediate');

my $node = PostgreSQL::Test::Cluster->new('torn');
$primary->backup_fs_cold('torn');
$node->init_from_backup($primary, 'torn');
$node->append_conf('postgresql.conf', xlp_conf('on'));
open(my $fh, '+<:raw', $node->data_dir . "/$path") or die "$path: $!";
seek($fh, 4096, 0);
print $fh "\x5a" x 4096;
close($fh);
$node->start;
is($node->safe_psql('postgres', 'SELECT sum(v) FROM torn'),
	15, 'image was applied to a torn page');
cmp_ok(xlp_decoded($node), '>', 0, '... which the pipeline has decoded');
unlike(
	slurp_file($node->logfile),
	qr/invalid page|has failed/,
	'... and has not read before');
$node->stop;
$node->clean_node;

# --- Recovery with few buffers: redo finds blocks read

xlp_page_images($primary, 0);
$primary->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres',
	'UPDATE wide SET v = v + 1 WHERE id % 8 = ' . $_)
  foreach (0 .. 7);
$primary->stop('immediate');
$primary->backup_fs_cold('crashed');

my $digest;
foreach my $mode ('off', 'on')
{
	my $small = PostgreSQL::Test::Cluster->new("few_$mode");

	$small->init_from_backup($primary, 'crashed');
	$small->append_conf('postgresql.conf',
		xlp_conf($mode)
		  . "shared_buffers = 4MB\nbgwriter_lru_maxpages = 100\n");
	$small->start;
	$small->stop;

	my $log = slurp_file($small->logfile);
	my $this_digest = xlp_digest($small);

	# About 1600 pages are changed eight times, and most of them leave shared
	# buffers each time.  How far the pipeline is ahead of redo depends on which process
	# gets the processor: only that it is is certain.
	if ($mode eq 'off')
	{
		$digest = $this_digest;
	}
	else
	{
		my ($read) = $log =~ /read (\d+) blocks and wrote/;

		cmp_ok($read, '>', 0, "$mode: pipeline has read blocks ($read)");
		is(xlp_differences($digest, $this_digest), '', "$mode: same files");
	}
	$small->clean_node;
}

# --- A record whose block is being read is not replayed yet

$primary->start;
my $ctid =
  $primary->safe_psql('postgres', 'SELECT ctid FROM wide WHERE id = 5000');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', xlp_conf('on'));
$standby->start;
$primary->wait_for_catchup($standby);
xlp_pause($standby);
$primary->safe_psql('postgres',
	'INSERT INTO filler SELECT generate_series(1, 5000)');
$primary->safe_psql('postgres',
	"UPDATE wide SET v = 100 WHERE ctid = '$ctid'");
my $updated = $primary->lsn('flush');
$primary->safe_psql('postgres',
	'INSERT INTO filler SELECT generate_series(1, 20000)');
$primary->wait_for_catchup($standby, 'flush');
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-read-block', 'wait')");
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_event('walpipeline', 'xlogpipeline-read-block');
$standby->wait_for_event('startup', 'WalPipelineRecord');
my $replayed = $standby->lsn('replay');
is( $primary->safe_psql(
		'postgres', "SELECT '$replayed'::pg_lsn < '$updated'::pg_lsn"),
	't',
	"record is not replayed before its block has been read");
$standby->safe_psql(
	'postgres',
	"SELECT injection_points_detach('xlogpipeline-read-block');
	 SELECT injection_points_wakeup('xlogpipeline-read-block')");
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT v FROM wide WHERE id = 5000'),
	100, '... and then it is');

# --- Nothing is read behind a record of an extension that says not what it changes

my %block = map {
	$_ => $primary->safe_psql('postgres',
		"SELECT (ctid::text::point)[0] FROM wide WHERE id = $_")
} (1000, 7000);

sub has_read
{
	my ($id) = @_;

	return "SELECT count(*) = 1 FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('wide') AND relforknumber = 0
		AND relblocknumber = $block{$id}";
}

# all of the table is in its buffers by now
$standby->restart;
xlp_pause($standby);
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('test-points-redo', 'wait')");
$primary->safe_psql('postgres', $_)
  foreach (
	'INSERT INTO filler SELECT generate_series(1, 5000)',
	'UPDATE wide SET v = 200 WHERE id = 1000',
	'SELECT points_log_record()',
	'UPDATE wide SET v = 200 WHERE id = 7000',
	'INSERT INTO filler SELECT generate_series(1, 10000)');
$primary->wait_for_catchup($standby, 'flush');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_event('startup', 'test-points-redo');
ok( $standby->poll_query_until(
		'postgres',
		'SELECT wal_distance > 100000 FROM pg_stat_recovery_prefetch'),
	'WAL behind the record has been decoded');
is($standby->safe_psql('postgres', has_read(1000)),
	't', 'a block before it has been read');
is($standby->safe_psql('postgres', has_read(7000)),
	'f', '... and none behind it');
$standby->safe_psql(
	'postgres', q{
	SELECT injection_points_detach('test-points-redo');
	SELECT injection_points_wakeup('test-points-redo')});
$primary->wait_for_catchup($standby);
is( $standby->safe_psql('postgres', 'SELECT sum(v) FROM wide WHERE v = 200'),
	400,
	'all is replayed');

done_testing();
