# Copyright (c) 2025, PostgreSQL Global Development Group

# Batches that go home in parts: several processes write at once, newer versions of
# pages wait for older ones, and whoever must find no home write under way waits for
# all of them, or carries what is left.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

# A row to a page; pages are written home one by one.
my $conf = q{
double_write_concurrency = 4
io_combine_limit = 1
};
my $tables = q{
	CREATE TABLE t (id int, v int, filler text STORAGE PLAIN);
	CREATE TABLE u (LIKE t INCLUDING ALL);
	INSERT INTO t SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 100) i;
	INSERT INTO u SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 100) i;
	VACUUM t, u;
	CHECKPOINT};
my $node;

sub sql
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

# Lock rows, one on each page, and stage these pages.  That makes no other page
# dirty, nor does a look at the table later.
sub stage
{
	my ($rel, $from, $to) = @_;

	sql(qq{
		DO 'BEGIN PERFORM FROM $rel WHERE id BETWEEN $from AND $to FOR UPDATE; END';
		SELECT dw_evict('$rel')});
	return;
}

# Send home what can be sent, and carry what nobody carries
sub flush
{
	my $n = 0;

	$n++ while sql(q{SELECT dw_flush_batch(false)}) eq 't';
	return $n;
}

sub in_use
{
	return sql('SELECT in_use FROM dw_state()');
}

sub home_pages
{
	return sql('SELECT home_pages FROM dw_stats()');
}

# Have some session send these pages of the table home in four parts, and wait as
# the carrier of the first when one page of that is home.
sub hold_carrier
{
	my ($rel, $from, $to) = @_;

	sql(q{SELECT dw_drain()});
	stage($rel, $from, $to);
	sql(q{SELECT injection_points_attach('doublewrite-home-run-written', 'wait')});
	my $carrier = dw_start($node, 'carrier', 'SELECT dw_flush_batch(false)');
	ok(dw_waits_for($node, 'carrier', 'doublewrite-home-run-written'),
		"$rel, pages from $from on: a page is home, its carrier waits");
	sql(q{SELECT injection_points_detach('doublewrite-home-run-written')});
	return $carrier;
}

sub let_go
{
	my ($carrier, @others) = @_;

	sql(q{SELECT injection_points_wakeup('doublewrite-home-run-written')});
	dw_finish($carrier, @others);
	return;
}

# Somebody else has to wait for the carrier
sub must_wait
{
	my ($carrier, $sql, $what) = @_;
	my $other = dw_start($node, 'other', $sql);

	ok(dw_waits_for($node, 'other', 'DoubleWriteHome'), "$what waits for a carrier");
	let_go($carrier, $other);
	return;
}

$node = dw_quiet_node('main', conf => $conf);
sql($tables);

# --- Several write at once, and nobody needs the flush lock for it

{
	sql(q{SELECT dw_drain()});
	stage('t', 1, 8);
	my $before = home_pages();
	sql(q{SELECT injection_points_attach('doublewrite-home-run-written', 'wait')});
	my $one = dw_start($node, 'one', 'SELECT dw_flush_batch(false)');
	ok(dw_waits_for($node, 'one', 'doublewrite-home-run-written'), 'one carries a part');
	stage('u', 1, 1);
	my $two = dw_start($node, 'two', 'SELECT dw_flush_batch(false)');
	ok(dw_waits_for($node, 'two', 'doublewrite-home-run-written'),
		'another one carries a part beside it');
	is(home_pages(), $before + 2, 'a page of each is home');
	dw_wake($node, 'doublewrite-home-run-written');
	dw_finish($one, $two);
	flush();
	is(in_use(), 0, 'all is home');
}

# --- A newer version of a page waits for the older one (R4)

{
	my $carrier = hold_carrier('t', 11, 18);
	my $before = home_pages();

	# the second page of the first part is still on its way
	sql(q{DELETE FROM t WHERE id = 12; SELECT dw_evict('t')});
	stage('u', 11, 11);
	cmp_ok(flush(), '>', 1, 'another batch goes home beside it');
	cmp_ok(home_pages(), '>', $before + 6, '... after what the carrier has left');
	is(sql(q{SELECT staged, in_use FROM dw_state()}), '1|2', '... but a newer version waits for the older one');
	let_go($carrier);
	is(flush(), 1, 'then it can be taken');
	is(in_use(), 0, 'all is home');
	is(sql(q{SELECT count(*) FROM t WHERE id = 12}), 0, 'nothing is lost');
	sql(q{SELECT dw_drain(); SELECT dw_evict_all()});
	is(sql(q{SELECT count(*) FROM t WHERE id = 12}), 0, '... nor at home');
}

# --- Who must find no home write under way

must_wait(hold_carrier('t', 21, 28), 'SELECT dw_drain(false)', 'a drain');
is(in_use(), 0, 'all is home');
must_wait(hold_carrier('t', 31, 38), 'SELECT dw_sync_cycle()', 'a sync cycle');
must_wait(hold_carrier('t', 41, 48), 'SELECT dw_hold_home_writes()', 'who reads files');
is(in_use(), 0, 'all is home, as others have carried the rest');
{
	my $carrier = hold_carrier('t', 51, 58);

	$node->append_conf('postgresql.conf', 'io_torn_pages_protection = full_pages');
	$node->reload;
	let_go($carrier);
	sql('CHECKPOINT');
	ok($node->poll_query_until('postgres', 'SELECT NOT armed FROM dw_state()'), 'disarmed');
	$carrier = hold_carrier('u', 21, 28);
	$node->append_conf('postgresql.conf', 'io_torn_pages_protection = double_writes');
	$node->reload;
	ok( $node->poll_query_until('postgres',
			"SELECT wait_event = 'DoubleWriteHome' FROM pg_stat_activity WHERE backend_type = 'checkpointer'"),
		'arming waits for a carrier');
	let_go($carrier);
	ok($node->poll_query_until('postgres', 'SELECT armed FROM dw_state()'), 'armed');
}

# --- Removal: waits for who writes, but not with the flush lock, and the rest does not
# --- go home any more (R7)

{
	sql(q{CREATE TABLE dropped (LIKE u INCLUDING ALL); INSERT INTO dropped SELECT * FROM u});
	sql(q{VACUUM dropped; CHECKPOINT});
	my $path = $node->data_dir . '/' . sql(q{SELECT pg_relation_filepath('dropped')});
	my $carrier = hold_carrier('dropped', 31, 48);
	my $before = home_pages();
	my $drop = dw_start($node, 'drop', 'DROP TABLE dropped');

	ok(dw_waits_for($node, 'drop', 'DoubleWriteHome'), 'DROP waits for a carrier');
	cmp_ok(-s $path, '>', 0, 'the file is there');
	stage('u', 51, 51);
	cmp_ok(flush(), '>', 0, 'others go on meanwhile');
	is(home_pages(), $before + 1, 'nothing of the table goes home');
	let_go($carrier, $drop);
	is(home_pages(), $before + 1, '... not even by its carrier');
	ok(!-s $path, 'the file is gone');
	is(in_use(), 0, 'all is home');
}

# --- A carrier fails: whoever comes next carries the part on

{
	sql(q{SELECT dw_drain()});
	stage('t', 61, 68);
	my $before = home_pages();
	sql(q{SELECT dw_fail_at('doublewrite-home-run-written', 'EIO')});
	my ($ret) = $node->psql('postgres', 'SELECT dw_flush_batch(false)');
	isnt($ret, 0, 'a carrier fails');
	sql(q{SELECT dw_clear('doublewrite-home-run-written')});
	is(home_pages(), $before + 1, '... when a page is home');
	is(in_use(), 7, '... and leaves the others');
	stage('u', 61, 61);
	cmp_ok(flush(), '>', 1, 'somebody comes with another batch');
	is(home_pages(), $before + 9, '... and carries what was left, too');
	is(in_use(), 0, 'all is home');
}

# Left, and truncated before anybody comes
{
	sql(q{CREATE TABLE truncated (LIKE u INCLUDING ALL); INSERT INTO truncated SELECT * FROM u WHERE id <= 40});
	sql(q{VACUUM truncated; CHECKPOINT});
	my $path = $node->data_dir . '/' . sql(q{SELECT pg_relation_filepath('truncated')});
	sql(q{DELETE FROM truncated; SELECT dw_drain(); SELECT dw_evict('truncated');
		SELECT dw_fail_at('doublewrite-home-run-written', 'EIO')});
	my ($ret) = $node->psql('postgres', 'SELECT dw_flush_batch(false)');
	isnt($ret, 0, 'a carrier fails');
	sql(q{SELECT dw_clear('doublewrite-home-run-written')});
	cmp_ok(in_use(), '>', 10, '... and leaves pages');
	sql(q{VACUUM truncated});
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all slots are free');
	is(-s $path, 0, 'the file stays empty');
}

# --- A page of a part cannot be written: the others go home, and who needs it gets
# --- the error (R11)

{
	sql(q{SELECT dw_drain()});
	stage('t', 71, 78);
	my $before = home_pages();
	my $log = -s $node->logfile;
	sql(q{SELECT dw_fail_at('doublewrite-home-write', 'EIO', 3, 1)});
	is(sql(q{SELECT dw_flush_batch(false)}), 't', 'a batch goes home');
	is(home_pages(), $before + 7, '... but for a page');
	is(in_use(), 1, '... which stays');
	ok($node->log_contains('could not|test error at injection point "doublewrite-home-write"', $log), '... and is reported');
	is(sql(q{SELECT dw_flush_batch(false)}), 'f', 'nobody tries it again with others');
	sql(q{SELECT dw_clear('doublewrite-home-write'); SELECT dw_fail_at('doublewrite-home-write', 'EIO', 1, 1)});
	my ($ret, undef, $stderr) = $node->psql('postgres', 'SELECT dw_drain()');
	like($stderr, qr/test error at injection point/, 'who needs it gets the error');
	sql(q{SELECT dw_clear('doublewrite-home-write')});
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'then it is home');
}

# Memory runs out while that is reported: whoever resumes the part does not touch the
# page again
{
	stage('t', 71, 78);
	sql(q{SELECT dw_fail_at('doublewrite-home-write', 'EIO', 3, 1), dw_fail_at('doublewrite-home-error', 'EIO')});
	my ($ret) = $node->psql('postgres', 'SELECT dw_flush_batch(false)');
	isnt($ret, 0, 'an error while an error is caught');

	# see tdw_look_at_message()
	sql(q{SELECT dw_fail_at('doublewrite-home-write', 'EIO', 1, 1), dw_fail_at('doublewrite-home-error', 'EIO')});
	($ret) = $node->psql('postgres', 'SELECT dw_hold_home_writes()');
	isnt($ret, 0, '... also of who would carry the part first');
	is(sql('SELECT 1'), 1, '... and holds no lock when that is reported');
	sql(q{SELECT dw_clear('doublewrite-home-write'), dw_clear('doublewrite-home-error')});
	sql(q{DELETE FROM t WHERE id BETWEEN 71 AND 78; SELECT dw_evict('t')});
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all is home');
	sql(q{SELECT dw_evict_all()});
	is(sql(q{SELECT count(*) FROM t WHERE id BETWEEN 71 AND 78}), 0, 'nothing is lost');
}

# --- Only where it pays

{
	sql(q{SELECT injection_points_detach('doublewrite-home-run-written')});
	$node->append_conf('postgresql.conf', 'double_write_concurrency = -1');
	$node->reload;
	sql(q{SELECT dw_pretend_home_writes_take(10)});
	my $carrier = hold_carrier('t', 81, 88);
	my $other = dw_start($node, 'other', 'SELECT dw_drain(false)');

	ok(dw_waits_for($node, 'other', 'DoubleWriteFlush'), 'where writes are quick, the flusher makes them all');
	let_go($carrier, $other);

	# as many parts as pages
	sql(q{SELECT dw_pretend_home_writes_take(1000)});
	$carrier = hold_carrier('t', 81, 88);
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'where they are slow, others need not wait for him');
	let_go($carrier);

	# the first page shows it
	sql(q{SELECT dw_pretend_home_writes_take(10)});
	$carrier = hold_carrier('t', 81, 88);
	sql(q{SELECT dw_pretend_home_writes_take(1000)});
	sql(q{SELECT injection_points_attach('doublewrite-home-sent', 'wait')});
	sql(q{SELECT injection_points_wakeup('doublewrite-home-run-written')});
	ok(dw_waits_for($node, 'carrier', 'doublewrite-home-sent'), 'where they turn slow under way, the rest goes in parts');
	sql(q{SELECT injection_points_detach('doublewrite-home-sent')});
	sql(q{SELECT injection_points_wakeup('doublewrite-home-sent')});
	dw_finish($carrier);
	is(in_use(), 0, '... and he carries that');
}
$node->stop;

# --- Who finds the stage full carries a part, or waits for who does

{
	$node = dw_quiet_node('full', conf => $conf . 'double_write_stage_size = 128kB');
	sql($tables);
	my $carrier = hold_carrier('t', 1, 15);
	my $before = home_pages();

	stage('u', 1, 3);
	my $got = home_pages() - $before;
	cmp_ok($got, '>=', 2, 'who finds the stage full writes himself');
	cmp_ok($got, '<', 11, '... one part, not all');

	let_go($carrier);
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all is home');

	# three of four parts are for others
	stage('t', 1, 14);
	$before = home_pages();
	stage('u', 1, 4);
	$got = home_pages() - $before;
	cmp_ok($got, '>=', 2, 'who sends a batch because the stage is full writes, too');
	cmp_ok($got, '<', 10, '... until there is room, not all');
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all is home');

	# the only part is being carried
	$node->append_conf('postgresql.conf', 'double_write_concurrency = 1');
	$node->reload;
	$carrier = hold_carrier('t', 21, 35);
	$before = sql(q{SELECT staged FROM dw_stats()});
	my $evictor = dw_start($node, 'evictor',
		q{DO 'BEGIN PERFORM FROM u WHERE id BETWEEN 21 AND 24 FOR UPDATE; END'; SELECT dw_evict('u')});
	ok(dw_waits_for($node, 'evictor', 'DoubleWriteHome'), 'who finds all carried waits');
	is(sql(q{SELECT staged FROM dw_stats()}), $before + 1, '... with pages for which there is no slot');
	sql(q{SELECT injection_points_attach('doublewrite-home-run-written', 'wait')});
	sql(q{SELECT injection_points_wakeup('doublewrite-home-run-written')});
	ok($node->poll_query_until('postgres', "SELECT staged = $before + 2 FROM dw_stats()"),
		'a page is home, a page is staged');
	ok(dw_waits_for($node, 'carrier', 'doublewrite-home-run-written'), '... while the rest of the part is on its way');
	sql(q{SELECT injection_points_detach('doublewrite-home-run-written')});
	let_go($carrier, $evictor);
	cmp_ok(sql(q{SELECT staged FROM dw_stats()}), '>=', $before + 4, '... until slots are free');
	sql(q{SELECT dw_drain()});
	is(in_use(), 0, 'all is home');
	$node->stop;
}

# --- A checkpoint leaves batches to the background writer: it waits for them, hears of
# --- their errors, and does without where nobody takes them

{
	$node = dw_quiet_node('left', conf => $conf . q{
double_write_concurrency = -1
double_write_stage_size = 128kB
});
	sql($tables);
	sql(q{SELECT dw_pretend_home_writes_take(10)});

	# here the background writer takes none
	my $before = home_pages();
	sql(q{UPDATE t SET v = 1 WHERE id <= 30});
	sql('CHECKPOINT');
	cmp_ok(home_pages() - $before, '>=', 30, 'a checkpoint brings home what it has left to nobody');
	is(in_use(), 0, '... all of it');

	# here it does
	sql(q{SELECT injection_points_detach('doublewrite-background-flush')});
	sql(q{SELECT dw_pretend_home_writes_take(10)});
	sql(q{UPDATE t SET v = 2 WHERE id <= 30});
	sql(q{SELECT injection_points_attach('doublewrite-part-home', 'wait')});
	my $checkpoint = dw_start($node, 'checkpoint', 'CHECKPOINT');
	ok($node->poll_query_until('postgres', q{
		SELECT count(*) = 1 FROM pg_stat_activity
		WHERE backend_type = 'background writer' AND wait_event = 'doublewrite-part-home'}),
		'the background writer carries a batch of a checkpoint');
	dw_wake($node, 'doublewrite-part-home');
	dw_finish($checkpoint);
	is(in_use(), 0, 'all is home');

	# who hears of an error is the checkpoint, whoever meets it
	sql(q{SELECT dw_pretend_home_writes_take(10)});
	sql(q{UPDATE t SET v = 3 WHERE id <= 30});
	sql(q{SELECT dw_fail_at('doublewrite-home-write', 'EIO', 1, 1000)});
	my ($ret) = $node->psql('postgres', 'CHECKPOINT');
	isnt($ret, 0, 'a checkpoint fails whose pages cannot be written home');
	sql(q{SELECT dw_clear('doublewrite-home-write')});
	sql('CHECKPOINT');
	is(in_use(), 0, '... until they can');
	sql(q{SELECT dw_evict_all()});
	is(sql(q{SELECT count(*) FROM t WHERE v = 3}), 30, 'nothing is lost');
	$node->stop;
}

# --- Power fails while parts are on their way

foreach my $point ([ 'doublewrite-home-sent', 1 ], [ 'doublewrite-home-run-written', 3 ],
	[ 'doublewrite-part-home', 2 ])
{
	my ($name, $nth) = @$point;

	note "crash at $name";
	$node = dw_quiet_node("crash_$name" =~ tr/-/_/r, conf => $conf);
	sql($tables);
	my $old = dw_snapshot($node);
	sql(q{UPDATE t SET v = 1 WHERE id <= 20; SELECT dw_evict('t')});
	sql("SELECT dw_crash_at('$name', $nth)");
	my $offset = -s $node->logfile;
	eval { $node->psql('postgres', 'SELECT dw_flush_batch(false)', on_error_die => 0); };
	dw_wait_for_crash($node, $offset);
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>', 10, 'pages are torn that are in the log');
	dw_start_after_crash($node, $torn);
	is(sql(q{SELECT count(*), sum(v) FROM t}), '100|20', 'nothing is lost');
	$node->stop;
}

# --- ... and while a checkpoint has left batches

foreach my $nth (1, 2)
{
	note "crash with $nth batches left to the background writer";
	$node = dw_quiet_node("crash_left_$nth", conf => $conf . q{
double_write_concurrency = -1
double_write_stage_size = 128kB
});
	sql($tables);
	my $old = dw_snapshot($node);
	sql(q{SELECT dw_pretend_home_writes_take(10)});
	sql(q{UPDATE t SET v = 1 WHERE id <= 20});
	sql("SELECT dw_crash_at('doublewrite-home-sent', $nth)");
	my $offset = -s $node->logfile;
	eval { $node->psql('postgres', 'CHECKPOINT', on_error_die => 0); };
	dw_wait_for_crash($node, $offset);
	my $torn = dw_tear($node, $old);
	cmp_ok($torn->{logged}, '>=', 2 * $nth, 'pages are torn that are in the log');
	dw_start_after_crash($node, $torn);
	is(sql(q{SELECT count(*), sum(v) FROM t}), '100|20', 'nothing is lost');
	$node->stop;
}

done_testing();
