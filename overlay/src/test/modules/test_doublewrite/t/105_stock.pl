
# Copyright (c) 2025, PostgreSQL Global Development Group

# Compatibility with stock PostgreSQL 18: one data directory goes back and
# forth between the two servers, and modules built for stock load here (R12).
#
# Needs a stock installation of the same major version.  The environment
# variable PGDW_STOCK_BINDIR names the directory of its programs.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

my $stock_bin = $ENV{PGDW_STOCK_BINDIR};

# A mode that all clusters are to have is none for stock's initdb
delete $ENV{PG_TEST_INITDB_EXTRA_OPTS};

plan skip_all =>
  'PGDW_STOCK_BINDIR does not name the programs of a stock PostgreSQL 18'
  if !defined $stock_bin || $stock_bin eq '';
die "no postgres in PGDW_STOCK_BINDIR \"$stock_bin\""
  if !-x "$stock_bin/postgres";

my ($version) = run_command([ "$stock_bin/postgres", '--version' ]);
plan skip_all => "PGDW_STOCK_BINDIR has $version, not PostgreSQL 18"
  if $version !~ /\(PostgreSQL\) 18/;
note("stock is $version");

my $MARKER = 'backup_label';

# ---------------------------------------------------------------------
# One node, two servers
# ---------------------------------------------------------------------

my $node =
  PostgreSQL::Test::Cluster->new('stock',
	install_path => dirname($stock_bin));
my %install = (stock => dirname($stock_bin), ours => undef);

# From now on, run the programs of this installation.
sub use_server
{
	my ($which) = @_;

	$node->{_install_path} = $install{$which};
	return;
}

# Our settings, which stock does not know: in a file that can be left out.
sub settings
{
	my (@lines) = @_;
	my $file = $node->data_dir . '/doublewrite.conf';

	unlink($file);
	append_to_file($file, join("\n", @lines, ''));
	return;
}

sub data_ok
{
	my ($rows, $test_name) = @_;

	is( $node->safe_psql(
			'postgres',
			'SELECT count(*), sum(a), sum(b) = max(b) * count(*) FROM t'),
		"$rows|" . $rows * ($rows + 1) / 2 . '|t',
		$test_name);
	is( $node->safe_psql(
			'postgres',
			"SELECT bt_index_check('t_pkey', true);"
			  . "SELECT count(*) FROM verify_heapam('t')"),
		"\n0",
		"$test_name: amcheck");
	return;
}

# Change all rows and have most of the pages written, but by no checkpoint.
sub change_data
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'UPDATE t SET b = b + 1');
	return;
}

# pg_control as both servers' programs see it.
sub controldata_ok
{
	my ($state) = @_;
	my @out;

	for my $which ('stock', 'ours')
	{
		use_server($which);
		local %ENV = $node->_get_env();
		my ($stdout, $stderr) =
		  run_command([ 'pg_controldata', $node->data_dir ]);
		is($stderr, '', "pg_controldata of $which: no complaint, $state");
		push @out, $stdout;
	}
	is($out[0], $out[1], "pg_controldata says the same, $state");
	like(
		$out[0],
		qr/^Database cluster state: +\Q$state\E$/m,
		"state is $state");
	return $out[0];
}

# ---------------------------------------------------------------------
# A stock data directory starts here
# ---------------------------------------------------------------------

$node->init(force_initdb => 1);
$node->append_conf(
	'postgresql.conf', q(
shared_buffers = 1MB
wal_level = replica
include_if_exists = 'doublewrite.conf'
));
$node->start;
$node->safe_psql(
	'postgres', q(
CREATE EXTENSION amcheck;
CREATE TABLE t (a int PRIMARY KEY, b int,
	pad text STORAGE PLAIN DEFAULT repeat('x', 2000));
INSERT INTO t SELECT a, 0 FROM generate_series(1, 1000) a;
));
like(
	$node->safe_psql('postgres', 'SELECT version()'),
	qr/PostgreSQL 18/,
	'stock server');
$node->stop;

my ($catversion) =
  controldata_ok('shut down') =~ /^Catalog version number: +(\d+)$/m;

use_server('ours');
my $own = PostgreSQL::Test::Cluster->new('own');
$own->init;
my ($stdout) = run_command([ 'pg_controldata', $own->data_dir ]);
my ($own_catversion) = $stdout =~ /^Catalog version number: +(\d+)$/m;
is($own_catversion, $catversion, 'catalog version is that of stock');
$own->clean_node;

$node->start;
is($node->safe_psql('postgres', 'SHOW io_torn_pages_protection'),
	'full_pages', 'stock data directory starts in full_pages');
ok(!-e $node->data_dir . "/$MARKER", 'and is not marked');
data_ok(1000, 'data written by stock');
change_data();
$node->stop('immediate');

# ---------------------------------------------------------------------
# In full_pages nothing has changed for stock, not even after a crash
# ---------------------------------------------------------------------

use_server('stock');
$node->start;
data_ok(1000, 'stock has recovered from our crash in full_pages');
change_data();
$node->stop('immediate');

# nor the other way round
use_server('ours');
settings('io_torn_pages_protection = double_writes');
$node->start;
data_ok(1000, 'we have recovered from a crash of stock');
change_data();
use_server('ours');
ok(-f $node->data_dir . "/$MARKER", 'marker while in double_writes');

# ---------------------------------------------------------------------
# Clean stop: back to stock
# ---------------------------------------------------------------------

$node->stop;
ok(!-e $node->data_dir . "/$MARKER", 'a clean stop removes the marker');
controldata_ok('shut down');
settings();
use_server('stock');
$node->start;
data_ok(1000, 'stock goes on after a clean stop in double_writes');
change_data();
$node->stop;

use_server('ours');
settings('io_torn_pages_protection = double_writes');
$node->start;
data_ok(1000,
	'and we after it: the old log is not put over what stock wrote');
change_data();

# ---------------------------------------------------------------------
# Crash: stock must not start
# ---------------------------------------------------------------------

$node->stop('immediate');
controldata_ok('in production');
settings();

use_server('stock');
my $offset = -s $node->logfile;
ok(!$node->start(fail_ok => 1), 'stock does not start on our crash');
like(
	slurp_file($node->logfile, $offset),
	qr/FATAL:  invalid data in file "$MARKER"/,
	'and says what is in its way');
ok(-f $node->data_dir . "/$MARKER", 'marker is still there');
like(
	slurp_file($node->data_dir . "/$MARKER"),
	qr/Only a server that knows it may start/,
	'and explains itself');

use_server('ours');
$offset = -s $node->logfile;
$node->start;
like(
	slurp_file($node->logfile, $offset),
	qr/double-write log: examined [1-9]\d* pages/,
	'our server restores, though the setting is gone');
data_ok(1000, 'after recovery');

# WAL that we have written can be read by stock's tools.  It is flushed by
# whole pages also, so its flushed end may lie within a record; the end of what
# is inserted does not.
my $from = $node->lsn('insert');
change_data();
my $to = $node->lsn('flush');
{
	use_server('stock');
	local %ENV = $node->_get_env();
	command_like(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--start' => $from,
			'--end' => $to
		],
		qr/rmgr: Heap /,
		"stock's pg_waldump reads our WAL");
	use_server('ours');
}
$node->stop;
controldata_ok('shut down');
use_server('stock');
$node->start;
data_ok(1000, 'stock goes on after that');
$node->stop;

# ---------------------------------------------------------------------
# The same with pages that are written atomically
# ---------------------------------------------------------------------

my @atomic = ('io_torn_pages_protection = atomic_writes');
push @atomic, "shared_preload_libraries = 'test_points, test_doublewrite'",
  'test_doublewrite.pretend_atomic = on'
  if ($ENV{enable_injection_points} // '') eq 'yes';

use_server('ours');
settings(@atomic);
$node->start;
change_data();
ok(-f $node->data_dir . "/$MARKER", 'marker while in atomic_writes');
$node->stop;
settings();
use_server('stock');
$node->start;
data_ok(1000, 'stock goes on after a clean stop in atomic_writes');
change_data();
$node->stop;

use_server('ours');
settings(@atomic);
$node->start;
data_ok(1000, 'and we after it');
change_data();
$node->stop('immediate');
settings();
use_server('stock');
ok(!$node->start(fail_ok => 1),
	'stock does not start on a crash in atomic_writes');
use_server('ours');
settings(@atomic);
$node->start;
data_ok(1000, 'but we do');
$node->stop;

# ---------------------------------------------------------------------
# Modules that were built for stock
# ---------------------------------------------------------------------

($stdout) = run_command([ "$stock_bin/pg_config", '--pkglibdir' ]);
my $stock_lib = $stdout;
my $copies = PostgreSQL::Test::Utils::tempdir;
my @extensions =
  grep { -f "$stock_lib/$_.so" }
  qw(pageinspect pg_buffercache pg_stat_statements pg_visibility
  pg_walinspect pg_freespacemap pgstattuple pg_prewarm bloom);

SKIP:
{
	skip "no modules in $stock_lib", 1 if !@extensions;

	copy("$stock_lib/$_.so", "$copies/$_.so")
	  or die "copy of $_: $!"
	  for (@extensions, 'amcheck');

	use_server('ours');
	settings(
		'io_torn_pages_protection = double_writes',
		"dynamic_library_path = '$copies'",
		(grep { $_ eq 'pg_stat_statements' } @extensions)
		? "shared_preload_libraries = '$copies/pg_stat_statements'"
		: ());
	$node->start;

	my %query = (
		pageinspect =>
		  q(SELECT count(*) > 0 FROM heap_page_items(get_raw_page('t', 0))),
		pg_buffercache => q(SELECT count(*) = 128 FROM pg_buffercache),
		pg_stat_statements => q(SELECT count(*) > 0 FROM pg_stat_statements),
		pg_visibility => q(SELECT count(*) > 0 FROM pg_visibility('t')),
		pg_walinspect => q(SELECT count(*) > 0 FROM pg_get_wal_records_info(
			(SELECT redo_lsn FROM pg_control_checkpoint()),
			pg_current_wal_flush_lsn())),
		pg_freespacemap => q(SELECT count(*) > 0 FROM pg_freespace('t')),
		pgstattuple => q(SELECT tuple_count = 1000 FROM pgstattuple('t')),
		pg_prewarm => q(SELECT pg_prewarm('t') > 0),
		bloom => q(CREATE INDEX ON t USING bloom (b);
			SET enable_seqscan = off;
			SELECT count(*) >= 0 FROM t WHERE b = 1));

	for my $ext (@extensions)
	{
		is( $node->safe_psql(
				'postgres',
				"SET client_min_messages = error;"
				  . "CREATE EXTENSION IF NOT EXISTS $ext; $query{$ext};"),
			't',
			"$ext built for stock works here");
		like(
			$node->safe_psql(
				'postgres',
				"LOAD '$ext'; SELECT pg_read_file('/proc/self/maps');"),
			qr/\Q$copies\E\/$ext\.so/,
			"$ext: it was stock's file");
	}
	data_ok(1000, 'amcheck built for stock');

	# whatever else there is must at least load
	my @failed;
	my @modules = glob("$stock_lib/*.so");
	for my $so (@modules)
	{
		# a part of others, or only loadable as a replacement of ours
		next if $so =~ /libpqwalreceiver|regress/;
		my $ret = $node->psql(
			'postgres', "LOAD '$so'",
			stderr => \my $stderr,
			on_error_stop => 1);
		push @failed, "$so: $stderr"
		  if $ret != 0
		  && $stderr !~
		  /shared_preload_libraries|could not be loaded because|must be loaded/;
	}
	is("@failed", '', 'all of ' . scalar(@modules) . ' modules load');
	$node->stop;
}

done_testing();
