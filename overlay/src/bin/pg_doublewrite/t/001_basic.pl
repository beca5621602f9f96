
# Copyright (c) 2025, PostgreSQL Global Development Group

# Options, and the state of clusters that did not crash.

use strict;
use warnings FATAL => 'all';

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

program_help_ok('pg_doublewrite');
program_version_ok('pg_doublewrite');
program_options_handling_ok('pg_doublewrite');

delete local $ENV{PGDATA};
command_fails_like(
	['pg_doublewrite'],
	qr/no data directory specified/,
	'needs a data directory');
command_fails_like(
	[ 'pg_doublewrite', 'state', 'a', 'b' ],
	qr/too many command-line arguments/,
	'only one data directory');
command_fails_like(
	[ 'pg_doublewrite', '--pgdata' => 'a', '--log-directory' => 'b' ],
	qr/cannot specify both/,
	'data directory or log directory');
command_fails_like(
	[ 'pg_doublewrite', 'dry-run', '--log-directory' => 'b' ],
	qr/command "dry-run" needs a data directory/,
	'dry run needs a data directory');
command_fails_like(
	[ 'pg_doublewrite', 'state', '/no/such/directory' ],
	qr/could not change directory/,
	'data directory must exist');
command_fails_like(
	[ 'pg_doublewrite', 'storage', '--seconds' => '0', 'a' ],
	qr/must be in range 1\.\.60/,
	'length of measurements is bounded');

sub state_of
{
	my ($node, @args) = @_;
	my ($out, $err) =
	  run_command(
		[ 'pg_doublewrite', 'list', '--json', @args, $node->data_dir ]);

	return decode_json($out);
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf',
	"io_torn_pages_protection = double_writes\nautovacuum = off");

# never started
my $state = state_of($node);
is($state->{state}{verdict}, 'nothing', 'new cluster: nothing to restore');
is($state->{state}{segments}, 0, '... as there are no segments');
ok(!$state->{state}{log_in_use}, '... nor is a log in use');
command_like(
	[ 'pg_doublewrite', $node->data_dir ],
	qr/cluster state: +shut down\n.*in use \(marker present\): +no\n.*Verdict: +a server would have nothing to restore/s,
	'state of a new cluster for people');

# running
$node->start;
$node->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 10000) i; CHECKPOINT; UPDATE t SET i = i + 1; CHECKPOINT'
);
$state = state_of($node);
ok($state->{state}{log_in_use}, 'running server: log is in use');
cmp_ok($state->{state}{intact_batches}, '>', 0, '... and has batches');
is($state->{state}{server_pid}, $node->{_pid}, '... and the server is seen');
my $sysid = $node->safe_psql('postgres',
	'SELECT system_identifier FROM pg_control_system()');
is($state->{state}{system_identifier}, $sysid, '... and its identifier');
command_checks_all(
	[ 'pg_doublewrite', 'check', $node->data_dir ],
	0,
	[qr/Verdict: /],
	[qr/warning: a server seems to be running/],
	'check of a running server warns');
command_checks_all(
	[ 'pg_doublewrite', 'dry-run', $node->data_dir ],
	1,
	[qr/^$/],
	[qr/error: a server seems to be running.*hint: .*--force/s],
	'dry run of a running server is refused');

# pages by batch and by file
my $written = $node->safe_psql('postgres',
	"SELECT pg_switch_wal(); SELECT pg_logical_emit_message(true, 'test', 'm')"
  )
  && $node->safe_psql('postgres',
	"SELECT pg_current_wal_flush_lsn() - '0/0'");
$node->stop('immediate');
$state = state_of($node, '--pages');
my $copies = 0;
foreach my $batch (@{ $state->{batches} })
{
	is(scalar(@{ $batch->{pages} }),
		$batch->{page_count}, "batch $batch->{batch} lists its pages");
	$copies += $batch->{page_count} if $batch->{status} eq 'live';
}
is($copies, $state->{state}{live_copies},
	'live batches hold the live copies');
my $pages = 0;
$pages += $_->{pages} foreach @{ $state->{relations} };
is($pages, $state->{state}{live_pages}, 'pages by file add up');

# what a start would have to do
is($state->{state}{pages_to_restore}, $pages, 'pages to restore');
cmp_ok(
	$state->{state}{files_to_restore},
	'>=',
	scalar(@{ $state->{relations} }),
	'... and their files');
cmp_ok($state->{state}{files_to_restore},
	'<=', $pages, '... which have some each');
my ($redo_high, $redo_low) = split(/\//, $state->{state}{redo_location});
my $redo = hex($redo_high) * 2**32 + hex($redo_low);
my $wal_end = $redo + $state->{state}{wal_to_replay_bytes};
is($wal_end % (16 * 1024 * 1024), 0, 'WAL is counted by segments');
cmp_ok($wal_end, '>', $written, '... all that was written');
cmp_ok($wal_end, '<=', $written + 16 * 1024 * 1024, '... and no more');
command_like(
	[ 'pg_doublewrite', $node->data_dir ],
	qr/start after a crash would: +replay up to \d+ kB of WAL, restore $pages pages in \d+ files\n/,
	'... for people');

# the log alone
command_like(
	[
		'pg_doublewrite', 'check',
		'--log-directory' => $node->data_dir . '/pg_doublewrite'
	],
	qr/Verdict: what a server would do is not known/,
	'log without a data directory');

# a backup label makes the server discard the log
my $marker = $node->data_dir . '/backup_label';
rename($marker, "$marker.away") or die "could not rename: $!";
append_to_file($marker,
	"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nCHECKPOINT LOCATION: 0/2000060\n"
);
is(state_of($node)->{state}{verdict},
	'discard', 'log beside the label of a backup');
rename("$marker.away", $marker) or die "could not rename: $!";

$node->start;
$node->stop;
$state = state_of($node);
is($state->{state}{verdict}, 'nothing', 'clean stop: nothing to restore');
is($state->{state}{segments}, 0, '... as the log is gone');
ok(!$state->{state}{log_in_use}, '... and not in use');
ok(!defined $state->{state}{wal_to_replay_bytes}, '... and no WAL to replay');

# a directory elsewhere
my $elsewhere = PostgreSQL::Test::Utils::tempdir();
rmdir($node->data_dir . '/pg_doublewrite') or die "could not rmdir: $!";
symlink($elsewhere, $node->data_dir . '/pg_doublewrite')
  or die "could not symlink: $!";
is(state_of($node)->{state}{link_target},
	$elsewhere, 'target of a link is shown');

# in use by another data directory, which matters if ours is to be used
my $owner = "System identifier: $sysid\nData directory: /srv/other\n";
append_to_file("$elsewhere/owner", $owner);
chmod(0700, $elsewhere);
$state = state_of($node);
is($state->{state}{verdict}, 'refuse', 'log of another data directory');
like($state->{state}{reason}, qr{"/srv/other"}, '... which is named');
like(
	$state->{state}{hint},
	qr/full-page images .* leaves the log alone/,
	'... and where it does not matter');
$node->append_conf('postgresql.conf',
	'io_torn_pages_protection = full_pages');
$node->start;
$node->stop;
is(slurp_file("$elsewhere/owner"), $owner, '... as the server then does');

unlink($node->data_dir . '/pg_doublewrite');
$state = state_of($node);
is($state->{state}{verdict}, 'nothing', 'no directory, not in use');
like($state->{state}{reason}, qr{no log directory}, '... is explained');
like(
	$state->{state}{hint},
	qr/creates the directory/,
	'... with what a server does');

# JSON is in UTF-8, whatever paths are in
symlink("/nowhere/caf\xe9\xc3\xa9", $node->data_dir . '/pg_doublewrite')
  or die "could not symlink: $!";
is(state_of($node)->{state}{link_target},
	"/nowhere/caf\x{fffd}\x{e9}", 'path that is not UTF-8');
unlink($node->data_dir . '/pg_doublewrite');

# output that cannot be written
SKIP:
{
	skip 'there is no /dev/full', 2 if !-e '/dev/full';
	foreach my $command ('state', 'storage --no-sync-test')
	{
		isnt(
			system(
					"pg_doublewrite $command '"
				  . $node->data_dir
				  . "' > /dev/full"),
			0,
			"$command fails if its output cannot be written");
	}
}

# a damaged pg_control
my $control = $node->data_dir . '/global/pg_control';
open my $fh, '+<:raw', $control or die "could not open: $!";
seek($fh, 100, 0);
print $fh "damage";
close $fh;
command_fails_like(
	[ 'pg_doublewrite', 'state', $node->data_dir ],
	qr/appears to be corrupt/,
	"state with a damaged pg_control");

done_testing();
