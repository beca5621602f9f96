
# Copyright (c) 2025, PostgreSQL Global Development Group

# What CREATE TABLESPACE makes is durable before its WAL record is: restore, which comes
# before redo, may need it.

use strict;
use warnings FATAL => 'all';

use Cwd qw(realpath);
use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $library = "$dir/test_doublewrite_clock.so";
plan skip_all => 'no library that sees syncs' unless -e $library;

my $node = dw_new_node('main', conf => 'allow_in_place_tablespaces = on');
my $data = realpath($node->data_dir);
my $place = realpath(PostgreSQL::Test::Utils::tempdir());
my $syncs = "$data/test_doublewrite.syncs";

sub synced
{
	my %paths = map { $_ => 1 } split(/\n/, slurp_file($syncs));

	return \%paths;
}

sub start
{
	local $ENV{LD_PRELOAD} = $library;

	unlink($syncs);
	append_to_file($syncs, '');
	ok(dw_poll_start($node), 'server starts');
	return;
}

# WAL is synced when the record is durable, so it must come after them.
sub order
{
	my @paths = split(/\n/, slurp_file($syncs));
	my ($wal) = grep { $paths[$_] =~ /pg_wal/ } (0 .. $#paths);
	my ($links) = grep { $paths[$_] eq "$data/pg_tblspc" } (0 .. $#paths);

	return defined $links && defined $wal && $links < $wal;
}

$node->append_conf('postgresql.conf', 'wal_sync_method = fsync');
start();
dw_extensions($node);
$node->safe_psql('postgres', 'CHECKPOINT');
# no process but the session syncs WAL
my @stopped = dw_stop_processes($node, 'walwriter');
unlink($syncs);
append_to_file($syncs, '');
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$place'");
kill('CONT', @stopped);
ok(synced()->{$place}, 'the directory in a location is synced');
ok(synced()->{"$data/pg_tblspc"}, '... and the link to it');
ok(order(), '... before the WAL record');

unlink($syncs);
append_to_file($syncs, '');
$node->safe_psql('postgres', "CREATE TABLESPACE inside LOCATION ''");
ok((grep { m{^\Q$data\E/pg_tblspc/\d+$} } keys %{ synced() }),
	'so are those in place');
ok(synced()->{"$data/pg_tblspc"}, '... and their directory');

# Redo makes them again.
$node->stop('immediate');
start();
ok(synced()->{$place}, 'after redo, too, the directory is synced');

# If the link cannot be synced, the command fails, and no more; redo goes on.
my $failing = "$data/test_doublewrite.failing_sync";
my $second = realpath(PostgreSQL::Test::Utils::tempdir());
append_to_file($failing, "$data/pg_tblspc\n");
my (undef, undef, $stderr) =
  $node->psql('postgres', "CREATE TABLESPACE unsynced LOCATION '$second'");
like(
	$stderr,
	qr/ERROR:  could not fsync file "pg_tblspc"/,
	'a link that cannot be synced fails the command');
unlink($failing);
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_tablespace WHERE spcname = 'unsynced'}),
	0,
	'... and makes no tablespace');
my $third = realpath(PostgreSQL::Test::Utils::tempdir());
$node->safe_psql('postgres', "CREATE TABLESPACE again LOCATION '$third'");
$node->stop('immediate');
append_to_file($failing, "$data/pg_tblspc\n");
start();
unlink($failing);
$node->safe_psql('postgres',
	'CREATE TABLE a TABLESPACE again AS SELECT 1 AS i');
is($node->safe_psql('postgres', 'SELECT i FROM a'), 1, '... but not redo');

# A tablespace that cannot be opened any more after a crash, and that redo does not need, does
# not keep checkpoints from completing: what was there has been synced before redo.
$node->safe_psql('postgres',
	'CREATE TABLE t TABLESPACE space AS SELECT 1 AS i');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', 'CREATE TABLE elsewhere AS SELECT 1 AS i');
my $oid = $node->safe_psql('postgres',
	q{SELECT oid FROM pg_tablespace WHERE spcname = 'space'});
$node->stop('immediate');
ok(dw_poll_start($node), 'server starts');
unlink("$data/pg_tblspc/$oid") && symlink($oid, "$data/pg_tblspc/$oid")
  or die "could not link: $!";
is($node->psql('postgres', 'CHECKPOINT'),
	0, 'a checkpoint completes with a loop of links');
unlink("$data/pg_tblspc/$oid") && symlink($place, "$data/pg_tblspc/$oid")
  or die "could not link: $!";
is($node->safe_psql('postgres', 'SELECT i FROM t'),
	1, '... and what is in the tablespace is there');

# Nor is it a PANIC if what has been dropped there cannot be opened, as no sync has failed.
$node->safe_psql('postgres', 'DROP TABLE t');
unlink("$data/pg_tblspc/$oid") && symlink($oid, "$data/pg_tblspc/$oid")
  or die "could not link: $!";
my $offset = -s $node->logfile;
isnt($node->psql('postgres', 'CHECKPOINT'),
	0, 'a table has been dropped where it cannot be made durable');
like(
	slurp_file($node->logfile, $offset),
	qr/ERROR:  could not fsync file "pg_tblspc\/$oid.*Too many levels/,
	'... and the log says why');
is($node->safe_psql('postgres', 'SELECT i FROM elsewhere'),
	1, '... and the server lives on');
unlink("$data/pg_tblspc/$oid") && symlink($place, "$data/pg_tblspc/$oid")
  or die "could not link: $!";
is($node->psql('postgres', 'CHECKPOINT'),
	0, 'a checkpoint completes when it can be opened again');
$node->stop;

done_testing();
