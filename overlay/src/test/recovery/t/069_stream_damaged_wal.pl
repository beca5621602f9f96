
# Copyright (c) 2025, PostgreSQL Global Development Group

# A crash of a standby has damaged a record that extends into a segment which it does not
# have: the standby streams both again.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
wal_keep_size = 256MB
});
$primary->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');
my $segment = sub {
	$primary->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_current_wal_lsn())');
};
$primary->backup('b');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
my $size = $primary->safe_psql('postgres',
	q{SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'});

$primary->safe_psql('postgres', 'SELECT pg_switch_wal(); CREATE TABLE d()');
$primary->wait_for_replay_catchup($standby);
my $first = $segment->();
$primary->safe_psql('postgres',
	"SELECT pg_logical_emit_message(false, '', repeat('x', $size), true)");
my $last = $segment->();
isnt($first, $last, 'damaged: a record in two segments');
$primary->wait_for_replay_catchup($standby);
$standby->stop('immediate');

unlink $standby->data_dir . "/pg_wal/$last"
  or die "could not remove $last: $!";
my $file = $standby->data_dir . "/pg_wal/$first";
open my $wal, '+<:raw', $file or die "could not open $file: $!";
seek $wal, $size - 512, 0;
print $wal "\0" x 512;
close $wal;
my $offset = -s $standby->logfile;
$standby->start;
$primary->safe_psql('postgres', 'CREATE TABLE after_it()');
$primary->wait_for_replay_catchup($standby);
my @invalid = slurp_file($standby->logfile, $offset) =~
  /incorrect resource manager data checksum in record/g;
cmp_ok(scalar(@invalid), '>', 0, '... which is invalid');
cmp_ok(scalar(@invalid), '<', 10, '... and is not read over and over');
$_->stop('fast', fail_ok => 1) foreach ($standby, $primary);

done_testing();
