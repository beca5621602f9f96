# Copyright (c) 2025, PostgreSQL Global Development Group

# Crash states in which stock loses data or does not start, each arranged by hand;
# the power-cut explorer has found them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# Records of a hash index name the primary page of the bucket without a change or an
# image; it is torn, and a later record has its image.

# A server with the only table, whose index has one bucket that overflows
sub node_with_bucket
{
	my ($name, %params) = @_;
	my $node = dw_new_node($name, mode => 'full_pages', %params);

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE h(i int, k int);
		CREATE INDEX ON h USING hash (k);
		INSERT INTO h SELECT i, 1 FROM generate_series(1, 1000) i;
		CHECKPOINT});
	return $node;
}

# Have overflow pages changed, then the primary page as well.
sub change_bucket
{
	my ($node) = @_;

	$node->safe_psql('postgres',
		"DELETE FROM h WHERE $_; VACUUM (INDEX_CLEANUP ON) h")
	  foreach ('i > 990', 'i <= 10');
	$node->safe_psql('postgres', 'CREATE TABLE after_vacuum ()');
	return;
}

# Tear the primary page in the files of a server, where the index is at a path.
sub tear_bucket
{
	my ($node, $path) = @_;
	my $offset = 0;

	# its flags, and the next block
	while (my $page = dw_read_block($node, $path, $offset))
	{
		my ($next, $flag) = unpack('x4 L x4 S', substr($page, -16));
		last if $flag & 2 && $next != 0xffffffff;
		$offset += length($page);
	}
	cmp_ok($offset, '<', -s $node->data_dir . "/$path", 'bucket found');
	dw_write_block($node, $path, $offset + 4096, "\0" x 512);
	return;
}

sub path_of_index
{
	return $_[0]->safe_psql('postgres', q{SELECT pg_relation_filepath('h_k_idx')});
}

# Rows that are found by the index
sub rows_of_bucket
{
	return $_[0]->safe_psql('postgres',
		'SET enable_seqscan = off; SELECT count(*) FROM h WHERE k = 1');
}

# It is torn by a base backup.  Once that is consistent, scans are locked out.
{
	my $primary = node_with_bucket('torn_backup', init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('torn_backup_standby');
	my $session = $primary->background_psql('postgres');

	$session->query_safe(q{SET client_min_messages = warning});
	$session->query_safe(q{SELECT pg_backup_start('torn', true)});
	change_bucket($primary);
	my $label = $session->query_safe('SELECT labelfile FROM pg_backup_stop(false)');
	$session->quit;
	$primary->backup_fs_cold('torn');
	append_to_file($primary->backup_dir . '/torn/backup_label', "$label\n");
	$standby->init_from_backup($primary, 'torn', has_streaming => 1);
	$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = -1');
	tear_bucket($standby, path_of_index($primary));
	ok($standby->start(fail_ok => 1), 'bucket torn by a base backup: standby starts');
	is(rows_of_bucket($standby), '980', '... nothing lost');

	# The primary page, which is full, is pinned; redo of changes of overflow pages
	# waits for that.
	$primary->safe_psql('postgres', 'DELETE FROM h WHERE i BETWEEN 600 AND 609');
	$primary->wait_for_replay_catchup($standby);
	my $scan = $standby->background_psql('postgres');
	$scan->query_safe($_) foreach (
		'SET enable_seqscan = off', 'SET enable_bitmapscan = off',
		'BEGIN', 'DECLARE c CURSOR FOR SELECT i FROM h WHERE k = 1', 'FETCH c');
	$primary->safe_psql('postgres', $_)
	  foreach ('VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) h', 'CREATE TABLE flushed ()');
	my $end = $primary->lsn('flush');
	$standby->poll_query_until('postgres', qq{
		SELECT pg_last_wal_replay_lsn() >= '$end' OR
			EXISTS (SELECT FROM pg_stat_activity
				WHERE backend_type = 'startup' AND wait_event_type = 'BufferPin')})
	  or die 'timed out waiting for replay';
	is($standby->safe_psql('postgres', "SELECT pg_last_wal_replay_lsn() < '$end'"),
		't', '... and redo waits for a scan of the bucket');
	$scan->query_safe('COMMIT');
	$scan->quit;
	$primary->wait_for_replay_catchup($standby);
	is(rows_of_bucket($standby), '970', '... which has ended');
	$_->stop foreach ($standby, $primary);
}

# It is torn by a crash.
foreach my $case (
	[ 'without checksums', 0, "wal_consistency_checking = 'hash'" ],
	[ 'with checksums', 1, '' ],
	[ 'checked', 1, "wal_consistency_checking = 'hash'" ],
	[ 'page by page', 1, 'instant_recovery = on' ])
{
	my ($what, $checksums, $conf) = @$case;
	my $node = node_with_bucket('torn_' . $what =~ tr/ /_/r,
		checksums => $checksums, conf => "$conf\n");
	my $path = path_of_index($node);

	change_bucket($node);
	$node->stop('immediate');
	tear_bucket($node, $path);
	ok($node->start(fail_ok => 1), "bucket torn by a crash, $what: server starts");
	is(rows_of_bucket($node), '980', '... nothing lost');
	ok(!$node->log_contains(qr/invalid page|verification failed/), '... nor met');
	$node->stop;
}

# A restartpoint in crash recovery, or while a backup without a signal file is
# recovered: the oldest running transaction is not known.  The assertion that this
# violates needs a build with assertions.
foreach my $from ('checkpoint', 'backup')
{
	my $node = dw_new_node("restartpoint_$from", mode => 'full_pages');

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE kept(i int);
		CREATE TABLE gone(i int);
		CHECKPOINT});
	my $control = slurp_file($node->data_dir . '/global/pg_control');
	my ($state) = run_command([ 'pg_controldata', $node->data_dir ]);
	$node->safe_psql('postgres', 'INSERT INTO kept VALUES (1); CHECKPOINT');
	$node->safe_psql('postgres', 'DROP TABLE gone');
	my $offset = -s $node->logfile;
	$node->stop('immediate');
	# which is logged when pg_ctl need not wait any more
	$node->wait_for_log(qr/system is shut down/, $offset);
	open(my $file, '+<:raw', $node->data_dir . '/global/pg_control') or die $!;
	print $file $control;
	close $file or die $!;
	if ($from eq 'backup')
	{
		my ($checkpoint) = $state =~ /^Latest checkpoint location: +(\S+)/m;
		my ($redo, $segment) =
		  $state =~ /^Latest checkpoint's REDO location: +(\S+)\n.*REDO WAL file: +(\S+)/m;

		append_to_file($node->data_dir . '/backup_label',
				"START WAL LOCATION: $redo (file $segment)\n"
			  . "CHECKPOINT LOCATION: $checkpoint\n"
			  . "BACKUP METHOD: copied\nBACKUP FROM: primary\n");
	}

	# redo stops when it drops the table, and the checkpointer goes on
	$offset = -s $node->logfile;
	$node->append_conf('postgresql.conf', q{
test_doublewrite.hold_at = 'doublewrite-relations-discarded'
checkpoint_timeout = 1s
hot_standby = on
});
	my @pg_ctl = ('pg_ctl', '--pgdata' => $node->data_dir);
	run_log([ @pg_ctl, '--log' => $node->logfile, '--no-wait', 'start' ]);
	$node->wait_for_log(qr/restartpoint complete|system is shut down/, $offset);
	ok($node->log_contains(qr/restartpoint complete/, $offset),
		"recovery from a $from: a restartpoint completes");
	run_log([ @pg_ctl, '--mode' => 'immediate', 'stop' ]);

	$node->append_conf('postgresql.conf', q{test_doublewrite.hold_at = ''});
	ok(dw_poll_start($node), 'server starts');
	is($node->safe_psql('postgres', 'SELECT i FROM kept'), '1', 'nothing lost');
	$node->stop;
}

# The recovery of a base backup without a signal file is cut short
{
	my $primary = dw_new_node('backed_up', init => { allows_streaming => 1 });
	my $node = PostgreSQL::Test::Cluster->new('restored');

	$primary->start;
	$primary->safe_psql('postgres', 'CREATE TABLE kept AS SELECT 1 AS i');
	$primary->backup('b');
	$primary->stop;
	$node->init_from_backup($primary, 'b');
	$node->append_conf('postgresql.conf',
		"test_doublewrite.crash_at = 'doublewrite-armed'");
	ok(!dw_poll_start($node), 'backup: recovery is cut short');
	dw_wait_for_crash($node, 0);
	ok(-e ($node->data_dir . '/backup_label.old'), 'the label is gone');
	$node->append_conf('postgresql.conf', "test_doublewrite.crash_at = ''");
	ok($node->start(fail_ok => 1), 'server starts');
	is($node->safe_psql('postgres', 'SELECT i FROM kept'), '1', 'nothing lost');
	$node->stop;
}

# A database is dropped whose map of relations is all that redo has to change there: it
# opens a file in a directory that does not exist any more.  In stock it does so on a
# standby only, as DROP DATABASE makes a checkpoint before it removes files.
{
	my $node = dw_quiet_node('mapped');

	$node->safe_psql('postgres', 'CREATE DATABASE other');
	my $session = $node->background_psql('other');
	$session->query_safe('BEGIN; REINDEX INDEX pg_class_relname_nsp_index');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$session->query_safe('COMMIT');
	$session->quit;
	$node->safe_psql('postgres', q{SELECT dw_crash_at('doublewrite-database-removed')});
	isnt($node->psql('postgres', 'DROP DATABASE other'), 0,
		'mapped: crash when the database has been removed');
	$node->stop('immediate', fail_ok => 1);
	ok(dw_poll_start($node), '... and the server starts');
	$node->stop('fast', fail_ok => 1);
}

done_testing();
