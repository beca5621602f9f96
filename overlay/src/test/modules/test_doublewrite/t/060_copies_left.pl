
# Copyright (c) 2025, PostgreSQL Global Development Group

# Copies that wait in the double-write log until their pages are needed: what keeps
# them, what discards them, what writes them home.  No page of these tables is read
# before that, and no record tells of one, so what is at home, torn, would show.  The
# checkpoint that would write all of them home is held up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Copies;
use DoubleWrite::Crash;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my @tables = ('kept', 'dropped', 'cut', 'held', 'copied', 'read');
my $ROWS = 400;
my $POINT = 'doublewrite-checkpoint-scanned';

# Nothing goes home unless the test says so, and nothing is brought home by workers, as
# these pages have no records.
my $node = dw_new_node(
	'copies_left', conf => q{
instant_recovery = on
recovery_workers = 2
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
double_write_compression = off
double_write_buffer_size = 256MB
double_write_stage_size = 2MB
checkpoint_timeout = 1h
});
$node->start;
dw_extensions($node);
$node->safe_psql('postgres',
	'CREATE EXTENSION pageinspect; CREATE EXTENSION pg_doublewrite_stats');
dw_tablespace($node, 'space');

foreach my $table (@tables)
{
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $table (i int, v int, f text) WITH (fillfactor = 80, vacuum_truncate = off);
		INSERT INTO $table SELECT g, 0, repeat('x', 300) FROM generate_series(1, $ROWS) g;
	});
}
# "large" takes more than two segments of the log, "more" takes more than it has, with those
# that the checkpointer creates when it has time.  "cut" ends with pages without rows.
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE large (i int, f text);
	ALTER TABLE large ALTER f SET STORAGE plain;
	INSERT INTO large SELECT g, repeat('y', 5000) FROM generate_series(1, 1600) g;
	CREATE TABLE more (i int, f text);
	ALTER TABLE more ALTER f SET STORAGE plain;
	INSERT INTO more SELECT g, repeat('z', 5000) FROM generate_series(1, 16000) g;
	DELETE FROM cut WHERE i > 100;
	VACUUM FREEZE cut;
});
$node->safe_psql('postgres', "VACUUM FREEZE $_")
  foreach ('large', 'more', @tables);

# Let the checkpoint end.
sub go_on
{
	$node->safe_psql('postgres', "SELECT points_clear('$POINT')");
	append_to_file($node->data_dir . '/test_points.resume', '');
	$node->safe_psql('postgres', 'CHECKPOINT');
	# it is still there if the checkpoint had not come to the point
	unlink($node->data_dir . '/test_points.resume');
	return;
}

sub sum
{
	my ($table) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*), sum(i), sum(v) FROM $table");
}

my $whole = "$ROWS|" . $ROWS * ($ROWS + 1) / 2 . '|0';

note 'the mark stays as long as copies are left (R3)';
dw_log_copies($node, @tables, 'large');
$node->append_conf('postgresql.conf', "test_points.pause_at = '$POINT'");
my $copies = dw_crash_torn($node, @tables);
dw_start_on_demand($node, 'after a crash');
my $left = dw_copies_left($node);
cmp_ok($left, '>=', 6 * 15, 'copies are left');
$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
is(dw_copies_left($node), $left, 'a sync cycle brings none home by itself');
$node->stop('immediate');
my $again = dw_copies_at_home($node);
is_deeply(
	[
		map {
			join(' ',
				sort { $a <=> $b } keys %{ $again->{ $node->{dw_path}{$_} } })
		} @tables
	],
	[
		map {
			join(' ',
				sort { $a <=> $b }
				  keys %{ $copies->{ $node->{dw_path}{$_} } })
		} @tables
	],
	'... and frees none');
dw_start_on_demand($node, 'after another crash');

note 'removals discard them (R7)';
my $ncopies = scalar(keys %{ $copies->{ $node->{dw_path}{dropped} } });
$left = dw_copies_left($node);
$node->safe_psql('postgres', 'DROP TABLE dropped');
cmp_ok($left - dw_copies_left($node),
	'>=', $ncopies, 'a drop discards copies');
$left = dw_copies_left($node);
$ncopies = scalar(keys %{ $copies->{ $node->{dw_path}{cut} } });
my $nblocks = -s $node->data_dir . "/$node->{dw_path}{cut}";
$node->safe_psql('postgres',
	'SET vacuum_freeze_table_age = 0; VACUUM (TRUNCATE, DISABLE_PAGE_SKIPPING) cut'
);
my $removed =
  ($nblocks - -s $node->data_dir . "/$node->{dw_path}{cut}") / 8192;
cmp_ok($removed, '>', 5, 'vacuum truncates');
cmp_ok($left - dw_copies_left($node),
	'>=', $removed, '... and so discards copies');

note 'files are copied and read when copies are home (R6, R9a)';
go_on();
dw_log_copies($node, 'copied', 'read', 'kept', 'large');
dw_crash_torn($node, 'copied', 'read', 'kept');
dw_start_on_demand($node, 'once more');
is( $node->safe_psql(
		'postgres', qq{
		SELECT count(*), count(*) FILTER (WHERE page_checksum(p, b::int) <> (page_header(p)).checksum)
		FROM generate_series(0, 5) b, pg_read_binary_file('$node->{dw_path}{read}', b * 8192, 8192) p}
	),
	'6|0',
	'what is read from a file is whole');
# those that cannot be written home at once are staged
$node->safe_psql(
	'postgres', q{
	SELECT injection_points_attach('doublewrite-background-flush', 'notice');
	SELECT points_fail_at('doublewrite-bring-write', 'EIO')});
is($node->psql('postgres', 'ALTER TABLE copied SET TABLESPACE space'),
	0, 'a table is moved');
is( $node->safe_psql(
		'postgres', "SELECT points_hits('doublewrite-bring-write') > 0"),
	't',
	'... though a home write has failed');
$node->safe_psql(
	'postgres', q{
	SELECT points_clear('doublewrite-bring-write');
	SELECT injection_points_detach('doublewrite-background-flush')});
is(sum('copied'), $whole, '... and is whole');
cmp_ok(dw_copies_left($node), '>', 0, 'other copies are left');

note 'where the log cannot grow they are written home (R11)';
$node->safe_psql('postgres',
	"SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)"
);
$node->safe_psql(
	'postgres', qq{
	UPDATE large SET i = -i WHERE i % 7 = 0;
	SELECT dw_dirty('more');
	SELECT dw_evict_all(), dw_drain();
});
is(dw_copies_left($node), 0, 'no copy is left');
is(sum('kept'), $whole, '... and pages are whole');
is( $node->safe_psql('postgres', 'SELECT count(*), sum(abs(i)) FROM large'),
	'1600|' . 1600 * 1601 / 2,
	'... also those that have changed');
like(
	slurp_file($node->logfile),
	qr/could not extend the double-write log/,
	'the log was full');
$node->safe_psql('postgres',
	"SELECT points_clear('doublewrite-create-segment')");
go_on();

note 'a file that is not there for a while does not lose its copies (R3)';
dw_log_copies($node, 'held', 'read');
$copies = dw_crash_torn($node, 'held', 'read');
dw_start_on_demand($node, 'with a file that goes away');
my $file = $node->data_dir . "/$node->{dw_path}{read}";
rename($file, "$file.away") or die "could not rename $file: $!";
cmp_ok($node->safe_psql('postgres', 'SELECT dw_bring()'),
	'>', 0, 'more copies are left than the stage may have');
$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
my $there = dw_copies_at_home($node)->{ $node->{dw_path}{read} };
is_deeply(
	[ sort keys %$there ],
	[ sort keys %{ $copies->{ $node->{dw_path}{read} } } ],
	'... and the log has all of them after a sync cycle');
rename("$file.away", $file) or die "could not rename $file.away: $!";
is($node->safe_psql('postgres', 'SELECT dw_bring()'),
	0, '... until it is back');
$node->safe_psql('postgres', 'SELECT dw_drain()');
is(sum('read'), $whole, '... and its pages are whole');
go_on();

note 'a copy that cannot be written home does not keep the log in use (R11)';
dw_log_copies($node, 'held', 'copied', 'large');
dw_crash_torn($node, 'held');
dw_start_on_demand($node, 'with homes that cannot be written');
my $newest = dw_read_log($node)->{live}[-1]{batchno};
$node->safe_psql(
	'postgres', q{
	SELECT injection_points_attach('doublewrite-background-flush', 'notice');
	SELECT points_fail_at('doublewrite-bring-write', 'EIO')});
is($node->safe_psql('postgres', 'SELECT dw_bring()'), 0, 'no copy is left');
$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
my $failed = dw_read_log($node);
cmp_ok($failed->{live}[0]{batchno}, '>', $newest, 'the log has been freed');
cmp_ok(scalar(keys %{ dw_live_copies($failed) }),
	'>', 0, '... except of what has failed, logged anew');
$node->stop('immediate');
dw_start_on_demand($node, 'after another crash');
is(sum('held'), $whole, 'nothing is lost');
go_on();

note 'a write that does not come back is one of its tablespace (R11)';
dw_log_copies($node, 'held', 'copied');
dw_crash_torn($node, 'held', 'copied');
dw_start_on_demand($node, 'with a device that hangs');
$left = dw_copies_left($node);
$node->safe_psql(
	'postgres', q{
	SELECT injection_points_attach('doublewrite-background-flush', 'notice');
	SELECT injection_points_attach('doublewrite-bring-write', 'wait')});
my $hung =
  dw_start($node, 'hung', 'ALTER TABLE copied SET TABLESPACE pg_default');
ok(dw_waits_for($node, 'hung', 'doublewrite-bring-write'), 'a process hangs');
$node->safe_psql('postgres',
	q{SELECT injection_points_detach('doublewrite-bring-write'); SELECT pg_sleep(1.5)}
);
my $timeout = $PostgreSQL::Test::Utils::timeout_default;
my $rest = $node->safe_psql('postgres',
	"SET statement_timeout = '${timeout}s'; SELECT dw_bring()");
cmp_ok($rest, '>', 0, 'others leave copies there alone');
cmp_ok($rest, '<', $left - 5, '... and bring those of other tablespaces');
$node->safe_psql('postgres',
	"SELECT injection_points_wakeup('doublewrite-bring-write')");
dw_finish($hung);
is(sum($_), $whole, "nothing is lost of table $_") foreach ('held', 'copied');
$node->safe_psql('postgres',
	"SELECT injection_points_detach('doublewrite-background-flush')");
go_on();

note 'a newer version holds the mark until it is home (R3, R9a)';
dw_log_copies($node, 'held', 'kept');
dw_crash_torn($node, 'held', 'kept');
dw_start_on_demand($node, 'after that');
$node->safe_psql('postgres',
	"SELECT injection_points_attach('doublewrite-background-flush', 'notice')"
);
$node->safe_psql('postgres',
	'UPDATE held SET v = v + 1 WHERE i % 10 = 0; SELECT dw_evict_all()');
my $held_sum = "$ROWS|" . $ROWS * ($ROWS + 1) / 2 . '|' . $ROWS / 10;
is(sum('held'), $held_sum, 'it is what a query reads');
is($node->safe_psql('postgres', 'SELECT dw_bring()'), 0, 'no copy is left');
$node->safe_psql('postgres', 'SELECT dw_sync_cycle()');
my $held = dw_copies_at_home($node)->{ $node->{dw_path}{held} } // {};
cmp_ok(scalar(keys %$held),
	'>', 5, 'the log has copies of pages with newer versions');
is(scalar(grep { !defined $held->{ $_ * 8192 } } (0 .. 5)), 0, '... of each');
isnt(
	read_block($node, $node->{dw_path}{held}, 0),
	$held->{0}{page},
	'... which is torn at home');

# so does one after it, which takes its place as it is called back
dw_leave_runs($node);
$node->safe_psql(
	'postgres', q{
	UPDATE held SET v = v + 1 WHERE i % 10 = 0;
	SELECT dw_evict('held');
	SELECT dw_sync_cycle()});
$held_sum = "$ROWS|" . $ROWS * ($ROWS + 1) / 2 . '|' . 2 * $ROWS / 10;
is( $node->safe_psql(
		'postgres', qq{
		SELECT count(*) FROM generate_series(0, 5) b,
			pg_read_binary_file('$node->{dw_path}{held}', b * 8192, 8192) p
		WHERE page_checksum(p, b::int) <> (page_header(p)).checksum}),
	0,
	'what is read from the file is whole');
$node->safe_psql('postgres', 'SELECT dw_drain()');
is(sum('held'), $held_sum, 'nothing is lost');
is(sum('kept'), $whole, '... nor of what has been brought home');
$node->safe_psql('postgres',
	"SELECT injection_points_detach('doublewrite-background-flush')");
go_on();

note
  'no more of the log is read than headers, so damage shows when a page is needed';
$node->safe_psql('postgres', 'DROP TABLE more');
dw_log_copies($node, 'kept', 'read', 'large');
$copies = dw_crash_torn($node, 'kept', 'read');
my $bad = $copies->{ $node->{dw_path}{kept} }{8192};
my $log = dw_read_log($node);
cmp_ok($log->{live}[-1]{segno},
	'>', $bad->{segno}, 'the log has gone on to another segment');
my $segment = 'pg_doublewrite/' . sprintf('%016X', $bad->{segno});
write_block($node, $segment, $bad->{offset} + 4000, 'z' x 100);
dw_start_on_demand($node, 'with a copy that is damaged');
is(sum('read'), $whole, 'other pages are whole');
my $path = $node->{dw_path}{kept};
dw_fails(
	$node,
	'SELECT count(*) FROM kept',
	qr/could not read the copy of block 1 of relation "$path" in the double-write log/,
	'the page is an error');
cmp_ok($node->safe_psql('postgres', 'SELECT dw_bring()'),
	'==', 1, 'it is the only one left');
$node->append_conf('postgresql.conf', "test_points.pause_at = ''");

foreach my $crash (1 .. 5)
{
	$node->stop('immediate');
	ok(dw_poll_start($node),
		"server starts after crash $crash without a checkpoint")
	  or BAIL_OUT('no start');
}
# no checkpoint may make the log forget it first
$node->safe_psql('postgres',
	"SELECT injection_points_attach('$POINT', 'wait')");
my (undef, undef, $stderr) =
  $node->psql('postgres', "SELECT pg_instant_recovery_give_up('$path', 1)");
like(
	$stderr,
	qr/the copy of block 1 of relation "$path" in the double-write log has been given up/,
	'it can be given up');

# a row in the half of the page that is left
$node->safe_psql(
	'postgres', q{
	SET ignore_checksum_failure = on;
	UPDATE kept SET v = 1 WHERE ctid = '(1,15)';
	SELECT dw_evict('kept'), dw_drain()});
cmp_ok(dw_copies_at_home($node)->{$path}{8192}{segno},
	'>', $bad->{segno},
	'... and the page is logged when it has changed (R2)');
dw_wake($node, $POINT);
go_on();
is(dw_copies_left($node), 0, '... and then none is left');
$node->safe_psql('postgres', 'DROP TABLE kept');

note
  'a session that is cancelled as it gives up a copy leaves the page to others (I9)';
# and more, as the newest batch would pass for one that was cut short
dw_log_copies($node, 'read', 'large');
# a record for block 1, too
$node->safe_psql('postgres', "UPDATE read SET v = v WHERE ctid = '(1,1)'");
$node->append_conf('postgresql.conf', "test_points.pause_at = '$POINT'");
$bad = dw_crash_torn($node, 'read')->{ $node->{dw_path}{read} }{8192};
$segment = 'pg_doublewrite/' . sprintf('%016X', $bad->{segno});
write_block($node, $segment, $bad->{offset} + 4000, 'z' x 100);
dw_start_on_demand($node, 'with such a copy, and a record for its page');
$path = $node->{dw_path}{read};
dw_fails(
	$node,
	'SELECT count(*) FROM read',
	qr/block 1 of relation "$path" could not be redone after the last crash/,
	'the page cannot be redone');
$node->safe_psql('postgres',
	"SELECT injection_points_attach('doublewrite-copy-given-up', 'wait')");
my $giver =
  dw_start($node, 'giver', "SELECT pg_instant_recovery_give_up('$path', 1)");
ok(dw_waits_for($node, 'giver', 'doublewrite-copy-given-up'),
	'a session has given up the copy');
$node->safe_psql('postgres',
	"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'giver'"
);
dw_wake($node, 'doublewrite-copy-given-up');
dw_finish($giver);
$node->psql(
	'postgres',
	"SET statement_timeout = '${timeout}s'; SELECT pg_instant_recovery_give_up('$path', 1)",
	stderr => \$stderr);
like(
	$stderr,
	qr/block 1 of relation "$path" has been given up/,
	'another one gives up the page');
$node->append_conf('postgresql.conf', "test_points.pause_at = ''");
go_on();
$node->safe_psql('postgres', 'DROP TABLE read');

dw_check_amcheck($node);
$node->stop;
done_testing();
