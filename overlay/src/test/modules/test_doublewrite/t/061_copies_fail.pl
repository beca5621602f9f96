
# Copyright (c) 2025, PostgreSQL Global Development Group

# Copies that wait in the double-write log until their pages are needed, when writing them
# home fails or does not come back, their tablespace is out of reach, the log is full, or its
# use ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Copies;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $ROWS = 400;
my $whole = "$ROWS|" . $ROWS * ($ROWS + 1) / 2;

# The checkpoint that would write all copies home is held up at one of these.
my $SCANNED = 'doublewrite-checkpoint-scanned';
my $PENDING = 'instant-recovery-only-demands';
my $WRITE = 'doublewrite-bring-write';

my $node = dw_quiet_node(
	'failures', conf => q{
instant_recovery = on
recovery_workers = 2
double_write_stage_size = 8MB
io_combine_limit = 4
});
my $space = dw_tablespace($node, 'space');
my $spaceoid = sql(q{SELECT oid FROM pg_tablespace WHERE spcname = 'space'});

sub sql
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub create
{
	my ($db, $table, $tablespace) = @_;

	$node->safe_psql(
		$db, qq{
		CREATE TABLE $table (i int, f text) TABLESPACE $tablespace;
		INSERT INTO $table SELECT g, repeat('x', 300) FROM generate_series(1, $ROWS) g;
		VACUUM FREEZE $table});
	return;
}

sub sum
{
	my ($table) = @_;

	return sql("SELECT count(*), sum(i) FROM $table");
}

sub log_state
{
	my ($column) = @_;

	return sql("SELECT $column FROM dw_state()");
}

# Have a batch of pages of this table logged that have no copy there.  So many writes fail.
sub flush
{
	my ($table, $nfailing) = @_;

	sql("SELECT dw_dirty('$table'), dw_evict('$table')");
	sql("SELECT points_fail_at('doublewrite-log-write', 'EIO', 1, $nfailing)")
	  if $nfailing;
	$node->psql('postgres', 'SELECT dw_flush_batch(false)');
	return;
}

# What is tried at the next start
sub conf
{
	my (%conf) = @_;

	$node->append_conf('postgresql.conf',
		"test_points.$_ = '" . ($conf{$_} // '') . "'")
	  foreach ('pause_at', 'fail_at');
	return;
}

# Let the checkpoint end.
sub go_on
{
	sql("SELECT points_clear('$SCANNED')");
	append_to_file($node->data_dir . '/test_points.resume', '');
	sql('CHECKPOINT');
	return;
}

create('postgres', $_, 'pg_default')        foreach ('held', 'chains');
create('postgres', $_, 'space')             foreach ('away', 'cut');
sql("CREATE TABLE page$_ AS SELECT 1 AS i") foreach (1 .. 3);
sql(q{CREATE TABLE big (i int, f text STORAGE plain);
	INSERT INTO big SELECT g, repeat('y', 5000) FROM generate_series(1, 2 * 248) g}
);

note
  'what was left pending opens, whatever has become of copies meanwhile (I9)';
dw_log_copies($node, 'held');
sql('UPDATE chains SET i = i + 1 WHERE i <= 10');
dw_crash_torn($node, 'held');
conf(pause_at => $SCANNED);
foreach my $crash (1 .. 3)
{
	dw_start_on_demand($node, "after crash $crash");
	$node->stop('immediate');
}
conf(pause_at => $SCANNED, fail_at => "$WRITE:EIO");
dw_start_on_demand($node, 'after crash 4, when a home write has failed once');
cmp_ok(dw_copies_left($node), '>', 0,
	'... whose copies are where they were (R11)');
is(sum('held'), $whole, '... and pages are whole');
go_on();
is(dw_copies_left($node), 0, '... and then home');

note 'a database is dropped whose tablespace is out of reach (R7)';
sql('CREATE DATABASE db');
$node->safe_psql('db', 'CREATE EXTENSION test_doublewrite CASCADE');
create('db', 't', 'space');
dw_log_copies($node, 'db.t', 'held');
sql('UPDATE chains SET i = i + 1 WHERE i <= 10');
dw_crash_torn($node, 'db.t', 'held');
conf(fail_at => $PENDING . ':EIO');
dw_start_on_demand($node, 'with pages pending');
sql("SELECT injection_points_attach('$WRITE', 'wait')");
my $bringer = dw_start($node, 'bringer', "SELECT dw_bring_in($spaceoid)");
ok( dw_waits_for($node, 'bringer', $WRITE),
	'a process writes pages of it home');
rename($space, "$space.away") or die "could not rename $space: $!";
my $dropper = dw_start($node, 'dropper', 'DROP DATABASE db');
ok(dw_waits_for($node, 'dropper', 'ProcSignalBarrier'),
	'another one drops it');

# that write fails, and the next one begins
sql("SELECT injection_points_wakeup('$WRITE')");
ok(dw_waits_for($node, 'dropper', '^DoubleWriteHome$|^Checkpoint'),
	'... and goes on');
dw_wake($node, $WRITE);
dw_finish($bringer);
sql("SELECT injection_points_detach('$PENDING')");
dw_finish($dropper);
is(sql(q{SELECT count(*) FROM pg_database WHERE datname = 'db'}),
	0, '... which is done');
sql('CHECKPOINT');
is(dw_copies_left($node), 0,
	'... and nothing is left that could not be written');
is(sum('held'), $whole, '... nor lost of others');
rename("$space.away", $space) or die "could not rename $space.away: $!";

note 'newer versions of pages keep a full log: they go home alone (R11)';
dw_log_copies($node, 'held');
dw_crash_torn($node, 'held');
conf(pause_at => $SCANNED);
dw_start_on_demand($node, 'with a log that is going to be full');
sql("SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)"
);
flush('page1');

# each write that fails costs a segment, and two of them end an attempt
flush('page2', 1) if log_state('last_segno - segno') % 2 == 0;
my $ahead = log_state('last_segno - segno');
flush('page3', $ahead + 1);
$node->psql('postgres', 'SELECT dw_flush_batch(false)')
  for (2 .. ($ahead + 1) / 2);
is(log_state('segno = last_segno AND blockno >= 511'),
	't', 'there is no space');
sql(q{UPDATE held SET i = -i; SELECT dw_evict('held')});
is(dw_copies_left($node), 0, 'all copies have been replaced');
is($node->psql('postgres', 'SELECT dw_drain()'), 0, 'pages go home');
cmp_ok(log_state('first_segno'), '>', 1, '... and free the log');
is(sum('held'), $whole =~ s/\|/|-/r, '... and are whole');
sql("SELECT points_clear('doublewrite-create-segment')");
go_on();
sql('UPDATE held SET i = -i; CHECKPOINT');

note
  'copies of pages that have failed move on in a log that is at its bound (R3, R11)';
dw_log_copies($node, 'held');
dw_crash_torn($node, 'held');
dw_start_on_demand($node, 'with homes that cannot be written');
sql("SELECT points_fail_at('$WRITE', 'EIO', 1, 1000000)");
is(sql('SELECT dw_bring()'), 0, 'all copies are staged');
my $newest = log_state('next_batch') - 1;

# the second and third leave the segment before, the next two nearly fill this one
flush('page1');
flush($_, 1) foreach ('page2', 'page3');
flush('big');
sql('SELECT dw_flush_batch(false)');
is(log_state('segno - first_segno'), 3, 'the log is at its bound');
cmp_ok(log_state('blockno'), '>', 495, '... and full');
cmp_ok(log_state('low_water'), '<=', $newest, '... because of them');
sql('SELECT dw_sync_cycle()');
cmp_ok(log_state('low_water'), '>', $newest, '... and a sync cycle frees it');
$node->stop('immediate');
dw_start_on_demand($node, 'after another crash');
is(sum('held'), $whole, 'nothing is lost');
go_on();

note
  'a home write of a copy has failed, and its page is removed before it is staged (R7)';
foreach my $removal ('VACUUM (DISABLE_PAGE_SKIPPING) cut', 'DROP TABLE cut')
{
	my $failing = 'test-points-fail';

	# pages without rows
	sql('INSERT INTO cut TABLE held');
	sql('DELETE FROM cut');
	sql('VACUUM (FREEZE, TRUNCATE off) cut');
	dw_log_copies($node, 'cut');
	dw_crash_torn($node, 'cut');
	dw_start_on_demand($node, "before $removal");
	sql(qq{SELECT points_fail_at('$WRITE', 'EIO');
		SELECT injection_points_attach('$failing', 'wait')});
	$bringer = dw_start($node, 'bringer', "SELECT dw_bring_in($spaceoid)");
	ok(dw_waits_for($node, 'bringer', $failing), 'a write has failed');
	my $remover = dw_start($node, 'remover', $removal);
	ok( dw_waits_for($node, 'remover', 'DoubleWriteHome'),
		'the removal waits for the process that has made it');
	dw_wake($node, $failing);
	dw_finish($bringer, $remover);
	sql('SELECT dw_drain()');
	is(log_state('in_use'), 0, 'nothing is left in the stage');
	is((stat($node->data_dir . "/$node->{dw_path}{cut}"))[7],
		0, '... and nothing has been written behind the removal');
	go_on();
}

note 'the process that writes a copy home exits: others do it (R11)';
dw_log_copies($node, 'held');
dw_crash_torn($node, 'held');
dw_start_on_demand($node, 'with copies to be brought home');
sql("SELECT injection_points_attach('$WRITE', 'error')");
my (undef, undef, $stderr) =
  $node->psql('postgres', 'SET exit_on_error = on; SELECT dw_bring()');
like(
	$stderr,
	qr/server closed the connection/,
	'an error ends a process that writes copies home');
sql("SELECT injection_points_detach('$WRITE')");
is( $node->safe_psql(
		'postgres', q{SET statement_timeout = '60s'; SELECT dw_bring()}),
	0,
	'... and another one brings them home') or BAIL_OUT('copies are kept');
is(sum('held'), $whole, '... and nothing is lost');
go_on();

note
  'a home write of a copy that does not come back: sync cycles do not wait for its file (R11)';
dw_log_copies($node, 'away', 'held');
dw_crash_torn($node, 'away', 'held');
dw_start_on_demand($node, 'with a device that hangs');
sql("SELECT injection_points_attach('$WRITE', 'wait')");
$bringer = dw_start($node, 'bringer', "SELECT dw_bring_in($spaceoid)");
ok(dw_waits_for($node, 'bringer', $WRITE), 'a write does not come back');
sql('SELECT pg_sleep(5.5)');
my $cycles = 'SELECT sync_cycles FROM dw_stats()';
my $before = sql($cycles);
sql('SELECT dw_sync_cycle()');
is(sql($cycles), $before, '... and a sync cycle syncs no file');

# what it writes must not go over a newer version (R4)
my $evictor = dw_start($node, 'evictor',
	q{UPDATE away SET i = -i WHERE ctid = '(0,1)'; SELECT dw_evict('away')});
ok( dw_waits_for($node, 'evictor', 'DoubleWriteHome'),
	'... and a newer version of the page is not staged');
dw_wake($node, $WRITE);
dw_finish($bringer, $evictor);
sql('SELECT dw_sync_cycle()');
is(sql($cycles), $before + 1, '... until it does');
sql('SELECT dw_evict_all(), dw_drain()');
is(sql('SELECT i FROM away WHERE i < 0'),
	-1, 'the newer version has gone home after it');
is(sql("SELECT count(*), sum(abs(i)) FROM $_"),
	$whole, "nothing is lost of table $_")
  foreach ('away', 'held');
go_on();

note
  'the use of the log ends before there is a checkpoint: all copies go home (R10)';
dw_log_copies($node, 'held');
sql('UPDATE chains SET i = i + 1 WHERE i <= 10');
dw_crash_torn($node, 'held');
conf(fail_at => "$PENDING:EIO");
dw_start_on_demand($node, 'with pages pending once more');
sql('ALTER SYSTEM SET io_torn_pages_protection = off');
$node->reload;
ok($node->poll_query_until('postgres', 'SELECT dw_copies_left() = 0'),
	'copies go home, as protection is switched off');
ok($node->poll_query_until('postgres', 'SELECT NOT armed FROM dw_state()'),
	'... and it is off');
is(sum('held'), $whole, '... and nothing is lost');
sql("SELECT injection_points_detach('$PENDING')");

dw_check_amcheck($node);
$node->stop;
done_testing();
