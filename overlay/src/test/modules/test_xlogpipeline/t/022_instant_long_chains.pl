
# Copyright (c) 2025, PostgreSQL Global Development Group

# A page with very many records keeps the only worker no longer from a page that a session
# needs than some hundred records take, and a scan keeps it from that page a few times only;
# and records before one that makes the page anew do not belong to its chain.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

sub begin
{
	my ($session, $sql) = @_;

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n\\echo ended\n");
	return;
}

my $primary = xlp_primary('primary');
$primary->append_conf('postgresql.conf', 'fsync = off');
$primary->restart;
$primary->safe_psql('postgres', $_)
  foreach (
	q{CREATE EXTENSION injection_points;
	  CREATE TABLE hot (v int);
	  INSERT INTO hot VALUES (0);
	  CREATE SEQUENCE counter CACHE 1;
	  CREATE TABLE other AS SELECT 1 AS v;
	  CREATE TABLE many (i int, f text) WITH (fillfactor = 80);
	  INSERT INTO many SELECT g, repeat('x', 1000) FROM generate_series(1, 6000) g},
	'VACUUM hot',
	'CHECKPOINT',
	'UPDATE other SET v = 2',
	'UPDATE many SET i = i WHERE i % 6 = 1',
	q{DO $$ BEGIN FOR n IN 1 .. 6000 LOOP UPDATE hot SET v = n; COMMIT; END LOOP; END $$},
	'SELECT count(nextval(\'counter\')) FROM generate_series(1, 96000)');
xlp_crash($primary, 'long');
my (undef, $serial) =
  xlp_recover($primary, 'long', 'serial', 'instant_recovery = off');
my ($node, $digest) =
  xlp_recover($primary, 'long', 'instant', 'instant_recovery = on');
my ($pages, $records) = xlp_pending($node);
cmp_ok($records, '>', 6000, 'a page with many records');
cmp_ok($records, '<', 9000,
	'... and one that each record makes anew: only the last counts');
is(xlp_differences($serial, $digest), '', '... and files are the same');

# Two sessions wait, the first one for the page with the long chain, which the only worker has
# begun to redo: let it go on.
sub begin_long_chain
{
	my ($name, $other) = @_;
	my $held = PostgreSQL::Test::Cluster->new($name);

	$held->init_from_backup($primary, 'long');
	$held->append_conf(
		'postgresql.conf',
		xlp_wait_conf() . q{
instant_recovery = on
recovery_workers = 1
log_min_messages = debug1
test_points.fail_at = 'instant-recovery-only-demands:EIO, instant-recovery-records-slowly:EIO'
test_points.pause_at = 'instant-recovery-record-redone:300'
});
	$held->start;
	my @sessions = map { $held->background_psql('postgres') } (1 .. 2);
	$_->query_safe("EXPLAIN SELECT v FROM hot; EXPLAIN $other")
	  foreach @sessions;
	begin($sessions[0], 'SELECT v FROM hot');
	$held->wait_for_log(
		qr/paused at injection point "instant-recovery-record-redone"/);
	begin($sessions[1], $other);
	$held->poll_query_until(
		'postgres', q{
		SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'InstantRecoveryPage'}
	) or die 'sessions do not wait';
	append_to_file($held->data_dir . '/test_points.resume', '');
	return ($held, @sessions);
}

sub result
{
	my ($session) = @_;

	return ($session->query_until(qr/ended/, '') =~ /^(\d+)$/m)[0];
}

sub end
{
	my ($held, @sessions) = @_;

	$_->quit foreach @sessions;
	$held->safe_psql('postgres', "SELECT injection_points_detach('$_')")
	  foreach ('instant-recovery-only-demands',
		'instant-recovery-records-slowly');
	$held->wait_for_log(qr/redo is complete/);
	$held->stop;
	return;
}

# The worker is in the middle of the long chain when a session needs another page.
my $put_off =
  qr/redo of block 0 of relation .* is put off for a page that a session needs/;
($node, my @sessions) = begin_long_chain('waits', 'SELECT v FROM other');
is(result($sessions[1]), 2, 'a session has its page');
is(result($sessions[0]),
	6000, '... and the one that needs the page with many records has that');
like(slurp_file($node->logfile), $put_off, '... of which redo was put off');
end($node, @sessions);

# A scan needs page after page: it is let in a few times, not after each few records.
($node, @sessions) = begin_long_chain('scan', 'SELECT count(*) FROM many');
is(result($sessions[0]), 6000, 'a session needs the page with many records');
is(result($sessions[1]), 6000, '... while another one scans a table');
my $times = () = slurp_file($node->logfile) =~ /$put_off/g;
cmp_ok($times, '>', 0, '... for which redo of that page was put off');
cmp_ok($times, '<=', 5, '... a few times');
end($node, @sessions);

done_testing();
