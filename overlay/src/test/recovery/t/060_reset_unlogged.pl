
# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo makes an unlogged relation anew if a crash has lost the name of its init fork, but
# not that of its main fork.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;
$node->safe_psql(
	'postgres', q{
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
is($node->safe_psql('postgres', 'SELECT count(*) FROM u'),
	'0', 'unlogged table is empty');
is($node->safe_psql('postgres', 'SELECT count(*) FROM logged'),
	'1', 'logged table is not');
$node->stop;

done_testing();
