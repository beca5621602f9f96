
# Copyright (c) 2026, PostgreSQL Global Development Group

# The WAL pipeline never reads a page that an earlier record, not replayed yet,
# rebuilds: it may be torn on disk.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

# Write garbage over the second half of some blocks of a file.
sub tear
{
	my ($file, $first, $end) = @_;

	open(my $fh, '+<:raw', $file) or die "$file: $!";
	foreach my $block ($first .. $end - 1)
	{
		seek($fh, $block * 8192 + 4096, 0);
		print $fh "\x5a" x 4096;
	}
	close($fh) or die "$file: $!";
	return;
}

# All leaf pages of an index are full.  In random order, each is split by the first
# key inserted there, and the last ones go to its new right half: one record that
# reads the left page and rebuilds the right one, and others that change the right
# one.  All new pages are torn.
sub splits
{
	my ($primary, $name, $checking) = @_;
	my $size = "SELECT pg_relation_size('${name}_k') / 8192";

	$primary->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (k numeric, filler text);
		INSERT INTO $name SELECT i, '' FROM generate_series(1, 120000) i;
		CREATE INDEX ${name}_k ON $name (k) WITH (fillfactor = 100);
		VACUUM;
		CHECKPOINT;
	});
	my $first = $primary->safe_psql('postgres', $size);
	$primary->safe_psql(
		'postgres', qq{
		DO \$\$
		DECLARE
			leaf int;
		BEGIN
			FOR leaf IN SELECT i FROM generate_series(1, 120000, 400) i
					ORDER BY hashint4(i) LOOP
				PERFORM set_config('wal_consistency_checking', '$checking', false);
				INSERT INTO $name VALUES (leaf + 0.5);
				PERFORM set_config('wal_consistency_checking', '', false);
				INSERT INTO $name
					SELECT leaf + i + 0.5 FROM generate_series(50, 350, 50) i;
			END LOOP;
		END
		\$\$;
	});
	my $end = $primary->safe_psql('postgres', $size);
	my $path = $primary->safe_psql('postgres',
		"SELECT pg_relation_filepath('${name}_k')");

	$primary->stop('immediate');
	$primary->backup_fs_cold($name);
	$primary->start;
	cmp_ok($end - $first, '>', 200, "$name: most leaf pages are split");

	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($primary, $name);
	$node->append_conf('postgresql.conf',
		xlp_conf('on') . "shared_buffers = 1MB\n");
	tear($node->data_dir . "/$path", $first, $end);
	$node->start;
	cmp_ok(xlp_decoded($node), '>', 0, "$name: pipeline has decoded");
	unlike(slurp_file($node->logfile),
		qr/invalid page|has failed/, "$name: it has read no torn page");
	is( $node->safe_psql(
			'postgres',
			"SET enable_seqscan = off; SELECT count(*) FROM $name WHERE k > 0"),
		122400,
		"$name: nothing is lost");
	$node->stop;
	$node->clean_node;
	return;
}

my $primary = xlp_primary('primary');
$primary->append_conf('postgresql.conf', 'io_torn_pages_protection = off');
$primary->restart;

# --- The limit of I/Os is reached in the middle of a record

splits($primary, 'midway', '');

# --- The rebuilt page has an image, which is not applied

splits($primary, 'checked', 'btree');

# --- Prefetching is switched on before a record has been replayed that was
# --- passed on without it

$primary->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$primary->restart;
$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION injection_points;
	CREATE TABLE torn (id int, v int) WITH (fillfactor = 50);
	INSERT INTO torn SELECT i, 0 FROM generate_series(1, 10) i;
	CREATE TABLE filler (id int);
	VACUUM torn;
});
my $path =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('torn')");
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	xlp_conf('on') . "recovery_prefetch = off\n");
$standby->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$standby->stop;
tear($standby->data_dir . "/$path", 0, 1);
my $offset = -s $standby->logfile;
$standby->start;
$primary->wait_for_catchup($standby);

# The startup process itself reads the first record and waits.  The first one
# that it hands over is the image of the torn page.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->safe_psql('postgres',
	"SELECT injection_points_attach('xlogpipeline-record-ready', 'wait')");
$primary->safe_psql('postgres',
	"SELECT pg_logical_emit_message(false, 'test', 'first');
	 UPDATE torn SET v = 1 WHERE id = 1");
$primary->safe_psql('postgres', 'UPDATE torn SET v = 2 WHERE id = 2');
$primary->safe_psql('postgres',
	'INSERT INTO filler SELECT generate_series(1, 5000)');
$primary->wait_for_catchup($standby, 'flush');
$standby->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'") or die;
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$standby->wait_for_event('walpipeline', 'xlogpipeline-record-ready');

# It may take the image, but not apply it.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->append_conf('postgresql.conf', 'recovery_prefetch = on');
$standby->reload;
$standby->poll_query_until('postgres',
	"SELECT setting = 'on' FROM pg_settings WHERE name = 'recovery_prefetch'")
  or die;
$standby->safe_psql('postgres',
	"SELECT injection_points_detach('xlogpipeline-record-ready');
	 SELECT injection_points_wakeup('xlogpipeline-record-ready')");
$standby->poll_query_until('postgres',
	q{SELECT pg_get_wal_replay_pause_state() = 'paused' AND
		NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE backend_type = 'walpipeline' AND
				wait_event NOT IN ('WalPipelineReplay', 'WalPipelineMain'))})
  or die;
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
unlike(slurp_file($standby->logfile, $offset),
	qr/invalid page|has failed/, 'switched on: no torn page has been read');
is($standby->safe_psql('postgres', 'SELECT sum(v) FROM torn'),
	3, 'switched on: image was applied to the torn page');

done_testing();
