
# Copyright (c) 2025, PostgreSQL Global Development Group

# A standby has a page that cannot be written.  It can be promoted even so, as in stock:
# nothing has to be home for that but init forks, of which copies are made.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

foreach my $mode (qw(full_pages double_writes))
{
	my $primary = dw_quiet_node(
		"primary_$mode",
		mode => $mode,
		init => { allows_streaming => 1 },
		conf => "allow_in_place_tablespaces = on\n");
	$primary->safe_psql('postgres', q{CREATE TABLESPACE bad LOCATION ''});
	$primary->safe_psql('postgres',
		'CREATE TABLE t TABLESPACE bad AS SELECT 1 AS v');
	$primary->backup('b');
	my $standby = PostgreSQL::Test::Cluster->new("standby_$mode");
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->start;

	$primary->safe_psql(
		'postgres', q{
		UPDATE t SET v = 2;
		CREATE UNLOGGED TABLE u (i int PRIMARY KEY)});
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres',
		q{SELECT dw_fail_homes_in(oid, 'EIO') FROM pg_tablespace WHERE spcname = 'bad'}
	);
	is($standby->safe_psql('postgres', q{SELECT dw_evict('t') > 0}),
		't', "$mode: a page is staged");
	my ($ret, undef, $error) =
	  $standby->psql('postgres', 'SELECT dw_drain()');
	like(
		$error,
		qr/could not write blocks/,
		"$mode: ... and cannot be written");

	$standby->promote;
	is( $standby->safe_psql(
			'postgres', 'INSERT INTO u VALUES (1) RETURNING i'),
		'1',
		"$mode: the standby is promoted, an unlogged relation is reset");
	is($standby->safe_psql('postgres', 'SELECT v FROM t'),
		'2', "$mode: the page can be read");
	$standby->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-home-write')});
	is($standby->safe_psql('postgres', 'CHECKPOINT; SELECT v FROM t'),
		'2', "$mode: ... and written in the end");
	$standby->stop;
	$primary->stop;
}

done_testing();
