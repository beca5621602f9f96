
# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo page by page, after clients have got in or before, in any order of the
# pages, leaves the same files as redo in the order of WAL.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $rounds =
  qr/rounds? of redo before clients get in\n.*Pages redone: \d+ by the startup process, \d+ by worker 1/;

# Records of all index access methods, of sequences and of generic WAL, and such
# as concern two pages, or a page and its visibility map.
sub work
{
	my ($node, $run) = @_;

	$node->safe_psql(
		'postgres', qq{
		INSERT INTO all_kinds SELECT ARRAY[g, g % 77, g % 1001],
				point(g % 211, g % 307), g, md5(g::text), repeat('x', g % 300)
			FROM generate_series(1, 3000) g;
		UPDATE all_kinds SET k = k + 1 WHERE k % 7 = $run;
		UPDATE all_kinds SET s = s || 'x' WHERE k % 11 = $run;
		SELECT count(*) FROM all_kinds WHERE k % 5 = 0 AND s > 'a';
		DELETE FROM all_kinds WHERE k % 13 = $run;
		SELECT id FROM all_kinds WHERE k % 17 = 0 FOR UPDATE;
		BEGIN; INSERT INTO all_kinds(k) VALUES (1);
		SAVEPOINT a; DELETE FROM all_kinds WHERE k = 2; ROLLBACK;
	});
	$node->safe_psql('postgres', 'VACUUM all_kinds');
	return;
}

# Pages are removed, with files or from their end, and made anew.
sub change_files
{
	my ($node, $run) = @_;

	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE cut$run AS SELECT g, repeat('y', 500) FROM generate_series(1, 500) g;
		CREATE TABLE gone$run AS SELECT * FROM cut$run;
		CREATE UNLOGGED TABLE unlogged$run (i int PRIMARY KEY);
		INSERT INTO unlogged$run VALUES (1);
		DELETE FROM cut$run WHERE g > 100;
	});
	$node->safe_psql('postgres', "VACUUM cut$run");
	$node->safe_psql(
		'postgres', qq{
		INSERT INTO cut$run SELECT g, repeat('z', 700) FROM generate_series(1, 300) g;
		DROP TABLE gone$run;
		TRUNCATE unlogged$run;
		CREATE INDEX ON cut$run (g);
		BEGIN; CREATE TABLE never$run AS SELECT * FROM cut$run; ROLLBACK;
		DELETE FROM cut$run WHERE ctid >= '(9,0)';
	});
	$node->safe_psql('postgres', $_)
	  foreach (
		"VACUUM (FREEZE) cut$run",
		"INSERT INTO cut$run SELECT g, repeat('a', 300) FROM generate_series(1, 200) g"
	  );
	$node->safe_psql('postgres', "CREATE DATABASE copy$run STRATEGY wal_log")
	  if $run == 1;
	return;
}

# What all that was remembered is applied before.
sub pass_barriers
{
	my ($node, $barriers) = @_;

	$node->safe_psql(
		'postgres', "
		SET allow_in_place_tablespaces = on;
		CREATE TABLESPACE barrier LOCATION '';
		DROP TABLESPACE barrier") foreach (1 .. $barriers / 2);
	return;
}

sub compare
{
	my ($primary, $backup, $expect_open, @only) = @_;
	my (undef, $serial) = xlp_recover($primary, $backup, "${backup}_serial",
		'instant_recovery = off');
	my %ways = (
		one => "recovery_workers = 1\nwal_pipeline_queue_size = 64kB\n"
		  . xlp_wait_conf(),
		three => 'recovery_workers = 3',
		alone => "recovery_workers = 3\nwal_pipeline = off",
		little => 'instant_recovery_memory = 64kB',
		before => "instant_recovery = off\nrecovery_workers = 3",
		rounds =>
		  "instant_recovery = off\nrecovery_workers = 3\ninstant_recovery_memory = 64kB"
	);

	foreach my $way (@only ? @only : sort keys %ways)
	{
		my ($node, $digest) = xlp_recover($primary, $backup, "${backup}_$way",
			"instant_recovery = on\n$ways{$way}");
		my $log = slurp_file($node->logfile);

		is(xlp_differences($serial, $digest), '',
			"$backup, $way: same files");
		if ($backup eq 'files' && $way eq 'three')
		{
			unlike(
				$log,
				qr/rounds? of redo/,
				'... and removed pages, without a round of redo');
			cmp_ok((xlp_pending($node))[0] // 0, '>', 1000,
				'... so that pages are pending after more drops than there may be barriers'
			);
		}
		like(
			$log,
			qr/rounds? of redo/,
			'... and applied what came before a barrier'
		) if $backup eq 'barriers';
		if ($ways{$way} =~ /instant_recovery = off/)
		{
			ok(!xlp_pending($node), '... did not open before redo');
			like($log, $rounds, '... and workers could help before that');
		}
		elsif ($expect_open)
		{
			ok(xlp_pending($node), '... opened before redo');
			ok(xlp_redone($node), '... and completed it');
		}
		like(
			$log,
			qr/WAL pipeline: .* read 0 blocks/,
			'... and read no page before'
		) if $backup eq 'plain' && $way eq 'one';
		like(
			$log,
			qr/recovery goes on without deferring redo of pages/,
			'... and gave up after many barriers') if $backup eq 'many';
		like(
			$log,
			qr/It looked ahead in .* in [1-9]\d* windows/,
			'... and looked ahead from there on'
		) if $backup eq 'many' && $way eq 'one';
		unlike($log, qr/PANIC|ERROR/, '... without complaints');
		$node->clean_node;
	}
	return;
}

my $primary = xlp_primary('primary');
xlp_page_images($primary, 0);
$primary->restart;
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE all_kinds (a int[], p point, k int, s text, f text, id serial PRIMARY KEY);
	CREATE INDEX ON all_kinds USING gin (a);
	CREATE INDEX ON all_kinds USING gist (p);
	CREATE INDEX ON all_kinds USING hash (k);
	CREATE INDEX ON all_kinds USING brin (k) WITH (pages_per_range = 2);
	CREATE INDEX ON all_kinds USING spgist (s);
	CREATE INDEX ON all_kinds (s, k);
});
work($primary, 1);
$primary->safe_psql('postgres', 'CHECKPOINT');

# No barrier, nor with images of pages in WAL.
work($primary, $_) foreach (2 .. 4);
xlp_crash($primary, 'plain');
compare($primary, 'plain', 1);

# Pages are removed by more transactions than there may be barriers.
xlp_page_images($primary, 1);
$primary->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', "CREATE TABLE short$_ (); DROP TABLE short$_")
  foreach (1 .. 33);
foreach my $run (1 .. 4)
{
	change_files($primary, $run);
	work($primary, 5) if $run == 2;
}
xlp_crash($primary, 'files');
compare($primary, 'files', 1, 'one', 'three', 'little', 'rounds');

# With barriers in between, and more than there may be.
$primary->start;
$primary->safe_psql('postgres', 'CHECKPOINT');
work($primary, 6);
pass_barriers($primary, 2);
change_files($primary, 19);
work($primary, 7);
xlp_crash($primary, 'barriers');
compare($primary, 'barriers', 1, 'one', 'three', 'before');

$primary->start;
pass_barriers($primary, 40);
work($primary, $_) foreach (8 .. 9);
xlp_crash($primary, 'many');
compare($primary, 'many', 0, 'one', 'alone', 'little');

done_testing();
