
# Copyright (c) 2025, PostgreSQL Global Development Group

# What is left of double writes when a cluster goes back to stock: all of it is
# listed, and when what is listed is gone, stock starts.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
my $data = $node->data_dir;

$node->init;
mkdir("$data/conf.d");
append_to_file("$data/conf.d/ours.conf",
	"Wal_Pipeline=off # ours\nwork_mem = 4MB\n");
append_to_file("$data/conf.d/none.conf.bak",
	"wal_pipeline_queue_size = 1MB\n");
append_to_file("$data/double_writes.conf",
	"double_write_buffer_size '64MB'\n#double_write_stage_size = 16\n");
$node->append_conf(
	'postgresql.conf', qq{
io_torn_pages_protection = double_writes
include_if_exists 'double_writes.conf'
include_if_exists = 'nowhere.conf'
include_dir 'conf.d'
checkpoint_timeout = '10 s'
});

$node->start;

sub left
{
	my ($status, $running) = @_;
	my ($out, $err) =
	  run_command([ 'pg_doublewrite', 'leave', '--json', $data ]);
	my $said = decode_json($out);

	is($? >> 8, $status, "exit status $status");
	is($err, '', '... without complaints');
	is($said->{server_running} ? 1 : 0, $running, '... the server is seen');
	return $said;
}

sub of_kind
{
	my ($said, $kind) = @_;
	return join("\n",
		sort map { "$_->{place}: $_->{name}: $_->{todo}" }
		grep { $_->{kind} eq $kind } @{ $said->{left} });
}

# The settings that it knows are those that stock does not.
my $stock = $ENV{PGDW_STOCK_BINDIR} // '';

sub described
{
	my ($postgres) = @_;
	my ($out, $err) = run_command([ $postgres, '--describe-config' ]);
	return map { (split(/\t/, $_))[0] => 1 } split(/\n/, $out);
}

SKIP:
{
	skip
	  'PGDW_STOCK_BINDIR does not name the programs of a stock PostgreSQL 18',
	  1
	  if !-x "$stock/postgres";
	my %theirs = described("$stock/postgres");
	my %all = described('postgres');
	my @only = sort grep { !$theirs{$_} } keys %all;
	my $file = "$data/all.conf";

	append_to_file($file, join('', map { "$_ = 1\n" } @only));
	my ($out, $err) = run_command(
		[
			'pg_doublewrite', 'leave', '--json',
			'--config-file' => $file,
			$data
		]);
	my @named =
	  grep { $_->{place} =~ /all\.conf/ } @{ decode_json($out)->{left} };
	is_deeply([ sort map { $_->{name} } @named ],
		\@only, 'knows all settings that stock does not');
	unlink($file);
}

$node->safe_psql(
	'postgres', q{
CREATE EXTENSION pg_doublewrite_stats;
CREATE DATABASE other;
CREATE DATABASE closed ALLOW_CONNECTIONS false;
CREATE ROLE "Ann's";
ALTER ROLE "Ann's" SET io_torn_pages_protection = full_pages;
ALTER ROLE "Ann's" IN DATABASE other SET io_torn_pages_protection = full_pages;
ALTER DATABASE other SET io_torn_pages_protection = full_pages;
ALTER ROLE ALL SET io_torn_pages_protection = full_pages;
ALTER ROLE ALL SET work_mem = '5MB';
GRANT SET, ALTER SYSTEM ON PARAMETER io_torn_pages_protection TO "Ann's" WITH GRANT OPTION;
GRANT SET ON PARAMETER io_torn_pages_protection, work_mem TO PUBLIC});
$node->safe_psql(
	'other', q{
CREATE EXTENSION pg_doublewrite_stats;
CREATE SCHEMA "S";
CREATE FUNCTION "S".f(int) RETURNS int LANGUAGE sql
	SET io_torn_pages_protection = full_pages SET work_mem = '5MB' RETURN 1;
CREATE PROCEDURE p() LANGUAGE sql SET Io_Torn_Pages_Protection = full_pages AS ''}
);

my $said = left(2, 1);
is( of_kind($said, 'extension'),
	"other: pg_doublewrite_stats: DROP EXTENSION pg_doublewrite_stats\n"
	  . 'postgres: pg_doublewrite_stats: DROP EXTENSION pg_doublewrite_stats',
	'extensions');
like(
	of_kind($said, 'function'),
	qr/^other: "S"\.f\(integer\): io_torn_pages_protection=full_pages: ALTER ROUTINE "S"\.f\(integer\) RESET io_torn_pages_protection\n.*p\(\).*$/i,
	'functions');
is( of_kind($said, 'role or database'),
	join(
		"\n",
		sort map { sprintf($_, 'io_torn_pages_protection') } (
			q{: io_torn_pages_protection=full_pages: ALTER ROLE ALL RESET %s},
			q{Ann's in other: io_torn_pages_protection=full_pages: ALTER ROLE "Ann's" IN DATABASE other RESET %s},
			q{Ann's: io_torn_pages_protection=full_pages: ALTER ROLE "Ann's" RESET %s},
			q{other: io_torn_pages_protection=full_pages: ALTER DATABASE other RESET %s}
		)),
	'roles and databases');
is( of_kind($said, 'privilege'),
	join(
		"\n",
		sort map {
			sprintf(
				"%s: %s: REVOKE ALL ON PARAMETER %2\$s FROM %3\$s CASCADE",
				@$_)
		} ( [ "Ann's", 'io_torn_pages_protection', q{"Ann's"} ],
			[ 'public', 'io_torn_pages_protection', 'PUBLIC' ])),
	'privileges');
like(
	of_kind($said, 'setting'),
	qr{conf\.d/ours\.conf:1: Wal_Pipeline: .*double_writes\.conf:1: double_write_buffer_size: .*postgresql\.conf:\d+: io_torn_pages_protection: remove the line.*postgresql\.conf:\d+: checkpoint_timeout = 10 s: set it to 30 seconds or more}s,
	'settings');
unlike(of_kind($said, 'setting'),
	qr/stage_size|queue_size/, '... but not those that are not in force');
like(of_kind($said, 'file'),
	qr/^pg_doublewrite: log directory: remove it once/m, 'files');

# What it cannot look into, it names.
is( of_kind($said, 'database'),
	'closed: cannot be looked into, as it allows no connections: allow connections to it, and look again',
	'a database without connections');
my $invalid =
  q{UPDATE pg_database SET datconnlimit = %d WHERE datname = 'other'};
$node->safe_psql('postgres', sprintf($invalid, -2));
$said = left(2, 1);
like(
	of_kind($said, 'database'),
	qr/^closed: [^\n]*\nother: invalid, [^\n]*: DROP DATABASE other$/,
	'an invalid database');
is( of_kind($said, 'extension'),
	'postgres: pg_doublewrite_stats: DROP EXTENSION pg_doublewrite_stats',
	'... is passed over');
$node->safe_psql('postgres', sprintf($invalid, -1));

# There need be no database postgres.
$node->safe_psql('template1', 'ALTER DATABASE postgres RENAME TO renamed');
like(
	of_kind(left(2, 1), 'extension'),
	qr/^renamed: pg_doublewrite_stats/m,
	'no database "postgres"');
$node->safe_psql('template1', 'ALTER DATABASE renamed RENAME TO postgres');
$said = left(2, 1);

# Do as told, database by database.
foreach
  my $one (grep { $_->{todo} =~ /^(?:ALTER|DROP|REVOKE)/ } @{ $said->{left} })
{
	my $db =
	  $one->{kind} =~ /^(?:extension|function)$/ ? $one->{place} : 'postgres';
	$node->safe_psql($db, $one->{todo});
}
$said = left(2, 1);
is( join(' ', sort keys %{ { map { $_->{kind} => 1 } @{ $said->{left} } } }),
	'database file setting',
	'what was made with SQL is gone');

# After a crash the log is needed.
$node->stop('immediate');
$said = left(2, 0);
like(
	of_kind($said, 'file'),
	qr/^backup_label: the log is in use: start this server/m,
	'after a crash: recover first');
like(
	of_kind($said, 'file'),
	qr/^pg_doublewrite: .* leave it until then$/m,
	'... and leave the log');
rename("$data/backup_label", "$data/backup_label.away")
  or die "could not rename: $!";
append_to_file("$data/backup_label", "DOUBLE");
like(
	of_kind(left(2, 0), 'file'),
	qr/^backup_label: neither the label of a backup nor/m,
	'what is left of the marker stops stock as well');
rename("$data/backup_label.away", "$data/backup_label")
  or die "could not rename: $!";
$node->start;
$node->stop;

$said = left(2, 0);
unlike(of_kind($said, 'file'),
	qr/backup_label/, 'after a clean stop there is no marker');
foreach my $one (grep { $_->{kind} eq 'setting' } @{ $said->{left} })
{
	my ($file, $line) = $one->{place} =~ /^(.*):(\d+)$/
	  or next;
	$file = "$data/$file" if $file !~ m{^/};
	my @lines = split(/\n/, slurp_file($file));

	$lines[ $line - 1 ] = "# $lines[$line - 1]";
	unlink($file);
	append_to_file($file, join("\n", @lines) . "\n");
}
$said = left(0, 0);
is(of_kind($said, 'setting'), '', 'no settings are left');
command_like(
	[ 'pg_doublewrite', 'leave', $data ],
	qr/^file pg_doublewrite: log directory; remove it\n.*Stock PostgreSQL would start\.\n/s,
	'the same as text');
rmtree("$data/pg_doublewrite");
unlike(of_kind(left(0, 0), 'file'), qr/^pg_doublewrite:/m, 'nor the log');

SKIP:
{
	skip
	  'PGDW_STOCK_BINDIR does not name the programs of a stock PostgreSQL 18',
	  2
	  if !-x "$stock/postgres";
	my @pg_ctl = ("$stock/pg_ctl", '--pgdata' => $data, '--wait');

	is(system_log(@pg_ctl, '--log' => $node->logfile, 'start'),
		0, 'stock starts');
	is(system_log(@pg_ctl, 'stop'), 0, '... and stops');
}

# A configuration file elsewhere, as Debian has it.
unlink("$data/postgresql.conf");
append_to_file("$data/../elsewhere.conf", "wal_pipeline_queue_size = 1MB\n");
unlink("$data/postmaster.opts");
command_fails_like(
	[ 'pg_doublewrite', 'leave', $data ],
	qr/could not open file "postgresql\.conf".*--config-file/s,
	'no configuration file');
append_to_file("$data/postmaster.opts",
	qq{postgres "-D" "/srv/wal_pipeline=on/data" "--config-file=$data/../elsewhere.conf"}
	  . qq{ "-c" "wal_pipeline_queue_size=1MB" "-cwal_pipeline=on" "-i"}
	  . qq{ "--double-write-stage-size=16MB" "--checkpoint-timeout=10"\n});
$said = left(2, 0);
is( join("\n", grep { /^postmaster/ } split(/\n/, of_kind($said, 'setting'))),
	join(
		"\n",
		map { "postmaster.opts: $_" } (
			'checkpoint_timeout = 10: set it to 30 seconds or more',
			'double_write_stage_size: start stock without it',
			'wal_pipeline: start stock without it',
			'wal_pipeline_queue_size: start stock without it')),
	'what the last command line had');
like(
	of_kind($said, 'setting'),
	qr/elsewhere\.conf:1: wal_pipeline_queue_size: remove the line/,
	'... and the file that it named');

done_testing();
