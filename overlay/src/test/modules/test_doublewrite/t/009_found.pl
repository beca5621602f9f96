# Copyright (c) 2025, PostgreSQL Global Development Group

# Crash states that the power-cut explorer has found to lose data or to keep a
# server from starting, each arranged by hand.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

sub control_value
{
	my ($node, $name) = @_;
	my ($out) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $out =~ /\Q$name\E:\s+(\S+)/ ? $1 : die "no $name in pg_control";
}

# The name of the init fork of an unlogged table is lost, that of its main
# fork is not.
{
	my $node = dw_new_node('init_fork_lost');

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE logged(i int);
		CHECKPOINT;
		CREATE UNLOGGED TABLE u AS SELECT generate_series(1, 10) i;
		INSERT INTO logged VALUES (1)});
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('u')");
	$node->stop('immediate');
	append_to_file($path, '') unless -e $path;
	unlink("${path}_init") or die "could not remove init fork: $!";

	ok($node->start(fail_ok => 1), 'init fork lost: server starts');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM u'), '0',
		'unlogged table is empty');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM logged'), '1',
		'logged table is not');
	$node->stop;
}

# A checkpoint completes between the dropping of a table's buffers and the
# removal of its files.  Its redo pointer is later than changes that were in
# those buffers only, and earlier than others, whose records redo would then
# apply to pages that lack the former.
{
	my $node = dw_new_node('half_dropped', conf => qq{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
checkpoint_timeout = 1h
log_min_messages = notice
});

	$node->start;
	dw_extensions($node);
	$node->safe_psql('postgres', q{
		CREATE TABLE d(i int PRIMARY KEY, filler text);
		INSERT INTO d SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i;
		CHECKPOINT;
		DELETE FROM d WHERE i % 3 = 0;
		INSERT INTO d SELECT i, repeat('y', 100) FROM generate_series(10001, 11000) i});
	$node->safe_psql('postgres', q{
		SELECT injection_points_attach('doublewrite-relations-discarded', 'wait');
		SELECT injection_points_attach('doublewrite-wait-for-removals', 'notice')});
	my $before = control_value($node, 'REDO location');

	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\nDROP TABLE d;\n");
	$node->wait_for_event('client backend', 'doublewrite-relations-discarded');

	my $offset = -s $node->logfile;
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_log(qr/injection point doublewrite-wait-for-removals/, $offset);
	is(control_value($node, 'REDO location'), $before,
		'checkpoint does not complete while files are being removed');
	dw_wake($node, 'doublewrite-relations-discarded');
	$checkpoint->quit;
	isnt(control_value($node, 'REDO location'), $before, '... but then');
	$drop->quit;
	$node->stop('immediate');
	ok($node->start(fail_ok => 1), 'server starts');
	$node->stop;
}

# A checkpoint makes removals durable: else what was truncated or dropped may
# come back, older than the checkpoint's redo pointer.
{
	my $node = dw_new_node('removals_durable', conf => qq{
fsync = on
autovacuum = off
});

	$node->start;
	dw_extensions($node);

	# Files that a checkpoint syncs besides those that it has written
	my $synced = sub {
		my ($sql) = @_;
		my $query = 'SELECT sync_cycle_files FROM dw_stats()';
		my $before;

		$node->safe_psql('postgres', 'CHECKPOINT');
		$before = $node->safe_psql('postgres', $query);
		$node->safe_psql('postgres', $sql);
		$node->safe_psql('postgres', 'CHECKPOINT');
		return $node->safe_psql('postgres', $query) - $before;
	};

	$node->safe_psql('postgres', q{
		CREATE TABLE cut AS SELECT generate_series(1, 2000) i;
		CREATE TABLE gone AS SELECT generate_series(1, 2000) i});
	is($synced->('UPDATE cut SET i = i WHERE i = 1'), 0,
		'nothing removed: checkpoint syncs nothing of its own');
	cmp_ok($synced->('DELETE FROM cut; VACUUM cut'), '>=', 1,
		'checkpoint syncs a file that was truncated');
	cmp_ok($synced->('DROP TABLE gone'), '>=', 1,
		'checkpoint syncs a file that was dropped');
	$node->stop;
}

# A checkpoint that fails to do that leaves it to the next one, and takes nothing
# for done that has been removed meanwhile.
{
	my $node = dw_quiet_node('removals_fail');
	my $point = 'doublewrite-sync-removals';
	my $synced = sub {
		return $node->safe_psql('postgres', 'SELECT sync_cycle_files FROM dw_stats()');
	};

	$node->safe_psql('postgres', qq{
		CREATE TABLE cut AS SELECT generate_series(1, 2000) i;
		CREATE TABLE gone AS SELECT generate_series(1, 2000) i;
		CHECKPOINT;
		SELECT injection_points_attach('$point', 'error')});
	$node->safe_psql('postgres', 'DELETE FROM cut; VACUUM cut');
	my ($ret) = $node->psql('postgres', 'CHECKPOINT');
	isnt($ret, 0, 'checkpoint fails if removals cannot be synced');
	my $before = $synced->();
	$node->safe_psql('postgres', "SELECT injection_points_detach('$point'); CHECKPOINT");
	cmp_ok($synced->(), '>', $before, 'the next one syncs them');

	$node->safe_psql('postgres', "SELECT injection_points_attach('$point', 'wait')");
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', $point);
	$node->safe_psql('postgres', 'DROP TABLE gone');
	dw_wake($node, $point);
	$checkpoint->quit;
	$before = $synced->();
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok($synced->(), '>', $before,
		'file dropped during the sync is for the next checkpoint');
	$node->stop;
}

# A sequence that is created and used in one transaction, without WAL
{
	my $node = dw_new_node('sequence', conf => qq{
wal_level = minimal
max_wal_senders = 0
});

	$node->start;
	$node->safe_psql('postgres', q{
		BEGIN; CREATE SEQUENCE s; SELECT nextval('s'); COMMIT});
	$node->safe_psql('postgres', q{
		CREATE TABLE used AS SELECT nextval('s') FROM generate_series(1, 20)});
	$node->stop('immediate');
	$node->start;
	cmp_ok($node->safe_psql('postgres', q{SELECT nextval('s')}), '>', 21,
		'sequence does not give out values twice');
	$node->stop;
}

# Redo of BRIN records for an index whose file is gone
{
	my $node = dw_new_node('brin_dropped');

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE b(i int);
		INSERT INTO b SELECT generate_series(1, 1000);
		CREATE INDEX ON b USING brin (i) WITH (pages_per_range = 1);
		CHECKPOINT;
		INSERT INTO b SELECT generate_series(1, 10000);
		SELECT brin_summarize_new_values('b_i_idx');
		DROP TABLE b});
	$node->stop('immediate');
	ok($node->start(fail_ok => 1), 'BRIN index dropped: server starts');
	$node->stop;
}

# A checkpoint writes the state of a prepared transaction to a file, and does
# not complete.  Recovery starts before the transaction: it must not take the
# file for one of the past, but build the transaction from WAL.
{
	my $node = dw_new_node('prepared', conf => qq{
max_prepared_transactions = 5
});

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE p(i int);
		CHECKPOINT});
	$node->safe_psql('postgres', q{
		SELECT txid_current();
		BEGIN; INSERT INTO p VALUES (1); PREPARE TRANSACTION 'found'});
	my $control = slurp_file($node->data_dir . '/global/pg_control');
	$node->safe_psql('postgres', 'CHECKPOINT');
	is(scalar(glob($node->data_dir . '/pg_twophase/*')) ? 1 : 0, 1,
		'prepared: the checkpoint has written the file');
	$node->stop('immediate');
	open(my $file, '+<:raw', $node->data_dir . '/global/pg_control') or die $!;
	print $file $control;
	close $file or die $!;

	ok($node->start(fail_ok => 1), 'prepared: server starts');
	is($node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts'),
		'found', 'transaction is still prepared');
	$node->safe_psql('postgres', q{COMMIT PREPARED 'found'});
	is($node->safe_psql('postgres', 'SELECT i FROM p'), '1', 'and can commit');
	$node->stop;
}

# A restartpoint in crash recovery, of which nobody knows the oldest running
# transaction.  The assertion that this violates needs a build with assertions.
{
	my $node = dw_new_node('restartpoint', mode => 'full_pages');

	$node->start;
	$node->safe_psql('postgres', q{
		CREATE TABLE kept(i int);
		CREATE TABLE gone(i int);
		CHECKPOINT});
	my $control = slurp_file($node->data_dir . '/global/pg_control');
	$node->safe_psql('postgres', 'INSERT INTO kept VALUES (1); CHECKPOINT');
	$node->safe_psql('postgres', 'DROP TABLE gone');
	$node->stop('immediate');
	open(my $file, '+<:raw', $node->data_dir . '/global/pg_control') or die $!;
	print $file $control;
	close $file or die $!;

	# redo stops when it drops the table, and the checkpointer goes on
	my $offset = -s $node->logfile;
	$node->append_conf('postgresql.conf', q{
test_doublewrite.hold_at = 'doublewrite-relations-discarded'
checkpoint_timeout = 1s
hot_standby = on
});
	my @pg_ctl = ('pg_ctl', '--pgdata' => $node->data_dir);
	run_log([ @pg_ctl, '--log' => $node->logfile, '--no-wait', 'start' ]);
	$node->wait_for_log(qr/restartpoint complete|system is shut down/, $offset);
	ok($node->log_contains(qr/restartpoint complete/, $offset),
		'restartpoint in crash recovery completes');
	run_log([ @pg_ctl, '--mode' => 'immediate', 'stop' ]);

	$node->append_conf('postgresql.conf', q{test_doublewrite.hold_at = ''});
	ok(dw_poll_start($node), 'server starts');
	is($node->safe_psql('postgres', 'SELECT i FROM kept'), '1', 'nothing lost');
	$node->stop;
}

done_testing();
