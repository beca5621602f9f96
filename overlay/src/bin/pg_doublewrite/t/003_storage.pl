
# Copyright (c) 2025, PostgreSQL Global Development Group

# What is said about storage: each place of a cluster, no more than the kernel
# says, and nothing left behind.

use strict;
use warnings FATAL => 'all';

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
my $tablespace = PostgreSQL::Test::Utils::tempdir();

$node->init;
$node->start;
$node->safe_psql('postgres',
	"CREATE TABLESPACE elsewhere LOCATION '$tablespace'");
my $oid = $node->safe_psql('postgres',
	"SELECT oid FROM pg_tablespace WHERE spcname = 'elsewhere'");

# in an order of ours, as that of a directory may be another one when files have come and gone
sub listed
{
	return map {
		my $dir = $_;
		map { "$dir/$_" } sort(slurp_dir($dir))
	} ($node->data_dir . '/base', $tablespace);
}

my @before = listed();
my ($out, $err) =
  run_command([ 'pg_doublewrite', 'storage', '--json', $node->data_dir ]);
my $said = decode_json($out);
my %places = map { $_->{name} => $_ } @{ $said->{places} };

is($err, '', 'no complaints');
is($said->{page_size}, 8192, 'page size');
foreach my $name (
	qw(pg_default pg_global),
	"tablespace $oid",
	'double-write log', 'WAL')
{
	my $place = $places{$name};

	ok(defined $place, "$name is there") or next;
	ok(-d $place->{real_path}, '... with its path');
	ok(!$place->{ordinary_page_writes_promised}, '... and promises nothing');
	like($place->{atomic_page_writes},
		qr/^(?:yes|no|unknown)$/, '... or what the kernel says');
	isnt($place->{atomic_page_writes}, 'yes', '... which may be nothing')
	  if !defined $place->{file_atomic_write_max};

	my $measured =
	  defined $place->{same_file_system_as}
	  ? $places{ $place->{same_file_system_as} }
	  : $place;
	foreach my $cost (qw(fdatasync_page fsync_page fdatasync_batch))
	{
		cmp_ok($measured->{$cost}{count}, '>', 0, "... $cost was measured");
		cmp_ok(
			$measured->{$cost}{median_us},
			'<=',
			$measured->{$cost}{max_us},
			'... and makes sense');
	}
}
is(realpath($places{"tablespace $oid"}{real_path}),
	realpath($tablespace), 'tablespace is looked at where it is');
is_deeply([ listed() ], \@before, 'nothing is left behind');

command_like(
	[ 'pg_doublewrite', 'storage', '--no-sync-test', $node->data_dir ],
	qr/pg_default \(.*nothing is promised; a crash may tear them.*What cannot be known/s,
	'for people');
unlike(
	(run_command([ 'pg_doublewrite', 'storage', '-N', $node->data_dir ]))[0],
	qr/fsync/,
	'no measurement if not wanted');
# Numbers in JSON have a point, whatever people use where the program is run.
SKIP:
{
	my $locales = PostgreSQL::Test::Utils::tempdir();

	skip 'cannot make a locale with a decimal comma',
	  2
	  if system_log('localedef', '-i', 'de_DE', '-f', 'UTF-8',
		"$locales/de_DE.UTF-8") != 0;
	local %ENV = (%ENV, LOCPATH => $locales, LC_ALL => 'de_DE.UTF-8');
	($out) = run_command([ 'locale', 'decimal_point' ]);
	is($out, ',', 'locale has a decimal comma');
	($out) =
	  run_command([ 'pg_doublewrite', 'storage', '--json', $node->data_dir ]);
	ok(eval { decode_json($out) }, 'JSON is valid there') or diag $@;
}

command_fails_like(
	[ 'pg_doublewrite', 'storage', $tablespace ],
	qr/is not a data directory/,
	'must be a data directory');

$node->stop;
done_testing();

sub realpath
{
	my ($path) = @_;

	require Cwd;
	return Cwd::realpath($path);
}
