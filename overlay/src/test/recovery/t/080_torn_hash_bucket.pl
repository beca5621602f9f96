
# Copyright (c) 2025, PostgreSQL Global Development Group

# Records of a hash index name the primary page of the bucket without a change or an
# image, for redo to lock it.  It is torn, and a later record has its image.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $block_size;

# A server with the only table, whose index has one bucket that overflows
sub node_with_bucket
{
	my ($name) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
full_page_writes = on
io_torn_pages_protection = full_pages
instant_recovery = off
});
	$node->start;
	$block_size = $node->safe_psql('postgres', 'SHOW block_size');
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE h(i int, k int);
		CREATE INDEX ON h USING hash (k);
		INSERT INTO h SELECT i, 1 FROM generate_series(1, 2000) i;
		CHECKPOINT});
	return $node;
}

# Have overflow pages changed, by records of each kind, then the primary page as well.
sub change_bucket
{
	my ($node) = @_;
	my $from = $node->lsn('insert');

	$node->safe_psql('postgres',
		"DELETE FROM h WHERE $_; VACUUM (INDEX_CLEANUP ON) h")
	  foreach (
		'i > 1990',
		'i BETWEEN 450 AND 600',
		'i BETWEEN 900 AND 1200',
		'i <= 10');
	$node->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	my ($records) = run_command(
		[
			'pg_waldump', "--start=$from",
			'--rmgr=Hash', '--path=' . $node->data_dir . '/pg_wal'
		]);
	like($records, qr/desc: $_/, $node->name . ": $_")
	  foreach (
		'DELETE .*is_primary F',
		'MOVE_PAGE_CONTENTS .*is_primary F',
		'SQUEEZE_PAGE .*is_primary F');
	return;
}

# Tear the primary page in the files of a server, where the index is at a path.
sub tear_bucket
{
	my ($node, $path) = @_;
	my $offset = 0;

	open(my $file, '+<:raw', $node->data_dir . "/$path")
	  or die "could not open $path: $!";
	while (read($file, my $page, $block_size))
	{
		# its flags, and the next block
		my ($next, $flag) = unpack('x4 L x4 S', substr($page, -16));
		last if $flag & 2 && $next != 0xffffffff;
		$offset += $block_size;
	}
	cmp_ok($offset, '<', -s $file, 'bucket found');
	seek($file, $offset + $block_size / 2, 0);
	print $file "\0" x 512;
	close($file) or die "could not write $path: $!";
	return;
}

sub path_of_index
{
	return $_[0]
	  ->safe_psql('postgres', q{SELECT pg_relation_filepath('h_k_idx')});
}

# Rows that are found by the index
sub rows_of_bucket
{
	return $_[0]->safe_psql('postgres',
		'SET enable_seqscan = off; SELECT count(*) FROM h WHERE k = 1');
}

# It is torn by a crash.
my $node = node_with_bucket('crash');
my $path = path_of_index($node);
change_bucket($node);
$node->stop('immediate');
tear_bucket($node, $path);
ok($node->start(fail_ok => 1), 'bucket torn by a crash: server starts');
is(rows_of_bucket($node), '1528', '... nothing lost');
ok(!$node->log_contains(qr/invalid page|verification failed/), '... nor met');
$node->stop;

# It is torn by a base backup.  Once that is consistent, scans are locked out.
my $primary = node_with_bucket('primary');
my $standby = PostgreSQL::Test::Cluster->new('standby');
my $session = $primary->background_psql('postgres');
$session->query_safe(q{SET client_min_messages = warning});
$session->query_safe(q{SELECT pg_backup_start('torn', true)});
change_bucket($primary);
my $label =
  $session->query_safe('SELECT labelfile FROM pg_backup_stop(false)');
$session->quit;
$primary->backup_fs_cold('torn');
append_to_file($primary->backup_dir . '/torn/backup_label', "$label\n");
$standby->init_from_backup($primary, 'torn', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = -1');
tear_bucket($standby, path_of_index($primary));
ok($standby->start(fail_ok => 1),
	'bucket torn by a base backup: standby starts');
is(rows_of_bucket($standby), '1528', '... nothing lost');

# The primary page, which is full, is pinned; redo of changes of overflow pages
# waits for that.
$primary->safe_psql('postgres', 'DELETE FROM h WHERE i BETWEEN 700 AND 709');
$primary->wait_for_replay_catchup($standby);
my $scan = $standby->background_psql('postgres');
$scan->query_safe($_)
  foreach (
	'SET enable_seqscan = off',
	'SET enable_bitmapscan = off',
	'BEGIN', 'DECLARE c CURSOR FOR SELECT i FROM h WHERE k = 1',
	'FETCH c');
$primary->safe_psql('postgres', $_)
  foreach ('VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) h',
	'CREATE TABLE flushed ()');
my $end = $primary->lsn('flush');
$standby->poll_query_until(
	'postgres', qq{
	SELECT pg_last_wal_replay_lsn() >= '$end' OR
		EXISTS (SELECT FROM pg_stat_activity
			WHERE backend_type = 'startup' AND wait_event_type = 'BufferPin')}
) or die 'timed out waiting for replay';
is( $standby->safe_psql(
		'postgres', "SELECT pg_last_wal_replay_lsn() < '$end'"),
	't',
	'... and redo waits for a scan of the bucket');
$scan->query_safe('COMMIT');
$scan->quit;
$primary->wait_for_replay_catchup($standby);
is(rows_of_bucket($standby), '1518', '... which has ended');
$_->stop foreach ($standby, $primary);

done_testing();
