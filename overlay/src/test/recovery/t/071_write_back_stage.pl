
# Copyright (c) 2025, PostgreSQL Global Development Group

# Pages that leave shared buffers by way of the write-back stage: reads find
# the newest version, neighbours make one write, files have all that a
# checkpoint or a reader of files needs, and nothing comes back that was removed.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => ['--data-checksums']);

# 128 buffers, so most pages that a statement changes are evicted by it
$node->append_conf(
	'postgresql.conf', qq(
shared_buffers = 1MB
double_write_stage_size = 1MB
log_checkpoints = on
autovacuum = off
max_wal_size = 1GB
));
$node->start;

# Rows of about 1 kB, so that 6000 of them take 860 pages.
$node->safe_psql(
	'postgres', q(
CREATE TABLE t (id int, n int, filler text) WITH (fillfactor = 50);
INSERT INTO t SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 6000) i;
CREATE UNLOGGED TABLE u AS SELECT * FROM t;
CHECKPOINT;));

sub sums_are
{
	my ($table, $expected, $name, $database) = @_;

	is( $node->safe_psql(
			$database // 'postgres',
			"SELECT count(*), sum(n), sum(length(filler)) FROM $table"),
		$expected,
		$name);
	return;
}

# Each statement finds what the one before it has left in the stage.
for my $round (1 .. 5)
{
	$node->safe_psql('postgres', 'UPDATE t SET n = n + 1');
	sums_are(
		't',
		join('|', 6000, 6000 * $round, 6000000),
		"round $round: newest versions are read");
}
$node->safe_psql('postgres', 'UPDATE u SET n = 7');
sums_are('u', '6000|42000|6000000', 'unlogged table');

# The log line tells pages and writes.
my $offset = -s $node->logfile;
$node->safe_psql('postgres', 'UPDATE t SET n = n + 1; CHECKPOINT');
my $line = qr/wrote (\d+) pages home in (\d+) writes/;
$node->wait_for_log($line, $offset);
my ($pages, $writes) = slurp_file($node->logfile, $offset) =~ $line;
cmp_ok($pages, '>', 800, 'pages are written by way of the stage');
cmp_ok($writes, '<', $pages / 2, "neighbours make one write");
note("$pages pages in $writes writes");

# Readers of files: copies of a relation and of a database.
my $tablespace = PostgreSQL::Test::Utils::tempdir;
$node->safe_psql('postgres', "CREATE TABLESPACE ts LOCATION '$tablespace'");
$node->safe_psql(
	'postgres', q(
UPDATE t SET n = n + 1;
ALTER TABLE t SET TABLESPACE ts));
sums_are('t', '6000|42000|6000000', 'table has moved as it was');
$node->safe_psql('postgres', 'UPDATE t SET n = n + 1');
$node->safe_psql('postgres',
	'CREATE DATABASE copy TEMPLATE postgres STRATEGY file_copy');
sums_are('t', '6000|48000|6000000', 'database was copied as it was', 'copy');

# What is removed must not come back over what takes its blocks.
$node->safe_psql(
	'postgres', q(
UPDATE u SET n = 8;
TRUNCATE u;
INSERT INTO u SELECT i, 1, 'y' FROM generate_series(1, 10000) i;
CREATE TABLE d AS SELECT * FROM t;
UPDATE d SET n = 9;
DELETE FROM d WHERE id > 3000;
VACUUM d;
INSERT INTO d SELECT i, 2, 'z' FROM generate_series(3001, 4000) i));
$node->safe_psql('copy', 'UPDATE t SET n = 3');
$node->safe_psql('postgres', 'DROP DATABASE copy');
sums_are('u', '10000|10000|10000', 'truncated table');
sums_are('d', '4000|29000|3001000', 'vacuumed table');

# A crash loses the stage, and WAL has what was in it.
$node->safe_psql('postgres', 'UPDATE t SET n = 11');
$node->stop('immediate');
$node->start;
sums_are('t', '6000|66000|6000000', 'after a crash');
sums_are('u', '0||', 'unlogged table after a crash');

# A stop leaves nothing behind.
$node->safe_psql('postgres', 'UPDATE t SET n = 12');
$node->stop('fast');
$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
	'all pages on disk are whole');
$node->start;
sums_are('t', '6000|72000|6000000', 'after a stop');
$node->stop;

done_testing();
