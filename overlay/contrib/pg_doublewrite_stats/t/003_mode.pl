
# Copyright (c) 2025, PostgreSQL Global Development Group

# Which mode protects pages, which one is asked for, and what ends a switch, as
# pg_double_write_mode tells it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
io_torn_pages_protection = full_pages
full_page_writes = on
checkpoint_timeout = 1h
autovacuum = off
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_doublewrite_stats');

# The checkpointer does one after the other: the last of it, with which all stays as it is,
# may not be there yet.
sub mode_is
{
	my ($expected, $test_name) = @_;

	ok( $node->poll_query_until(
			'postgres',
			'SELECT in_force, requested, switching, checkpoint_after IS NOT NULL, armed, images
			 FROM pg_double_write_mode',
			$expected),
		$test_name);
	return;
}

# Change a setting, and wait until it has been applied
sub request
{
	my ($requested, @settings) = @_;

	$node->adjust_conf('postgresql.conf', @$_) foreach @settings;
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT requested = '$requested' AND (armed OR requested <> 'double_writes') FROM pg_double_write_mode"
	) or die "$requested is not requested";
	return;
}

my $setting = 'io_torn_pages_protection';

mode_is('full_pages|full_pages|f|f|f|t', 'as it was started');
my $since =
  $node->safe_psql('postgres', 'SELECT since FROM pg_double_write_mode');

request('double_writes', [ $setting, 'double_writes' ]);
$node->poll_query_until('postgres',
	'SELECT NOT images FROM pg_double_write_mode')
  or die 'images do not end';
mode_is('double_writes|double_writes|f|f|t|f', 'double_writes at once');
is( $node->safe_psql(
		'postgres',
		"SELECT since > '$since' AND since < now() FROM pg_double_write_mode"
	),
	't',
	'... since then');

request('full_pages', [ $setting, 'full_pages' ]);
mode_is(
	'double_writes|full_pages|t|t|t|t',
	'full_pages is pending until a checkpoint');
$node->safe_psql('postgres', 'CHECKPOINT');
mode_is('full_pages|full_pages|f|f|f|t', '... that has completed');

request('off', [ 'full_page_writes', 'off' ]);
mode_is('off|off|f|f|f|f', 'full_page_writes = off is mode off');
request('full_pages', [ 'full_page_writes', 'on' ]);
mode_is('off|full_pages|t|t|f|t', 'leaving off takes a checkpoint');
request('off', [ $setting, 'off' ]);
mode_is('off|off|f|f|f|f', '... unless it is given up');
request('double_writes', [ $setting, 'double_writes' ]);
mode_is('off|double_writes|t|t|t|f', 'also for double_writes');
$node->safe_psql('postgres', 'CHECKPOINT');
mode_is('double_writes|double_writes|f|f|t|f', '... that has completed');

# What a session or a role has chosen is another matter.
$node->safe_psql('postgres',
	"CREATE ROLE images LOGIN SUPERUSER; ALTER ROLE images SET $setting = full_pages"
);
is( $node->safe_psql(
		'postgres',
		"SELECT current_setting('$setting'), in_force, requested FROM pg_double_write_mode",
		extra_params => [ '-U', 'images' ]),
	'full_pages|double_writes|double_writes',
	'the mode is that of the server');

# A log that cannot be used
$node->stop;
$node->adjust_conf('postgresql.conf', $setting, 'full_pages');
$node->start;
rename(
	$node->data_dir . '/pg_doublewrite',
	$node->data_dir . '/pg_doublewrite_away') or die "could not rename: $!";
append_to_file($node->data_dir . '/pg_doublewrite', 'in the way');
$node->adjust_conf('postgresql.conf', $setting, 'double_writes');
$node->reload;
$node->poll_query_until('postgres',
	q{SELECT requested = 'double_writes' FROM pg_double_write_mode})
  or die 'double_writes is not requested';
mode_is('full_pages|double_writes|t|f|f|t',
	'a switch that does not end by itself: the server log says why');

$node->adjust_conf('postgresql.conf', $setting, 'full_pages');
$node->stop;
done_testing();
