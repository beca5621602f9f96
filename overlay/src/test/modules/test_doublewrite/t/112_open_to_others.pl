
# Copyright (c) 2025, PostgreSQL Global Development Group

# A primary has recovered from a crash, and the checkpoint that follows has not
# come yet: what standbys, backups and tools make of that, those of stock too
# (R12).
#
# The environment variable PGDW_STOCK_BINDIR may name the directory of the
# programs of a stock PostgreSQL 18.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

dw_require_injection_points();

my $POINT = 'doublewrite-checkpoint-scanned';
my $stock_bin = $ENV{PGDW_STOCK_BINDIR};

# Settings of ours stand in a file that stock can be started without.
sub new_primary
{
	my ($name, $mode, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1);
	$node->adjust_conf('postgresql.conf', $_, undef)
	  foreach ('io_torn_pages_protection', 'instant_recovery');
	$node->append_conf(
		'postgresql.conf', qq{
checkpoint_timeout = 1h
autovacuum = off
wal_keep_size = 1GB
max_prepared_transactions = 10
include_if_exists = 'ours.conf'
} . ($conf // ''));
	$node->{dw_conf} = qq{
shared_preload_libraries = 'test_points, test_doublewrite'
io_torn_pages_protection = $mode
instant_recovery = on
double_write_buffer_size = 16MB
};
	settings($node);
	$node->start;
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v int);
		INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i;
		CREATE TABLE locked AS SELECT 1 AS id;
		CREATE TABLE kept AS SELECT 1 AS id;
		CHECKPOINT});
	return $node;
}

sub settings
{
	my ($node, @lines) = @_;
	my $file = $node->data_dir . '/ours.conf';

	unlink($file);
	append_to_file($file, join("\n", $node->{dw_conf}, @lines, ''));
	return;
}

# Another server for the same directory
sub use_stock
{
	my ($node) = @_;

	unlink($node->data_dir . '/ours.conf');
	$node->{_install_path} = dirname($stock_bin);
	return;
}

sub new_standby
{
	my ($primary, $name, $stock) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$primary->backup($name);
	$node->init_from_backup($primary, $name, has_streaming => 1);
	$node->{dw_conf} = $primary->{dw_conf};
	settings($node);
	use_stock($node) if $stock;
	$node->start;
	return $node;
}

sub contents
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		'SELECT count(*), sum(hashtextextended(t::text, 0)) FROM t');
}

sub same_as
{
	my ($primary, $standby, $test_name) = @_;

	$primary->wait_for_replay_catchup($standby);
	is(contents($standby), contents($primary), $test_name);
	return;
}

my $row = 1000;

sub write_something
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'INSERT INTO t VALUES (' . ++$row . ', 0)');
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id % 7 = 0');
	return;
}

# Crash, and come up with a checkpoint that is held.
sub crash_into_window
{
	my ($node, $how) = @_;
	my $redo = dw_control($node, "Latest checkpoint's REDO location");

	$node->stop('immediate');
	settings($node, 'test_points.' . ($how // 'hold_at') . " = '$POINT'");
	my $offset = -s $node->logfile;
	ok(dw_poll_start($node), $node->name . ' starts');
	$node->wait_for_log(qr/(?:held|paused) at injection point/, $offset);
	is(dw_control($node, "Latest checkpoint's REDO location"),
		$redo, $node->name . ' is open before its checkpoint');
	settings($node);
	return;
}

# ---------------------------------------------------------------------
# A standby is told what is no longer running
# ---------------------------------------------------------------------

sub test_standby
{
	my ($mode, $stock) = @_;
	my $name = ($stock ? 'stock' : 'ours') . "_$mode";
	my $primary = new_primary("primary_$name", $mode);
	my $standby = new_standby($primary, "standby_$name", $stock);
	my $exclusive =
	  q{SELECT string_agg(relation::regclass::text, ' ' ORDER BY relation DESC) FROM pg_locks
		WHERE mode = 'AccessExclusiveLock' AND locktype = 'relation'};

	note "standby: $name";
	my $session = $primary->background_psql('postgres', on_error_stop => 0);
	my $lost = $session->query(
		'BEGIN; LOCK TABLE locked; INSERT INTO locked VALUES (2); SELECT pg_current_xact_id()'
	);
	$lost =~ s/\D//g;
	# begun later: it does not hold the horizon down
	$primary->safe_psql('postgres',
		q{BEGIN; LOCK TABLE kept; INSERT INTO kept VALUES (2); PREPARE TRANSACTION 'p'}
	);
	$primary->wait_for_replay_catchup($standby);
	is($standby->safe_psql('postgres', $exclusive),
		'kept locked', "$name: standby knows two locks");

	crash_into_window($primary);
	$session->quit;
	$primary->poll_query_until('postgres',
		'SELECT count(*) = 1 FROM pg_stat_replication')
	  or die 'standby does not come back';
	$primary->safe_psql('postgres',
		'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
	$primary->wait_for_replay_catchup($standby);
	is($standby->safe_psql('postgres', $exclusive),
		'kept', "$name: the lock of a lost transaction is gone");
	is( $standby->safe_psql(
			'postgres',
			"SELECT pg_snapshot_xmin(pg_current_snapshot()) > '$lost'::xid8, count(*) FROM locked"
		),
		't|1',
		"$name: and so is the transaction");
	$primary->safe_psql('postgres', q{COMMIT PREPARED 'p'});
	write_something($primary);
	same_as($primary, $standby, "$name: standby follows into the window");
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM kept'),
		2, "$name: prepared transaction is committed");

	# the same again, and the standby crashes, too
	crash_into_window($primary);
	write_something($primary);
	$standby->stop('immediate');
	ok(dw_poll_start($standby), "$name: standby starts");
	same_as($primary, $standby, "$name: standby follows again");

	$primary->stop('immediate');
	if ($stock && $mode eq 'full_pages')
	{
		# in this mode nothing keeps stock from a crashed directory
		use_stock($primary);
	}
	my $offset = -s $primary->logfile;
	ok(dw_poll_start($primary), "$name: primary starts");
	write_something($primary);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	same_as($primary, $standby, "$name: standby follows past the checkpoint");
	$primary->stop;
	is(dw_control($primary, 'Database cluster state'),
		'shut down', "$name: clean stop");

	if ($stock)
	{
		use_stock($primary);
		$primary->start;
		write_something($primary);
		same_as($primary, $standby, "$name: stock goes on as primary");
	}
	else
	{
		$primary->start;
	}
	$primary->stop;
	$standby->stop;
	return;
}

test_standby('double_writes', 0);
SKIP:
{
	skip
	  'PGDW_STOCK_BINDIR does not name the programs of a stock PostgreSQL 18',
	  1
	  if ($stock_bin // '') eq '';
	test_standby('double_writes', 1);
	test_standby('full_pages', 1);
}

# ---------------------------------------------------------------------
# Backups
# ---------------------------------------------------------------------

{
	my $node =
	  new_primary('backed_up', 'double_writes', "summarize_wal = on\n");
	my $dir = $node->backup_dir;

	$node->backup('full', backup_options => [ '--checkpoint' => 'fast' ]);
	write_something($node);
	crash_into_window($node, 'pause_at');
	write_something($node);

	# A backup begins with a checkpoint, for which the one under way has to
	# complete.
	my ($stdout, $stderr) = ('', '');
	my $backup = IPC::Run::start(
		[
			'pg_basebackup', '--no-sync', '--checkpoint=fast',
			'--incremental' => "$dir/full/backup_manifest",
			'-D' => "$dir/incremental",
			'--host' => $node->host,
			'--port' => $node->port
		],
		'>' => \$stdout,
		'2>' => \$stderr);
	$node->poll_query_until('postgres',
		q{SELECT phase = 'waiting for checkpoint to finish' FROM pg_stat_progress_basebackup}
	) or die 'no backup';
	write_something($node);
	append_to_file($node->data_dir . '/test_points.resume', '');
	ok($backup->finish, 'backup that was begun in the window')
	  or diag $stderr;
	$node->backup('plain', backup_options => [ '--checkpoint' => 'fast' ]);

	my $combined = PostgreSQL::Test::Cluster->new('combined');
	$combined->init_from_backup($node, 'incremental',
		combine_with_prior => ['full']);
	$combined->start;
	is(contents($combined), contents($node),
		'WAL has been summarized across the end of recovery');
	$combined->stop;

	# Without a signal file this is crash recovery, too; but it has a point
	# before which the files are not consistent.
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($node, 'plain');
	$restored->{dw_conf} = $node->{dw_conf};
	settings($restored);
	$restored->start;
	like(
		slurp_file($restored->logfile),
		qr/checkpoint starting: end-of-recovery/,
		'after a restore the checkpoint comes first');
	is(contents($restored), contents($node),
		'restored without a signal file');
	$restored->stop;
	$node->stop;
}

# ---------------------------------------------------------------------
# pg_rewind, pg_resetwal, and a crash after promotion
# ---------------------------------------------------------------------

{
	my $primary = new_primary('source', 'double_writes');
	my $standby = new_standby($primary, 'target');
	my $rewind = sub {
		my ($target, $source) = @_;
		my $conf = slurp_file($target->data_dir . '/postgresql.conf');

		$target->command_ok(
			[
				'pg_rewind',
				'--target-pgdata' => $target->data_dir,
				'--source-server' => $source->connstr('postgres')
			],
			'pg_rewind of ' . $target->name . ' to ' . $source->name);
		unlink($target->data_dir . '/postgresql.conf');
		append_to_file($target->data_dir . '/postgresql.conf', $conf);
		settings($target);
		$target->enable_streaming($source);
		$target->start;
		write_something($source);
		same_as($source, $target,
			$target->name . ' follows ' . $source->name);
	};

	crash_into_window($primary);
	write_something($primary);
	$standby->promote;
	write_something($standby);
	$standby->stop;
	$rewind->($standby, $primary);

	# The next promotion; its checkpoint does not come either.
	settings($standby, "test_points.hold_at = '$POINT'");
	$standby->restart;
	$standby->promote;
	$standby->wait_for_log(qr/held at injection point.*/);
	write_something($standby);
	my $expected = contents($standby);
	settings($standby);
	$standby->stop('immediate');
	my $offset = -s $standby->logfile;
	ok(dw_poll_start($standby),
		'server starts after a promotion and a crash');
	like(
		slurp_file($standby->logfile, $offset),
		qr/checkpoint starting: end-of-recovery/,
		'as it was a standby, its checkpoint comes first');
	is(contents($standby), $expected, 'nothing is lost');

	# The old primary has crashed in the window.
	$primary->stop('immediate');
	command_fails_like(
		[ 'pg_resetwal', '--pgdata' => $primary->data_dir ],
		qr/was not shut down cleanly/,
		'pg_resetwal refuses');
	$rewind->($primary, $standby);
	$primary->stop;
	$standby->stop;
}

done_testing();
