
# Copyright (c) 2025, PostgreSQL Global Development Group

# A checkpoint writes the state of a prepared transaction to a file, and does not
# complete.  Recovery starts before the transaction: it must not take the file for one of
# the past, but build the transaction from WAL.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
checkpoint_timeout = 1h
max_prepared_transactions = 5
});
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE TABLE p(i int);
	CHECKPOINT});
$node->safe_psql(
	'postgres', q{
	SELECT txid_current();
	BEGIN; INSERT INTO p VALUES (1); PREPARE TRANSACTION 'found'});
my $control = slurp_file($node->data_dir . '/global/pg_control');
$node->safe_psql('postgres', 'CHECKPOINT');
is(scalar(glob($node->data_dir . '/pg_twophase/*')) ? 1 : 0,
	1, 'prepared: the checkpoint has written the file');
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

done_testing();
