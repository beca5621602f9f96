
# Copyright (c) 2025, PostgreSQL Global Development Group

# A base backup without a signal file is recovered by its label alone.  That recovery is
# cut short, as WAL is missing; when WAL is there again, it goes on.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$primary->start;

# a backup that ends in another WAL segment than it begins in
my $session = $primary->background_psql('postgres');
$session->query_safe(q{SET client_min_messages = warning});
$session->query_safe(q{SELECT pg_backup_start('b', true)});
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->safe_psql('postgres', 'CREATE TABLE kept AS SELECT 1 AS i');
my $last = $primary->safe_psql('postgres',
	'SELECT pg_walfile_name(pg_current_wal_lsn())');
my $label =
  $session->query_safe('SELECT labelfile FROM pg_backup_stop(false)');
$session->quit;
$primary->backup_fs_cold('b');
$primary->stop;

my $node = PostgreSQL::Test::Cluster->new('restored');
$node->init_from_backup($primary, 'b');
append_to_file($node->data_dir . '/backup_label', "$label\n");
my $wal = $node->data_dir . '/pg_wal';
mkdir "$wal/aside" or die "could not make a directory: $!";
foreach my $name (grep { /^[0-9A-F]{24}$/ && $_ ge $last } slurp_dir($wal))
{
	rename("$wal/$name", "$wal/aside/$name")
	  or die "could not rename $name: $!";
}
ok(!$node->start(fail_ok => 1), 'recovery is cut short');
ok($node->log_contains(qr/WAL ends before end of online backup/),
	'... for want of WAL');
ok(-e ($node->data_dir . '/backup_label.old'), '... and the label is gone');

foreach my $name (grep { /^[0-9A-F]{24}$/ } slurp_dir("$wal/aside"))
{
	rename("$wal/aside/$name", "$wal/$name")
	  or die "could not rename $name: $!";
}
rmdir "$wal/aside";
ok($node->start(fail_ok => 1), 'server starts when WAL is there');
is($node->safe_psql('postgres', 'SELECT i FROM kept'),
	'1', '... nothing lost');
$node->stop;

done_testing();
