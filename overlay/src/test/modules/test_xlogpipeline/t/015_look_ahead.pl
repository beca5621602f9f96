
# Copyright (c) 2025, PostgreSQL Global Development Group

# The WAL pipeline looks far ahead in WAL for blocks that redo has to read, and
# has the kernel read them in the order of the files.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use List::Util qw(min);
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

# Catalogs and the like, which some transactions change as well
my $OTHERS = 60;

# One row a page, and room for a new version of it
sub create_table
{
	my ($node, $name, $pages) = @_;

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (id int, v int, filler text) WITH (fillfactor = 40);
		ALTER TABLE $name ALTER filler SET STORAGE PLAIN;
		INSERT INTO $name SELECT i, 0, repeat('x', 3000)
			FROM generate_series(0, $pages - 1) i;
	});
	is( $node->safe_psql(
			'postgres', "SELECT pg_relation_size('$name') / 8192"),
		$pages,
		"$name: one row a page");
	return;
}

# Change pages in random order.
sub change
{
	my ($node, $name, $where) = @_;

	$node->safe_psql(
		'postgres', qq{
		DO \$\$
		DECLARE
			place tid;
		BEGIN
			FOR place IN SELECT ctid FROM $name WHERE $where ORDER BY hashint4(id) LOOP
				UPDATE $name SET v = v + 1 WHERE ctid = place;
			END LOOP;
		END
		\$\$;
	});
	return;
}

# WAL that changes no blocks, in records that fit into the queue
sub fill
{
	my ($node, $kilobytes) = @_;

	$node->safe_psql(
		'postgres',
		"SELECT count(pg_logical_emit_message(false, 'test', repeat('m', 1000)))
			FROM generate_series(1, $kilobytes)");
	return;
}

# What the pipeline says it has done
sub looked_ahead
{
	my ($node) = @_;
	my $log = slurp_file($node->logfile);
	my %done;

	unlike(
		$log,
		qr/has failed|has ended/,
		$node->name . ': worker does not fail');
	@done{qw(kilobytes windows blocks gaps runs)} = $log =~
	  /looked ahead in (\d+) kB of WAL, in (\d+) windows, and announced (\d+) blocks, and (\d+) in between, in (\d+) runs/;
	$done{read} = $1 if $log =~ /read (\d+) blocks and wrote/;
	$done{found} = [ $log =~ /looked ahead in WAL .* found (\d+) blocks/g ];
	note join(', ',
		map { "$_ " . ($done{$_} // 'none') }
		  qw(kilobytes windows blocks gaps runs read));
	return \%done;
}

# Recover a copy of a crashed server.  Returns what the pipeline says it has done,
# and the copy, which has been stopped.
my $copies = 0;

sub recover
{
	my ($primary, $backup, %arg) = @_;
	my $node = PostgreSQL::Test::Cluster->new('copy' . ++$copies);

	$node->init_from_backup($primary, $backup);
	$node->append_conf('postgresql.conf',
		xlp_conf($arg{mode} // 'on') . ($arg{conf} // ''));
	unlink map { glob($node->data_dir . "/{$_,$_.*}") }
	  @{ $arg{unlink} // [] };
	$node->start;
	$node->stop;
	return (looked_ahead($node), $node);
}

my $primary = xlp_primary('primary');
xlp_page_images($primary, 0);
$primary->restart;

# --- What is changed in random order is read in the order of the file

# What is left of a table that is dropped is its first file.
my $GONE = min(600, blocks_per_file($primary));

create_table($primary, $_, 600) foreach qw(dense third fourth cut unseen);
create_table($primary, 'gone', $GONE);
my $gone =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('gone')");
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'dense', 'true');
$primary->stop('immediate');
$primary->backup_fs_cold('dense');
my ($done, $node) = recover($primary, 'dense');
$node->clean_node;
is($done->{windows}, 1, 'dense: one window');
cmp_ok($done->{blocks}, '>=', 600, 'dense: all blocks are announced');
cmp_ok($done->{blocks}, '<=', 600 + $OTHERS, '... once');
cmp_ok($done->{runs}, '<=', 5 + $OTHERS, '... in few runs');
cmp_ok($done->{read}, '>=', 600, '... and then read');

# --- A large window is announced at several places at a time, and all of it

$primary->start;
create_table($primary, 'large', 2500);
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'large', 'true');
$primary->stop('immediate');
$primary->backup_fs_cold('large');
($done, $node) = recover($primary, 'large');
$node->clean_node;
is($done->{windows}, 1, 'large: one window');
cmp_ok($done->{blocks}, '>=', 2500, 'large: all blocks are announced');
cmp_ok($done->{runs}, '<=', 22 + $OTHERS, '... in few runs');

# --- Short gaps are read, longer ones are not

$primary->start;
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'third', 'id % 3 = 0');
$primary->stop('immediate');
$primary->backup_fs_cold('third');
($done, $node) = recover($primary, 'third');
$node->clean_node;
cmp_ok(
	$done->{gaps}, '>=',
	199 * 2 - 2 * 8,
	'third: blocks in between are read');
cmp_ok($done->{runs}, '<=', 8 + $OTHERS, '... in few runs');

$primary->start;
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'fourth', 'id % 4 = 0');
$primary->stop('immediate');
$primary->backup_fs_cold('fourth');
($done, $node) = recover($primary, 'fourth');
$node->clean_node;
cmp_ok($done->{gaps}, '<=', $OTHERS,
	'fourth: blocks in between are not read');
cmp_ok($done->{runs}, '>=', 150, '... as there are too many');

# --- Relations that are dropped, truncated, or made anew in the window

$primary->start;
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'gone', 'true');
change($primary, 'cut', 'true');
$primary->safe_psql(
	'postgres',
	q{
	DELETE FROM cut WHERE id >= 100;
	VACUUM cut;
	DROP TABLE gone;
	CREATE TABLE brief AS SELECT * FROM unseen;
	TRUNCATE brief;
	INSERT INTO brief SELECT * FROM dense;
	DROP TABLE brief;
	CREATE DATABASE copied STRATEGY wal_log;
});
change($primary, 'unseen', 'true');
$primary->stop('immediate');
$primary->backup_fs_cold('various');
my (undef, $alone) = recover($primary, 'various', mode => 'off');
my $digest = xlp_digest($alone);
$alone->clean_node;
($done, $node) = recover($primary, 'various');

# of the truncated table those in files that are left
cmp_ok(
	$done->{blocks}, '>=',
	600 + $GONE + 100,
	'various: blocks are announced');
is(xlp_differences($digest, xlp_digest($node)),
	'', '... and files are the same');
$node->clean_node;

# What is left of a file that has been dropped goes some time after that.
my $blocks = $done->{blocks};
($done, $node) = recover($primary, 'various', unlink => [$gone]);
is(xlp_differences($digest, xlp_digest($node)),
	'', 'file is missing: files are the same');
is($done->{blocks}, $blocks - $GONE, '... and nothing of it was announced');
$node->clean_node;

# --- The blocks of a window fill at most an eighth of the kernel's cache.  The next
# --- one remembers what is rebuilt in the one before.

$primary->start;
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'dense', 'id < 100');
create_table($primary, 'built', 400);
change($primary, 'dense', 'id BETWEEN 100 AND 299');
change($primary, 'built', 'true');
$primary->stop('immediate');
$primary->backup_fs_cold('windows');
(undef, $alone) = recover($primary, 'windows', mode => 'off');
$digest = xlp_digest($alone);
$alone->clean_node;
($done, $node) =
  recover($primary, 'windows',
	conf => "shared_buffers = 4MB\neffective_cache_size = 20MB\n");
cmp_ok($done->{windows}, '>=', 2, 'windows: several with a small cache');
is(scalar(grep { $_ > 256 } @{ $done->{found} }),
	0, '... none with more than an eighth of it');
cmp_ok(
	$done->{blocks}, '<=',
	300 + $OTHERS,
	'... and nothing is announced that was rebuilt in the window before');
is(xlp_differences($digest, xlp_digest($node)),
	'', '... and files are the same');
$node->clean_node;

# --- Without prefetching, no process looks ahead

($done, $node) =
  recover($primary, 'windows', conf => "recovery_prefetch = off\n");
is($done->{windows}, 0, 'off: no process looks ahead');
$node->clean_node;

# --- Images

xlp_page_images($primary, 1);
$primary->start;
$primary->safe_psql('postgres', 'VACUUM; CHECKPOINT');
change($primary, 'dense', 'true');
change($primary, 'third', 'true');
change($primary, 'dense', 'true');
fill($primary, 8000);
$primary->stop('immediate');
$primary->backup_fs_cold('images');
($done, $node) = recover($primary, 'images');
cmp_ok($done->{blocks}, '<=', 5, 'images: nothing is read that they rebuild');
cmp_ok($done->{kilobytes}, '>=', 4096, '... and it is not seen at once');
cmp_ok($done->{kilobytes}, '<=', 6000, '... that it is not worth while');
$node->clean_node;

# --- A window that was not worth while counts beyond the end of its range: from an
# --- archive, each segment of 16 MB is one.  After the one that the backup has left
# --- unfinished 16 MB are passed over, then 4 MB looked at, and 32 MB passed over.

{
	my $archiver = xlp_primary('archiver', has_archiving => 1, extra => []);

	$archiver->backup('base');
	$archiver->safe_psql('postgres', 'SELECT pg_switch_wal()');
	fill($archiver, 48 * 1024);
	my $last = $archiver->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_current_wal_lsn())');
	$archiver->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$archiver->poll_query_until('postgres',
		"SELECT last_archived_wal >= '$last' FROM pg_stat_archiver")
	  or die;
	$archiver->stop;

	$node = PostgreSQL::Test::Cluster->new('from_archive');
	$node->init_from_backup(
		$archiver, 'base',
		has_restoring => 1,
		standby => 0);
	$node->append_conf('postgresql.conf',
		xlp_conf('on') . "hot_standby = off\n");
	$node->start;
	# A client of a server that takes none may die of the broken pipe.
	$node->wait_for_log(qr/database system is ready to accept connections/);
	$node->stop;
	$done = looked_ahead($node);
	cmp_ok(xlp_ranges($node), '>=', 5, 'archive: a range for each segment');
	is($done->{windows}, 2, '... of which two are looked at');
	$node->clean_node;
}

done_testing();
