
# Copyright (c) 2025, PostgreSQL Global Development Group

# After a crash clients get in when redo is done, and the checkpoint follows.
# The server crashes again before that has completed, up to three times, with
# torn pages: recovery begins at the old redo pointer each time, the log stays
# live from there, and whatever else a checkpoint would have settled comes
# again (R2, R3, R5, R10).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';

# The buffer scan of the checkpoint is over; nothing has been synced.
my $POINT = 'doublewrite-checkpoint-scanned';

sub redo_of
{
	return dw_control($_[0], "Latest checkpoint's REDO location");
}

sub set
{
	my ($node, $setting, $value) = @_;

	$node->append_conf('postgresql.conf', "$setting = '$value'");
	return;
}

# From the next start on, a checkpoint stops at that point for good, or not.
sub hold_checkpoints
{
	my ($node, $point) = @_;

	set($node, 'test_points.hold_at', $point // $POINT);
	return;
}

sub let_checkpoints
{
	my ($node) = @_;

	set($node, 'test_points.hold_at', '');
	return;
}

# The server has been started, and its checkpoint has got to the point.
sub is_in_window
{
	my ($node, $offset, $redo, $test_name) = @_;

	$node->wait_for_log(qr/held at injection point/, $offset);
	unlike(
		slurp_file($node->logfile, $offset),
		qr/end-of-recovery|checkpoint complete/,
		"$test_name: clients get in before the checkpoint");
	is(redo_of($node), $redo,
		"$test_name: pg_control names the old redo pointer");
	is( dw_control($node, 'Database cluster state'),
		'in production',
		"$test_name: state");
	is(dw_control($node, 'Minimum recovery ending location'),
		'0/0', "$test_name: recovery has to go to the end of WAL");
	return;
}

# What follows each end of recovery in WAL, other than what says how WAL is
# written from there on.
sub after_ends_of_recovery
{
	my ($node, $redo) = @_;
	# what follows the last one may not have been written yet: that is left to
	# the WAL writer
	$node->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, 'flush', '')});
	my @segments = split(
		/\n/,
		$node->safe_psql(
			'postgres',
			"SELECT pg_walfile_name(l) FROM unnest(ARRAY['$redo', pg_current_wal_lsn()]) l"
		));
	my ($stdout) = run_command(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--start' => $redo,
			@segments
		]);
	my @records = grep { !/desc: (?:FPW_CHANGE|PARAMETER_CHANGE)/ }
	  split(/\n/, $stdout);

	return map { $records[ $_ + 1 ] // '' }
	  grep { $records[$_] =~ /desc: END_OF_RECOVERY/ } (0 .. $#records);
}

# Pages that have been written home since the snapshot, none of which has been
# synced.  Free space maps are not redone from WAL, and only safe in
# double_writes.
sub tear
{
	my ($node, $old, $mode) = @_;
	my $torn;

	return undef if $mode eq 'off';
	$torn = dw_tear(
		$node, $old,
		unlogged_too => 1,
		$mode eq 'full_pages' ? (only => qr/^(?!.*_fsm)/) : ());
	cmp_ok($torn->{logged} + $torn->{unlogged}, '>', 0, 'pages were torn');
	return $torn;
}

# The files as restore is going to leave them, durably.  What redo writes home
# after that may be torn again.
sub after_restore
{
	my ($node) = @_;
	my $files = dw_snapshot($node);

	foreach my $copy (values %{ dw_live_copies(dw_read_log($node)) })
	{
		my ($path, $offset) = dw_home_path($node, $copy);

		substr($files->{$path}, $offset, BLCKSZ) = $copy->{page}
		  if defined $files->{$path}
		  && length($files->{$path}) >= $offset + BLCKSZ;
	}
	return $files;
}

sub crash_under_load
{
	my ($node) = @_;

	dw_workload_start($node);
	dw_wait_for_pages($node, 300);
	$node->stop('immediate');
	dw_workload_finish($node);
	return;
}

sub wait_for_checkpoint
{
	my ($node, $offset) = @_;

	$node->wait_for_log(qr/checkpoint complete/, $offset);
	return;
}

# ---------------------------------------------------------------------
# Three crashes in the window, in each mode
# ---------------------------------------------------------------------

sub test_three_deep
{
	my ($mode, $point) = @_;
	my $name = "$mode, held at " . ($point // $POINT);
	my $node =
	  dw_new_node('deep_' . ($point // 'scanned') . "_$mode", mode => $mode);
	my $offset;

	note $name;
	# more pages than buffers, so that redo writes some
	$node->start;
	dw_workload_setup($node, accounts => 8000);
	my $redo = redo_of($node);
	my $old = dw_snapshot($node);

	hold_checkpoints($node, $point);
	for my $deep (1 .. 3)
	{
		crash_under_load($node);
		my $torn = tear($node, $old, $mode);
		$old = after_restore($node);
		$offset = -s $node->logfile;
		dw_start_after_crash($node, $torn);
		is_in_window($node, $offset, $redo, "$name, $deep deep");
		is( -f $node->data_dir . "/$MARKER" ? 1 : 0,
			$mode eq 'double_writes'        ? 1 : 0,
			"$name, $deep deep: marker while the log is in use");

		# or crash after crash, no checkpoint might ever complete
		like(
			slurp_file($node->logfile, $offset),
			$deep == 1
			? qr/checkpoint starting: force$/m
			: qr/checkpoint starting: immediate force$/m,
			"$name, $deep deep: the checkpoint is "
			  . ($deep == 1 ? 'spread' : 'immediate'));

		# the files up to here have been synced for a checkpoint that goes on
		$old = dw_snapshot($node) if defined $point;
	}

	my @after = after_ends_of_recovery($node, $redo);
	is(scalar(@after), 3, "$name: each end of recovery has its record");
	is(scalar(grep { /desc: RUNNING_XACTS/ } @after),
		3, "$name: standbys are told what is running")
	  or diag(join("\n", @after));

	crash_under_load($node);
	my $torn = tear($node, $old, $mode);
	let_checkpoints($node);
	$offset = -s $node->logfile;
	dw_start_after_crash($node, $torn);
	wait_for_checkpoint($node, $offset);
	isnt(redo_of($node), $redo, "$name: the checkpoint has come");
	like(
		slurp_file($node->logfile, $offset),
		qr/clients have to wait for a checkpoint\n.*crashed 4 times.*checkpoint starting: end-of-recovery/s,
		"$name: ... before clients, as it might never be completed");
	dw_check($node);
	return;
}

test_three_deep($_) foreach ('double_writes', 'full_pages', 'off');

# The checkpoint is further on: both redo pointers count; then the log has been
# freed up to it, but recovery begins at the old one still.
test_three_deep('double_writes', 'doublewrite-checkpoint-drained');
test_three_deep('double_writes', 'doublewrite-checkpoint-marked');

# ---------------------------------------------------------------------
# A crash before the end of recovery is complete: WAL has the record, but not the
# snapshot that should follow it, and no client has got in
# ---------------------------------------------------------------------

sub test_cut_short
{
	my ($mode) = @_;
	my $point = 'promotion-after-wal-segment-cleanup';
	my $name = "$mode, end of recovery is cut short";
	my $node = dw_new_node("cut_short_$mode", mode => $mode);

	note $name;
	$node->start;
	dw_workload_setup($node, accounts => 8000);
	my $redo = redo_of($node);
	my $old = dw_snapshot($node);

	crash_under_load($node);
	tear($node, $old, $mode);
	set($node, 'test_points.crash_at', $point);
	$old = after_restore($node);
	my $offset = -s $node->logfile;
	ok(!dw_poll_start($node), "$name: server does not start");
	dw_wait_for_crash($node, $offset);
	tear($node, $old, $mode);
	is( dw_control($node, 'Database cluster state'),
		'in crash recovery',
		"$name: state");
	is(redo_of($node), $redo, "$name: pg_control names the old redo pointer");

	# WAL might not be durable that this recovery has relied on
	set($node, 'test_points.crash_at', '');
	$offset = -s $node->logfile;
	dw_start_after_crash($node);
	like(
		slurp_file($node->logfile, $offset),
		qr/checkpoint starting: end-of-recovery/,
		"$name: clients wait for the checkpoint of the next one");
	isnt(redo_of($node), $redo, "$name: ... which is complete");
	is( join(' ',
			map { /desc: (\w+)/ ? $1 : 'none' }
			  after_ends_of_recovery($node, $redo)),
		'CHECKPOINT_SHUTDOWN',
		"$name: standbys are told what is running, at last");
	dw_check($node);
	return;
}

test_cut_short($_) foreach ('double_writes', 'full_pages');

# ---------------------------------------------------------------------
# Another mode at each start in the window
# ---------------------------------------------------------------------

sub test_modes_change
{
	my ($mode, @next) = @_;
	my $node = dw_new_node("from_$mode", mode => $mode);

	$node->start;
	dw_workload_setup($node);
	my $redo = redo_of($node);
	my $old = dw_snapshot($node);

	hold_checkpoints($node);
	foreach my $next (@next, undef)
	{
		crash_under_load($node);
		my $torn = tear($node, $old, $mode);
		$old = after_restore($node);
		if (defined $next)
		{
			note "$mode, then $next";
			set($node, 'io_torn_pages_protection', $next);
			$mode = $next;
		}
		else
		{
			let_checkpoints($node);
		}
		my $offset = -s $node->logfile;
		dw_start_after_crash($node, $torn);
		last if !defined $next;
		is_in_window($node, $offset, $redo, "now in $mode");
	}
	dw_check($node);
	return;
}

test_modes_change('double_writes', 'full_pages', 'double_writes', 'off');
test_modes_change('off', 'full_pages', 'double_writes');
test_modes_change('full_pages', 'double_writes', 'full_pages');

# ---------------------------------------------------------------------
# The number of a file that redo has dropped is not free before the checkpoint
# ---------------------------------------------------------------------

# Make a table with a number that is no OID, not even of the relation that VACUUM
# FULL makes, and an OID counter that has wrapped around and comes to it.
sub make_number_come_again
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		CREATE TABLE gone (id int, v int, pad char(100) DEFAULT 'x');
		INSERT INTO gone SELECT i FROM generate_series(1, 2000) i});
	$node->safe_psql('postgres', $_)
	  foreach ('VACUUM FULL gone', 'VACUUM pg_class');
	my $number =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filenode('gone')});
	$node->stop;
	command_ok([ 'pg_resetwal', '-o', $number, $node->data_dir ],
		'OID counter wraps around');
	$node->start;
	return $number;
}

sub make_new_table
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		BEGIN;
		CREATE TABLE new (id int, pad char(100) DEFAULT 'y');
		INSERT INTO new SELECT i FROM generate_series(1, 2000) i;
		COMMIT});
	return $node->safe_psql('postgres',
		q{SELECT pg_relation_filenode('new')});
}

# After crash recovery an empty file stays until then, as at any other time.
sub test_number_kept
{
	my ($mode) = @_;
	my $node = dw_quiet_node("again_$mode", mode => $mode);

	note "number comes again in $mode";
	my $number = make_number_come_again($node);
	my $file = $node->data_dir . '/' . dw_path_of($node, 'gone');

	$node->safe_psql('postgres', 'UPDATE gone SET v = 1; DROP TABLE gone');
	my $redo = redo_of($node);
	$node->stop('immediate');
	hold_checkpoints($node);
	my $offset = -s $node->logfile;
	$node->start;
	is_in_window($node, $offset, $redo, "number comes again in $mode");
	is(-s $file, 0, 'an empty file is left of the table that was dropped');
	isnt(make_new_table($node), $number, 'the number is not used again');

	$node->safe_psql('postgres',
		q{SELECT dw_evict('new'); SELECT dw_drain()});
	$node->stop('immediate');
	let_checkpoints($node);
	dw_start_after_crash($node);
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), sum(id), max(pad) FROM new'),
		'2000|2001000|y' . ' ' x 99,
		'nothing is lost');
	$node->safe_psql('postgres', 'CHECKPOINT');
	ok(!-e $file, 'the next checkpoint removes the file');
	dw_check_stopped($node);
	return;
}

test_number_kept($_) foreach (qw(double_writes full_pages));

# After a promotion it does not, as in stock.  Records for the old file come
# before those for the new one, so pages of that are not exempt.
{
	my $primary =
	  dw_quiet_node('promoted_from', init => { allows_streaming => 1 });
	my $number = make_number_come_again($primary);
	my $standby = PostgreSQL::Test::Cluster->new('promoted');
	my $exempt = sub {
		my ($rel) = @_;
		my $count = 'SELECT exempt FROM dw_stats()';
		my $before = $standby->safe_psql('postgres', $count);

		$standby->safe_psql('postgres',
			"SELECT dw_evict('$rel'); SELECT dw_drain()");
		return $standby->safe_psql('postgres', $count) - $before;
	};

	note 'number used again after a promotion';
	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	hold_checkpoints($standby);
	$standby->start;
	$primary->safe_psql('postgres', 'UPDATE gone SET v = 1; DROP TABLE gone');
	$primary->wait_for_replay_catchup($standby);
	$standby->promote;
	is(make_new_table($standby), $number, 'the number is used again');
	$standby->safe_psql(
		'postgres', q{
		CREATE TABLE other (id int, pad char(100) DEFAULT 'z');
		INSERT INTO other SELECT i FROM generate_series(1, 2000) i});
	is($exempt->('new'), 0,
		'records for its old blocks come first: nothing is exempt');
	cmp_ok($exempt->('other'), '>', 10, 'a new number is');
	$standby->stop('immediate');
	let_checkpoints($standby);
	dw_start_after_crash($standby);
	is( $standby->safe_psql(
			'postgres', q{
			SELECT count(*), sum(id), max(pad) FROM new;
			SELECT count(*), sum(id), max(pad) FROM other}),
		join("\n", map { '2000|2001000|' . $_ . ' ' x 99 } ('y', 'z')),
		'nothing is lost');
	dw_check_stopped($standby);
	$primary->stop;
}

# ---------------------------------------------------------------------
# What else a checkpoint would have settled
# ---------------------------------------------------------------------

{
	my $node = dw_new_node(
		'corners',
		conf => q{
wal_level = logical
max_prepared_transactions = 10
track_commit_timestamp = on
});
	my $state = sub {
		return $node->safe_psql(
			'postgres', q{
			SELECT 'rows', count(*), sum(id) FROM t WHERE v >= 0;
			SELECT 'unlogged', count(*) FROM u;
			SELECT 'prepared', string_agg(gid, ' ' ORDER BY gid) FROM pg_prepared_xacts;
			SELECT 'without time', count(*) FROM t WHERE pg_xact_commit_timestamp(xmin) IS NULL}
		);
	};
	my $expect = sub {
		my ($rows, $sum, $prepared, $test_name) = @_;

		is( $state->(),
			"rows|$rows|$sum\nunlogged|0\nprepared|$prepared\nwithout time|0",
			$test_name);
	};
	my $sequence = 0;
	my $next_is_new = sub {
		my $value = $node->safe_psql('postgres', q{SELECT nextval('s')});

		cmp_ok($value, '>', $sequence, 'no number of a sequence comes twice');
		$sequence = $value;
	};
	my $oid = 0;
	my $oid_is_new = sub {
		my $value = $node->safe_psql('postgres', q{SELECT lo_create(0)});

		cmp_ok($value, '>', $oid, 'no OID comes twice');
		$oid = $value;
	};
	my $crash = sub {
		my ($redo, $test_name) = @_;

		$node->stop('immediate');
		my $offset = -s $node->logfile;
		dw_start_after_crash($node);
		is_in_window($node, $offset, $redo, $test_name) if defined $redo;
	};

	$node->start;
	dw_extensions($node);
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v int);
		INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
		CREATE UNLOGGED TABLE u (id int PRIMARY KEY);
		INSERT INTO u SELECT i FROM generate_series(1, 10) i;
		CREATE SEQUENCE s});
	$node->safe_psql('postgres',
		q{SELECT pg_create_logical_replication_slot('slot', 'test_decoding')}
	);
	foreach my $gid ('disk', 'done')
	{
		$node->safe_psql('postgres',
				"BEGIN; INSERT INTO t VALUES ("
			  . ($gid eq 'disk' ? 100 : 200)
			  . ", 0); PREPARE TRANSACTION '$gid'");
	}
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $redo = redo_of($node);
	hold_checkpoints($node);

	# Prepared before and after the redo pointer, in a state file or not; a
	# row that two have locked; and one that is still running.
	$node->safe_psql(
		'postgres', q{
		COMMIT PREPARED 'done';
		BEGIN; INSERT INTO t VALUES (300, 0); SELECT FROM t WHERE id = 1 FOR KEY SHARE;
		PREPARE TRANSACTION 'wal';
		BEGIN; SELECT FROM t WHERE id = 1 FOR KEY SHARE; COMMIT});
	$next_is_new->();
	$oid_is_new->();
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('BEGIN; INSERT INTO t VALUES (400, 0)');

	$crash->($redo, 'corners');
	$session->quit;
	$expect->(11, 255, 'disk wal', 'after the first crash');
	$next_is_new->();
	$oid_is_new->();
	$node->safe_psql(
		'postgres', q{
		INSERT INTO u VALUES (1);
		CREATE UNLOGGED TABLE u2 AS SELECT 1 AS id;
		COMMIT PREPARED 'wal';
		BEGIN; INSERT INTO t VALUES (500, 0); SELECT FROM t WHERE id = 2 FOR KEY SHARE;
		PREPARE TRANSACTION 'window';
		BEGIN; SELECT FROM t WHERE id = 2 FOR KEY SHARE; COMMIT;
		INSERT INTO t VALUES (400, 0)});

	$crash->($redo, 'corners again');
	$expect->(13, 955, 'disk window', 'after a crash in the window');
	$next_is_new->();
	$oid_is_new->();
	is($node->safe_psql('postgres', 'SELECT count(*) FROM u2'),
		0, 'unlogged table of the window is empty');
	$node->safe_psql(
		'postgres', q{
		COMMIT PREPARED 'disk';
		COMMIT PREPARED 'window'});

	$crash->($redo, 'corners once more');
	$expect->(15, 1555, '', 'after a third');
	$next_is_new->();
	$oid_is_new->();
	is( $node->safe_psql(
			'postgres',
			q{SELECT string_agg(id, ' ' ORDER BY id) FROM (
				SELECT substring(data FROM 'id.integer.:(\d+)') AS id
				FROM pg_logical_slot_get_changes('slot', NULL, NULL)
				WHERE data LIKE 'table public.t: INSERT%')}),
		'100 200 300 400 500',
		'all is decoded, once');

	let_checkpoints($node);
	my $offset = -s $node->logfile;
	$crash->();
	wait_for_checkpoint($node, $offset);
	$expect->(15, 1555, '', 'at last');
	is( join(
			' ', grep { !/^\./ } slurp_dir($node->data_dir . '/pg_twophase')),
		'',
		'no state file is left');
	is( $node->safe_psql(
			'postgres',
			q{SELECT data FROM pg_logical_slot_get_changes('slot', NULL, NULL)
			  WHERE data LIKE 'table public.t: INSERT%'}),
		'',
		'nothing is decoded again');
	dw_check_amcheck($node);
	dw_check_stopped($node);
}

# ---------------------------------------------------------------------
# WAL that ended in the middle of a record
# ---------------------------------------------------------------------

{
	my $node =
	  dw_new_node('contrecord', init => { extra => ['--wal-segsize=1'] });

	$node->start;
	dw_extensions($node);
	$node->safe_psql('postgres',
		'CREATE TABLE t (id int PRIMARY KEY); CHECKPOINT');
	my $redo = redo_of($node);

	hold_checkpoints($node);
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (1)');
	$node->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(false, '', repeat('x', 1500000), true)}
	);
	my $last = $node->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_current_wal_flush_lsn())');
	$node->stop('immediate');
	unlink($node->data_dir . "/pg_wal/$last")
	  or die "could not unlink $last: $!";

	my $offset = -s $node->logfile;
	dw_start_after_crash($node);
	is_in_window($node, $offset, $redo, 'contrecord');
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (2)');
	$node->stop('immediate');

	$offset = -s $node->logfile;
	dw_start_after_crash($node);
	is_in_window($node, $offset, $redo, 'contrecord again');
	like(
		slurp_file($node->logfile, $offset),
		qr/successfully skipped missing contrecord/,
		'the gap is passed');
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (3)');
	$node->stop('immediate');

	let_checkpoints($node);
	dw_start_after_crash($node);
	is($node->safe_psql('postgres', 'SELECT sum(id) FROM t'),
		6, 'nothing is lost');
	dw_check_stopped($node);
}

# ---------------------------------------------------------------------
# Where the checkpoint has to come first
# ---------------------------------------------------------------------

{
	my $node = dw_new_node('first');
	my $n = 0;
	my $start_with = sub {
		my ($first, %settings) = @_;

		$node->safe_psql('postgres', 'INSERT INTO t VALUES (' . ++$n . ')');
		$node->stop('immediate');
		set($node, $_, $settings{$_}) foreach keys %settings;
		my $offset = -s $node->logfile;
		$node->start;
		is( slurp_file($node->logfile, $offset) =~
			  /checkpoint starting: end-of-recovery/ ? 1 : 0,
			$first,
			join(', ', map { "$_ = $settings{$_}" } sort keys %settings)
			  . ($first ? ': checkpoint first' : ': clients first'));
		wait_for_checkpoint($node, $offset);
		is($node->safe_psql('postgres', 'SELECT max(id) FROM t'),
			$n, 'nothing is lost');
	};

	$node->start;
	dw_extensions($node);
	$node->safe_psql('postgres', 'CREATE TABLE t (id int); CHECKPOINT');
	$start_with->(1, wal_level => 'logical');
	$start_with->(0, wal_level => 'logical');
	$start_with->(1, wal_level => 'minimal', max_wal_senders => 0);
	$start_with->(1, wal_level => 'minimal');
	$start_with->(1, wal_level => 'replica');
	$start_with->(1, track_commit_timestamp => 'on');
	$start_with->(1, wal_log_hints => 'on');
	$start_with->(0, wal_log_hints => 'on');
	$start_with->(0, max_connections => 30);
	$start_with->(1, track_commit_timestamp => 'off');

	# What the control file says counts, though a crash had come before: in
	# the window with one setting, in the next recovery with another.
	hold_checkpoints($node);
	$node->stop('immediate');
	$node->start;
	let_checkpoints($node);
	$start_with->(1, wal_level => 'logical');

	# A standalone backend makes the checkpoint that was due.
	hold_checkpoints($node);
	$node->stop('immediate');
	$node->start;
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (1000)');
	$node->stop('immediate');
	let_checkpoints($node);
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run(
		[ 'postgres', '--single', '-F', '-D', $node->data_dir, 'postgres' ],
		'<' => \"SELECT max(id) FROM t\n",
		'>' => \$stdout,
		'2>' => \$stderr);
	like($stdout, qr/max = "1000"/, 'standalone backend has recovered');
	is(dw_control($node, 'Database cluster state'),
		'shut down', '... and checkpointed');
	ok(!-e $node->data_dir . "/$MARKER", '... and left no marker');
	$node->start;
	dw_check_stopped($node);
}

# ---------------------------------------------------------------------
# Errors and stops in the window
# ---------------------------------------------------------------------

{
	my $node = dw_new_node('stops');
	my $offset;

	$node->start;
	dw_workload_setup($node);
	my $redo = redo_of($node);
	my $old = dw_snapshot($node);
	crash_under_load($node);

	# the checkpoint fails, also if it is tried again; clients don't
	my $torn = tear($node, $old, 'double_writes');
	set($node, 'test_points.fail_at', "$POINT:EIO:1:1000000");
	$offset = -s $node->logfile;
	dw_start_after_crash($node, $torn);
	$node->wait_for_log(qr/ERROR: .*test error at injection point "$POINT"/,
		$offset);
	$old = dw_snapshot($node);
	crash_under_load($node);
	is(redo_of($node), $redo,
		'checkpoint has failed: the redo pointer is old');
	$torn = tear($node, $old, 'double_writes');
	set($node, 'test_points.fail_at', '');
	set($node, 'test_points.pause_at', $POINT);
	$offset = -s $node->logfile;
	dw_start_after_crash($node, $torn);
	dw_check_history($node);

	# a stop waits for the checkpoint under way, as ever
	foreach my $stop ('fast', 'smart')
	{
		$node->wait_for_log(qr/paused at injection point/, $offset);
		is(redo_of($node), $redo, "$stop stop in the window")
		  if $stop eq 'fast';
		$node->command_ok(
			[
				'pg_ctl', 'stop', '--no-wait',
				'--mode' => $stop,
				'--pgdata' => $node->data_dir
			],
			"$stop stop");
		append_to_file($node->data_dir . '/test_points.resume', '');
		dw_wait_for_exit($node);
		is(dw_control($node, 'Database cluster state'),
			'shut down', "$stop stop: state");
		ok(!-e $node->data_dir . "/$MARKER", "$stop stop: no marker");
		last if $stop eq 'smart';

		$node->start;
		crash_under_load($node);
		$offset = -s $node->logfile;
		dw_start_after_crash($node);
	}
	set($node, 'test_points.pause_at', '');
	$node->start;
	dw_check($node);
}

done_testing();
