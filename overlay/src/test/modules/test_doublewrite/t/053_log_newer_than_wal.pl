# Copyright (c) 2025, PostgreSQL Global Development Group

# WAL was durable up to the LSN of each page in the log (R1).  If it ends before that, it
# has been lost, or the log is of another time than the data: such a cluster does not
# start (R9).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use Digest::MD5;
use DoubleWrite::Log;
use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $v = 0;

sub number_of
{
	my ($high, $low) = split /\//, shift;

	return hex($high) * 2**32 + hex($low);
}

sub wal_position
{
	my ($node) = @_;

	return number_of($node->lsn('insert'));
}

# Change pages, and have them in the log and at home; a sync cycle lets them be logged again
sub change
{
	my ($node, $nrows) = @_;

	$v++;
	$node->safe_psql('postgres',
		"SELECT dw_sync_cycle(); UPDATE t SET v = $v WHERE id <= $nrows; SELECT dw_evict('t'); SELECT dw_flush_batch()"
	);
	return;
}

# The highest LSN in the log, as its newest batch says
sub log_end
{
	my ($node) = @_;

	return dw_read_log($node)->{batches}[-1]{wal_end};
}

sub wal_file
{
	my ($node, $position) = @_;

	return $node->data_dir
	  . sprintf(
		'/pg_wal/%08X%08X%08X',
		1,
		$position / 2**32,
		($position % 2**32) / (1024 * 1024));
}

# Lose WAL from a position to the end of its file; returns what was there
sub cut
{
	my ($node, $position) = @_;
	my $size = 1024 * 1024;
	my $at = $position % $size;

	return swap($node, $position, "\0" x ($size - $at));
}

sub swap
{
	my ($node, $position, $new) = @_;
	my $file = wal_file($node, $position);

	open my $fh, '+<:raw', $file or die "$file: $!";
	sysseek($fh, $position % (1024 * 1024), 0);
	sysread($fh, my $old, length $new) == length $new or die "$file is short";
	sysseek($fh, $position % (1024 * 1024), 0);
	syswrite($fh, $new) == length $new or die "$file: $!";
	close $fh;
	return $old;
}

sub does_not_start
{
	my ($node, $what, $detail) = @_;

	foreach my $time ('first', 'second')
	{
		my $offset = -s $node->logfile;

		ok(!$node->start(fail_ok => 1),
			"$what: the server does not start, $time time");
		like(
			slurp_file($node->logfile, $offset),
			qr/FATAL:  the double-write log is newer than the WAL of the cluster\n.*DETAIL:  $detail/,
			'... says why');
	}
	return;
}

sub starts
{
	my ($node, $what, $rows) = @_;

	$node->start;
	is( $node->safe_psql(
			'postgres', "SELECT min(v), max(v) FROM t WHERE id <= $rows"),
		"$v|$v",
		"$what: with its WAL it starts, and rows are there");
	return;
}

my $node = dw_quiet_node('main', init => { extra => ['--wal-segsize=1'] });

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int, v int, filler text STORAGE PLAIN) WITH (fillfactor = 45);
	INSERT INTO t SELECT i, 0, repeat('x', 3500) FROM generate_series(1, 60) i;
	CHECKPOINT});
my $home = $node->data_dir . '/'
  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('t')");

# --- A good part of WAL is lost: nothing is restored

change($node, 60);
change($node, 10) while wal_position($node) % (1024 * 1024) > 600 * 1024;
my $position = wal_position($node);
change($node, 60) foreach 1 .. 4;
$node->stop('immediate');
cmp_ok(log_end($node) - $position,
	'>', 2 * 8192, 'some pages of WAL come before the newest in the log');
is( wal_file($node, log_end($node)),
	wal_file($node, $position),
	'... all in one file');
my $lost = cut($node, $position);
my $md5 = Digest::MD5::md5_hex(slurp_file($home));
command_checks_all(
	[ 'pg_doublewrite', 'check', $node->data_dir ],
	2,
	[qr/It holds pages with changes up to .*, which WAL does not reach/],
	[qr/^$/],
	'pg_doublewrite says so');
does_not_start($node, 'WAL is lost',
	'It holds pages with changes up to \S+, which WAL does not reach');
is(Digest::MD5::md5_hex(slurp_file($home)),
	$md5, '... and nothing has been restored');
swap($node, $position, $lost);
starts($node, 'WAL was lost', 60);

# --- Its last record is lost, which shows when the others have been replayed

$node->safe_psql('postgres', 'CHECKPOINT');
change($node, 60);
change($node, 1) while wal_position($node) % 8192 < 2000;
$node->stop('immediate');
$position = log_end($node) - 32;
$lost = cut($node, $position);
does_not_start(
	$node,
	'a record is lost',
	'It held pages with changes up to \S+, but WAL ends at \S+\.');
swap($node, $position, $lost);
starts($node, 'a record was lost', 1);

# --- WAL that recovery does not need may be gone

change($node, 60);
$node->safe_psql(
	'postgres', q{SELECT pg_switch_wal(); CHECKPOINT; SELECT txid_current();
	SELECT pg_switch_wal(); CHECKPOINT});
$node->stop('immediate');
ok(!-e wal_file($node, log_end($node)),
	'WAL has been removed up to which pages had changed');
starts($node, 'old WAL is gone', 60);

# --- A server that may get it elsewhere waits for it

$node->safe_psql('postgres', 'CHECKPOINT');
change($node, 60);
change($node, 1) while wal_position($node) % 8192 < 2000;
$node->stop('immediate');
$position = log_end($node) - 32;
$lost = cut($node, $position);
$node->append_conf('postgresql.conf', 'log_min_messages = debug2');
$node->set_standby_mode;
my $offset = -s $node->logfile;
command_ok(
	[
		'pg_ctl', '--no-wait', '--pgdata', $node->data_dir,
		'--log', $node->logfile, 'start'
	],
	'a standby starts');
$node->wait_for_log(qr/switched WAL source from stream/, $offset);
unlike(
	slurp_file($node->logfile, $offset),
	qr/consistent recovery state reached/,
	'... and is not consistent before it has that WAL');
swap($node, $position, $lost);
$node->wait_for_log(qr/consistent recovery state reached/, $offset);
$node->wait_for_log(qr/ready to accept read-only connections/, $offset);
$node->_update_pid(1);
is($node->safe_psql('postgres', 'SELECT max(v) FROM t WHERE id = 1'),
	$v, '... then it is');
$node->stop;

done_testing();
