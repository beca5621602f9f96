# Copyright (c) 2025, PostgreSQL Global Development Group

# Full-page images that stop at a server start or at a promotion: a server
# that replays this WAL has to notice, or takes pages for safe that are not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $SETTING = 'io_torn_pages_protection';
my $SAYS_SO =
  qr/LOG:  using double writes because the WAL being replayed lacks full-page images/;
my $stock_bin = $ENV{PGDW_STOCK_BINDIR} // '';

# A log so large that no sync cycle frees any of it, so that whatever has been
# written since the last restartpoint may be torn.
my $CONF = "wal_log_hints = off\ndouble_write_buffer_size = 1GB\n";

sub new_primary
{
	my ($name, $mode, $conf) = @_;
	my $primary = dw_new_node(
		$name,
		mode => $mode,
		init => { allows_streaming => 1 },
		conf => $CONF . "wal_keep_size = 1GB\n" . ($conf // ''));

	$primary->start;
	dw_workload_setup($primary);
	$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);
	return $primary;
}

sub new_standby
{
	my ($primary, $source, $name, $mode) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$standby->init_from_backup($primary, 'base');
	$standby->adjust_conf('postgresql.conf', $SETTING, $mode);
	$standby->enable_streaming($source);
	$standby->{dw_checksums} = 1;
	$standby->start;
	return $standby;
}

# A restartpoint on each standby, at which the primary writes images
sub restartpoints
{
	my ($source, @standbys) = @_;

	$source->safe_psql('postgres', 'CHECKPOINT');
	dw_wait_for_replay($source->lsn('flush'), @standbys);
	$_->safe_psql('postgres', 'CHECKPOINT') foreach @standbys;
	return;
}

# The way that many take: stop, edit, start
sub convert
{
	my ($node, $mode) = @_;

	$node->stop;
	$node->adjust_conf('postgresql.conf', $SETTING, $mode);
	$node->start;
	return;
}

# Under load, let a standby write pages whose WAL has no images, and crash.
# Any page written since the restartpoint may be torn then.
sub crash_under_load
{
	my ($source, $standby, $old, $what) = @_;
	my $counters = 'SELECT logged + in_epoch, exempt FROM dw_stats()';
	my ($logged, $exempt) = split /\|/,
	  $standby->safe_psql('postgres', $counters);

	dw_workload_start($source);
	dw_wait_for_pages($standby, 300);
	my ($now_logged, $now_exempt) =
	  split /\|/, $standby->safe_psql('postgres', $counters);
	cmp_ok($now_logged - $logged, '>', 150, "$what: pages are logged");
	note "$what: exempt " . ($now_exempt - $exempt);
	$standby->stop('immediate');
	my $torn = dw_tear(
		$standby, $old,
		unlogged_too => 1,
		only => qr/^(?!.*_fsm)/);
	cmp_ok($torn->{logged} + $torn->{unlogged},
		'>', 0, "$what: pages were torn");
	dw_start_after_crash($standby, $torn);
	dw_workload_stop($source);
	dw_wait_for_replay($source->lsn('flush'), $standby);
	my $sum = 'SELECT sum(hashtextextended(a::text, 0)) FROM accounts a;
		SELECT sum(hashtextextended(h::text, 0)) FROM history h';
	is( $standby->safe_psql('postgres', $sum),
		$source->safe_psql('postgres', $sum),
		"$what: same data");
	return;
}

# Types of records of pg_waldump from a location on, as many as given
sub records
{
	my ($node, $from, $n, $timeline) = @_;
	my ($stdout, $stderr) = run_command(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--timeline' => $timeline,
			'--start' => $from,
			'--limit' => $n
		]);

	return [ map { /desc: (\S+(?: \w+)?)/ ? $1 : () } split /\n/, $stdout ];
}

# ---------------------------------------------------------------------
# A primary is stopped, edited and started; its standbys go on
# ---------------------------------------------------------------------

foreach my $mode ('double_writes', 'full_pages')
{
	my $primary = new_primary("primary_$mode", 'full_pages');
	my $standby = new_standby($primary, $primary, "standby_$mode", $mode);

	restartpoints($primary, $standby);
	my $old = dw_snapshot($standby);
	my $offset = -s $standby->logfile;
	$primary->stop;
	my $shutdown = dw_control($primary, 'Latest checkpoint location');
	$primary->adjust_conf('postgresql.conf', $SETTING, 'double_writes');
	$primary->start;
	crash_under_load($primary, $standby, $old,
		"clean start, standby in $mode");
	is( slurp_file($standby->logfile, $offset) =~ $SAYS_SO ? 1 : 0,
		$mode eq 'full_pages'                              ? 1 : 0,
		"standby in $mode: says so if it uses double writes by itself");

	my $records = records($primary, $shutdown, 2, 1);
	like($records->[0], qr/CHECKPOINT_SHUTDOWN/,
		'last record before the stop');
	is($records->[1], 'FPW_CHANGE false', 'first record after the start');
	$standby->stop;
	$primary->stop;
}

# ---------------------------------------------------------------------
# A promoted standby writes no images, with a cascaded one behind it
# ---------------------------------------------------------------------

{
	my $primary = new_primary('primary_cascade', 'full_pages');
	my $first = new_standby($primary, $primary, 'first', 'double_writes');
	my $second = new_standby($primary, $first, 'second', 'full_pages');

	restartpoints($primary, $first, $second);
	my $old = dw_snapshot($second);
	my $offset = -s $second->logfile;
	$primary->stop;
	$first->promote;
	my ($end) = slurp_file($first->data_dir . '/pg_wal/00000002.history') =~
	  /^1\t(\S+)/m;
	$first->{dw_script} = $primary->{dw_script};
	$first->{dw_run} = 0;
	crash_under_load($first, $second, $old, 'promotion');
	like(slurp_file($second->logfile, $offset),
		$SAYS_SO, 'cascaded standby says so');

	# a record before it would belong to the old timeline for servers that redo it
	my $records = records($first, $end, 2, 2);
	like($records->[0], qr/^END_OF_RECOVERY/, 'first record of the timeline');
	is($records->[1], 'FPW_CHANGE false', 'then images end');
	$_->stop foreach ($second, $first);
}

# ---------------------------------------------------------------------
# One server converts like that, and crashes twice before a checkpoint: the
# redo pointer is still that of the last stop, when there were images
# ---------------------------------------------------------------------

# Also from images to none, of which no record tells with wal_level = minimal, and
# without records of hints
foreach my $case (
	[ 'alone', 1, "wal_level = replica\n", 'double_writes' ],
	[ 'minimal', 0, "wal_level = minimal\nmax_wal_senders = 0\n", 'off' ])
{
	my ($name, $checksums, $conf, $mode) = @$case;
	my $node = dw_new_node(
		$name,
		mode => 'full_pages',
		checksums => $checksums,
		conf => $CONF . $conf);

	$node->start;
	dw_workload_setup($node);
	convert($node, $mode);
	dw_workload_start($node, transactions => 300);
	dw_workload_finish($node);
	$node->stop('immediate');

	# restore, if any, is over
	$node->adjust_conf('postgresql.conf', $SETTING, 'double_writes');
	$node->append_conf('postgresql.conf',
		q{test_points.crash_at = 'doublewrite-armed'});
	my $offset = -s $node->logfile;
	$node->start(fail_ok => 1);
	dw_wait_for_crash($node, $offset);
	my $old = dw_snapshot($node);

	# Pages that redo has written may be torn, and there has been no checkpoint.
	# Clients may get in before it, so the server may be said to have started.
	$node->adjust_conf('postgresql.conf', 'test_points.crash_at',
		q{'doublewrite-checkpoint-drained'});
	$offset = -s $node->logfile;
	$node->start(fail_ok => 1);
	dw_wait_for_crash($node, $offset);
	my $torn =
	  dw_tear($node, $old, unlogged_too => 1, only => qr/^(?!.*_fsm)/);
	cmp_ok($torn->{logged}, '>', 50, "$name: pages were logged");
	$node->adjust_conf('postgresql.conf', 'test_points.crash_at', q{''});
	dw_start_after_crash($node, $torn);
	dw_check($node);
}

# ---------------------------------------------------------------------
# Backups of a standby whose files others read
# ---------------------------------------------------------------------

sub backup_refused
{
	my ($primary, $standby, $convert, $what) = @_;

	restartpoints($primary, $standby);
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$session->query_safe(q{SELECT pg_backup_start('b', true)});
	$convert->();
	$primary->safe_psql('postgres', 'UPDATE accounts SET n = n + 1');
	dw_wait_for_replay($primary->lsn('flush'), $standby);
	$session->query('SELECT 1 FROM pg_backup_stop(false)');
	like(
		$session->{stderr},
		qr/WAL generated with "full_page_writes=off" was replayed during online backup/,
		"$what: pg_backup_stop() refuses");
	$session->{stderr} = '';
	$session->quit;
	return;
}

{
	my $primary = new_primary('primary_backup', 'full_pages');
	my $standby =
	  new_standby($primary, $primary, 'standby_backup', 'full_pages');

	backup_refused($primary, $standby,
		sub { convert($primary, 'double_writes') },
		'clean start');

	# while there are images, it does not
	convert($primary, 'full_pages');
	restartpoints($primary, $standby);
	my $session = $standby->background_psql('postgres');
	$session->query_safe(q{SELECT pg_backup_start('b', true)});
	$primary->restart;
	$primary->safe_psql('postgres', 'UPDATE accounts SET n = n + 1');
	dw_wait_for_replay($primary->lsn('flush'), $standby);
	ok( $session->query_safe('SELECT 1 FROM pg_backup_stop(false)'),
		'start with images: pg_backup_stop() is content');
	$session->quit;
	$standby->stop;
	$primary->stop;
}

# ---------------------------------------------------------------------
# A stock primary, which says nothing at a start
# ---------------------------------------------------------------------

SKIP:
{
	skip
	  'PGDW_STOCK_BINDIR does not name the programs of a stock PostgreSQL 18',
	  1
	  if !-x "$stock_bin/postgres";
	my $primary = PostgreSQL::Test::Cluster->new('stock',
		install_path => dirname($stock_bin));

	$primary->init(
		allows_streaming => 1,
		force_initdb => 1,
		no_data_checksums => 1);
	$primary->append_conf('postgresql.conf',
		"wal_keep_size = 1GB\nautovacuum = off\ncheckpoint_timeout = 1h\nshared_buffers = 1MB\n"
	);
	$primary->start;
	$primary->safe_psql(
		'postgres', q{
		CREATE TABLE accounts AS SELECT i AS id, 0 AS n, repeat('x', 500) AS f
			FROM generate_series(1, 3000) i});
	$primary->backup('base');

	my $standby = PostgreSQL::Test::Cluster->new('of_stock');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf',
		"shared_buffers = 1MB\ndouble_write_stage_size = 512kB\n");
	$standby->start;
	backup_refused(
		$primary, $standby,
		sub {
			$primary->stop;
			$primary->append_conf('postgresql.conf',
				'full_page_writes = off');
			$primary->start;
		},
		'stock primary');
	$standby->wait_for_log($SAYS_SO);
	ok( -f $standby->data_dir . '/backup_label',
		'standby of a stock primary protects itself');
	$standby->stop;
	$primary->stop;
}

done_testing();
