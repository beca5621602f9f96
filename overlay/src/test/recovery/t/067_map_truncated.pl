
# Copyright (c) 2025, PostgreSQL Global Development Group

# A table is emptied and truncated, with its visibility map.  Redo of what cleared bits
# there refers to a page of the map that does not exist any more, and meets no image of
# it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', "autovacuum = off\n");
$primary->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');

$primary->safe_psql('postgres', $_)
  foreach ('CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 1000) i',
	'VACUUM t');
$primary->backup('b');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', $_) foreach ('DELETE FROM t', 'VACUUM t');
is($primary->safe_psql('postgres', q{SELECT pg_relation_size('t', 'vm')}),
	0, 'emptied: the visibility map is truncated');
$primary->wait_for_replay_catchup($standby);
$standby->stop('immediate');
ok($standby->start(fail_ok => 1), '... and a standby starts after a crash');
$_->stop('fast') foreach ($standby, $primary);

done_testing();
