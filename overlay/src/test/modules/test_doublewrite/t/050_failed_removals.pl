# Copyright (c) 2025, PostgreSQL Global Development Group

# Files that cannot be removed have stale pages: what was in buffers has been
# thrown away.  No checkpoint completes from which a crash would read them (R5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $point = 'doublewrite-checkpoint-scanned';
my $discarded = 'doublewrite-database-discarded';
my $refused =
  qr/could not complete the checkpoint because files could not be removed/;

sub database_directory
{
	my ($node) = @_;
	my $oid = $node->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = 'other'");

	return $node->data_dir . "/base/$oid";
}

# A database with a table whose only page has changed since the last checkpoint.
# More changes come later, until the page is full.
sub create_database
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'CREATE DATABASE other');
	$node->safe_psql('other', $_)
	  foreach ('CREATE TABLE d AS SELECT i FROM generate_series(1, 10) i',
		'CHECKPOINT');
	change($node);
	return;
}

sub change
{
	my ($node) = @_;

	$node->safe_psql('other',
		'INSERT INTO d SELECT i FROM generate_series(1, 20) i');
	return;
}

# A checkpoint has staged the page, and waits.  There are records of it after its redo
# pointer.
sub start_checkpoint
{
	my ($node) = @_;
	my $checkpoint = $node->background_psql('postgres', on_error_stop => 0);

	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	$checkpoint->query_until(qr/start/, "\\echo start\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', $point);
	return $checkpoint;
}

# ... until the end of the test, or chmod()
my @forbidden;

sub forbid_removals
{
	my ($directory) = @_;

	push(@forbidden, $directory);
	chmod(0500, $directory) || die "$directory: $!";
	return;
}

END
{
	chmod(0700, @forbidden);
}

sub crash_and_start
{
	my ($node, $directory, $what) = @_;

	$node->stop('immediate');
	chmod(0700, $directory);
	ok($node->start(fail_ok => 1), "server starts after a crash $what")
	  || return 0;
	return 1;
}

# --- A directory that cannot be removed, and an error on the way

foreach my $how ('permission', 'error')
{
	my $node = dw_quiet_node("drop_$how");

	create_database($node);
	my $directory = database_directory($node);
	my $checkpoint = start_checkpoint($node);

	change($node);
	my $offset = -s $node->logfile;
	my $drop = $node->background_psql('postgres', on_error_stop => 0);
	if ($how eq 'permission')
	{
		forbid_removals($directory);
		$drop->query_until(qr/start/, "\\echo start\nDROP DATABASE other;\n");
		$node->wait_for_log(qr/some useless files may be left behind/,
			$offset);
	}
	else
	{
		$node->safe_psql('postgres',
			"SELECT injection_points_attach('$discarded', 'error')");
		$drop->query('DROP DATABASE other');
		like(
			$drop->{stderr},
			qr/error triggered for injection point/,
			'a drop ends half-way');
	}

	# that of DROP DATABASE is to stop there, too
	$node->safe_psql('postgres', "SELECT injection_points_wakeup('$point')");
	$checkpoint->quit;
	like(slurp_file($node->logfile, $offset),
		$refused, "$how: the checkpoint under way does not complete");
	$node->wait_for_event('checkpointer', $point) if $how eq 'permission';
	if (crash_and_start($node, $directory, "when a drop has failed ($how)"))
	{
		$node->safe_psql('postgres', 'DROP DATABASE other');
		ok(!-e $directory, 'the database can be dropped');
		$node->stop;
	}
	$drop->{run}->finish;
}

# --- The next checkpoint completes, and is one to recover from

{
	my $node = dw_quiet_node('next');

	create_database($node);
	my $directory = database_directory($node);

	forbid_removals($directory);
	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', 'DROP DATABASE other');
	is($ret, 0, 'a database is dropped, although files of it are left');
	my $told = () =
	  $stderr =~ /WARNING:  some useless files may be left behind/g;
	is($told, 1,
		'... which the client is told when no checkpoint waits any more');
	ok(-e $directory, '... and are there');
	crash_and_start($node, $directory, 'after the next checkpoint')
	  && $node->stop;
}

{
	my $node = dw_quiet_node('again');

	create_database($node);
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$discarded', 'error')");
	isnt($node->psql('postgres', 'DROP DATABASE other'),
		0, 'a drop ends half-way');
	$node->safe_psql('postgres',
		"SELECT injection_points_detach('$discarded')");
	is($node->psql('postgres', 'DROP DATABASE other'),
		0, '... and the next one does not');
	$node->stop;
}

# --- ... and syncs what is still there before its copies leave the log, as until pg_control
# --- has changed a crash recovers from before the removal (R3)

{
	my $node = dw_quiet_node('synced', conf => q{fsync = on});
	my $query = 'SELECT sync_cycle_files FROM dw_stats()';

	create_database($node);
	$node->safe_psql('postgres', 'SELECT dw_evict_all(); SELECT dw_drain()');
	my $directory = database_directory($node);
	my $before = $node->safe_psql('postgres', $query);

	forbid_removals($directory);
	is($node->psql('postgres', 'DROP DATABASE other'),
		0, 'a database is dropped');
	cmp_ok($node->safe_psql('postgres', $query),
		'>', $before, '... and its checkpoint syncs the files that are left');
	chmod(0700, $directory);
	$node->stop;
}

# --- Of a table of several files, the first ones are cut before one cannot be removed

{
	my $node = dw_quiet_node('segments');

	$node->safe_psql('postgres', $_)
	  foreach (
		q{CREATE TABLE d AS SELECT i, repeat('x', 1000) f FROM generate_series(1, 2000) i},
		'CHECKPOINT',
		'DELETE FROM d WHERE i % 3 = 0');
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('d')");
	my ($directory) = $path =~ m{(.*)/};
	ok(-e "$path.2", 'a table has three files');
	my $checkpoint = start_checkpoint($node);

	$node->safe_psql('postgres', 'DELETE FROM d WHERE i % 3 = 1');
	my $offset = -s $node->logfile;
	forbid_removals($directory);
	$node->safe_psql('postgres', 'DROP TABLE d');
	ok(-s "$path.2", '... of which one stays as it was');
	dw_wake($node, $point);
	$checkpoint->quit;
	like(slurp_file($node->logfile, $offset),
		$refused, '... so the checkpoint under way does not complete');
	crash_and_start($node, $directory, 'when files of a table are left')
	  && $node->stop;
}

# --- A client is told when no checkpoint waits for its backend any more

foreach my $what ('table', 'database')
{
	my $node = dw_quiet_node("told_$what");
	my $removed =
	  $what eq 'table'
	  ? 'doublewrite-unlinked'
	  : 'doublewrite-database-removed';
	my $database = $what eq 'table' ? 'd' : 'other';
	my $told = qr/WARNING:  could not remove (?:file|directory)/;

	create_database($node) if $what eq 'database';
	$node->safe_psql('postgres', $_)
	  foreach (
		q{CREATE TABLE d AS SELECT i, repeat('x', 1000) f FROM generate_series(1, 2000) i},
		'VACUUM d',
		"SELECT injection_points_attach('$removed', 'wait')");
	forbid_removals(
		$what eq 'database'
		? database_directory($node)
		: ( $node->data_dir . '/'
			  . $node->safe_psql(
				'postgres', "SELECT pg_relation_filepath('d')")
		) =~ s{/[^/]*$}{}r);

	my $offset = -s $node->logfile;
	my $drop = $node->background_psql('postgres', on_error_stop => 0);
	$drop->query_until(qr/start/, "\\echo start\nDROP $what $database;\n");
	$node->wait_for_event('client backend', $removed);
	like(slurp_file($node->logfile, $offset),
		$told, "$what: files cannot be removed");
	$drop->{run}->pump_nb;
	is($drop->{stderr}, '',
		'... which the client is not told while a checkpoint may wait');
	dw_wake($node, $removed);
	$drop->query('SELECT 1');
	like($drop->{stderr}, $told, '... but then');
	$drop->quit;
	chmod(0700, @forbidden);
	$node->stop;
}

# --- The same on a standby

{
	my $primary = dw_quiet_node('primary', init => { allows_streaming => 1 });
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$primary->safe_psql('postgres', 'CREATE DATABASE other');
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('other', $_)
	  foreach ('CREATE TABLE d AS SELECT i FROM generate_series(1, 10) i',
		'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	change($primary);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	change($primary);
	$primary->wait_for_replay_catchup($standby);

	my $directory = database_directory($standby);
	my $checkpoint = start_checkpoint($standby);
	my $offset = -s $standby->logfile;
	my $redo = "Latest checkpoint's REDO location";
	my $before = dw_control($standby, $redo);

	# that of DROP DATABASE is to give the standby nothing to begin with
	$primary->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	forbid_removals($directory);
	my $drop = $primary->background_psql('postgres');
	$drop->query_until(qr/start/, "\\echo start\nDROP DATABASE other;\n");
	$standby->wait_for_log(qr/some useless files may be left behind/,
		$offset);
	dw_wake($standby, $point);
	$checkpoint->quit;
	like(slurp_file($standby->logfile, $offset),
		$refused, 'the restartpoint under way does not complete');
	is($standby->psql('postgres', 'CHECKPOINT'),
		0, '... and is not tried again');
	is(dw_control($standby, $redo), $before, '... as it would be the same');
	$standby->stop;
	is( dw_control($standby, 'Database cluster state'),
		'shut down in recovery',
		'... not even at a stop');

	chmod(0700, $directory);
	if (ok($standby->start(fail_ok => 1), 'standby starts'))
	{
		ok(!-e $directory, '... and has removed the files');
		$standby->stop;
	}
	dw_wake($primary, $point);
	$drop->quit;
	$primary->stop;
}

# --- What the log has of a page that may be torn stays until then (R3)

{
	my $node = dw_quiet_node('torn');
	my $drained = 'doublewrite-checkpoint-drained';

	create_database($node);
	my $directory = database_directory($node);

	$node->safe_psql('other', $_)
	  foreach (
		'CREATE EXTENSION test_doublewrite CASCADE', q{
		SELECT dw_evict('d');
		SELECT points_fail_at('doublewrite-home-write', 'EIO')});
	$node->psql('other', 'SELECT dw_drain()');
	my $copied =
	  $node->safe_psql('postgres', 'SELECT next_batch FROM dw_state()');

	forbid_removals($directory);
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$drained', 'wait')");
	my $drop = $node->background_psql('postgres', on_error_stop => 0);
	$drop->query_until(qr/start/, "\\echo start\nDROP DATABASE other;\n");
	$node->wait_for_event('checkpointer', $drained);
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	cmp_ok(
		$node->safe_psql('postgres', 'SELECT low_water FROM dw_state()'),
		'<',
		$copied,
		'a sync cycle keeps the copy of a page that may be torn');
	dw_wake($node, $drained);
	$drop->quit;
	cmp_ok($node->safe_psql('postgres', 'SELECT low_water FROM dw_state()'),
		'>=', $copied, '... and a checkpoint frees it');
	$node->stop;
}

# --- Removals that find no room for their notes, and no descriptor

{
	my $node = dw_quiet_node('descriptors', conf => 'fsync = on');
	my $offset = -s $node->logfile;

	$node->safe_psql('postgres', $_)
	  foreach (
		'CREATE TABLE d AS SELECT i FROM generate_series(1, 10) i',
		'SELECT dw_fill_removed_directories()',
		q{SELECT points_fail_at('doublewrite-directory-sync', 'EMFILE')});
	my ($ret, $stdout, $stderr) = $node->psql('postgres', 'DROP TABLE d');
	is($ret, 0, 'a table is dropped, although that cannot be made durable');
	like(
		$stderr,
		qr/WARNING:  could not fsync file/,
		'... which is a warning');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->stop;
}

# --- A tablespace that is not mounted is not one whose files have been removed

{
	my $node = dw_quiet_node('unmounted', conf => 'fsync = on');
	my $directory = PostgreSQL::Test::Utils::tempdir_short() . '/space';

	mkdir($directory) || die "$directory: $!";
	$node->safe_psql('postgres', $_)
	  foreach (
		"CREATE TABLESPACE space LOCATION '$directory'",
		'CREATE TABLE d TABLESPACE space AS SELECT i FROM generate_series(1, 10) i',
		'CHECKPOINT',
		q{UPDATE d SET i = i + 1; SELECT dw_evict('d'); SELECT dw_drain()});
	my $before =
	  $node->safe_psql('postgres', 'SELECT low_water FROM dw_state()');

	rename($directory, "$directory.away") && mkdir($directory)
	  || die "$directory: $!";
	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', 'SELECT dw_sync_cycle()');
	like(
		$stderr,
		qr/could not fsync files of tablespace directory .* because they were not found/,
		'a sync cycle fails if a tablespace is not mounted');
	is($node->safe_psql('postgres', 'SELECT low_water FROM dw_state()'),
		$before, '... and frees nothing');
	rmdir($directory) && rename("$directory.away", $directory)
	  || die "$directory: $!";
	$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
	cmp_ok($node->safe_psql('postgres', 'SELECT low_water FROM dw_state()'),
		'>', $before, '... and once it is, the cycle does');
	$node->stop;
}

done_testing();
