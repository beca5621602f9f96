
# Copyright (c) 2026, PostgreSQL Global Development Group

# A page with very many records keeps the only worker no longer from pages that sessions
# need than some hundred records take; and records before one that makes the page anew
# do not belong to its chain.

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
$primary->safe_psql('postgres', $_) foreach (
	q{CREATE EXTENSION injection_points;
	  CREATE TABLE hot (v int);
	  INSERT INTO hot VALUES (0);
	  CREATE SEQUENCE counter CACHE 1;
	  CREATE TABLE other AS SELECT 1 AS v},
	'VACUUM hot',
	'CHECKPOINT',
	'UPDATE other SET v = 2',
	q{DO $$ BEGIN FOR n IN 1 .. 3000 LOOP UPDATE hot SET v = n; COMMIT; END LOOP; END $$},
	'SELECT count(nextval(\'counter\')) FROM generate_series(1, 96000)');
xlp_crash($primary, 'long');
my (undef, $serial) = xlp_recover($primary, 'long', 'serial', 'instant_recovery = off');
my ($node, $digest) = xlp_recover($primary, 'long', 'instant', 'instant_recovery = on');
my ($pages, $records) = xlp_pending($node);
cmp_ok($records, '>', 3000, 'a page with many records');
cmp_ok($records, '<', 4500, '... and one that each record makes anew: only the last counts');
is(xlp_differences($serial, $digest), '', '... and files are the same');

# The worker is in the middle of the long chain when a session needs another page.
$node = PostgreSQL::Test::Cluster->new('waits');
$node->init_from_backup($primary, 'long');
$node->append_conf('postgresql.conf', xlp_wait_conf() . q{
instant_recovery = on
recovery_workers = 1
log_min_messages = debug1
test_doublewrite.fail_at = 'instant-recovery-only-demands:EIO'
test_doublewrite.pause_at = 'instant-recovery-record-redone:300'
});
$node->start;
my @sessions = map { $node->background_psql('postgres') } (1 .. 2);
$_->query_safe('EXPLAIN SELECT v FROM hot; EXPLAIN SELECT v FROM other') foreach @sessions;
begin($sessions[0], 'SELECT v FROM hot');
$node->wait_for_log(qr/paused at injection point "instant-recovery-record-redone"/);
begin($sessions[1], 'SELECT v FROM other');
$node->poll_query_until('postgres', q{
	SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'InstantRecoveryPage'})
  or die 'sessions do not wait';
append_to_file($node->data_dir . '/test_doublewrite.resume', '');
is(($sessions[1]->query_until(qr/ended/, '') =~ /^(\d+)$/m)[0], 2, 'a session has its page');
is(($sessions[0]->query_until(qr/ended/, '') =~ /^(\d+)$/m)[0],
	3000, '... and the one that needs the page with many records has that');
like(
	slurp_file($node->logfile),
	qr/redo of block 0 of relation .* is put off for a page that a session needs/,
	'... of which redo was put off');
$_->quit foreach @sessions;
$node->safe_psql('postgres', q{SELECT injection_points_detach('instant-recovery-only-demands')});
$node->wait_for_log(qr/redo is complete/);
$node->stop;

done_testing();
