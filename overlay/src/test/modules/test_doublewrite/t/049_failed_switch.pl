
# Copyright (c) 2025, PostgreSQL Global Development Group

# Switches of the mode that fail, or come when the server has been stopped, and those
# of a recovery.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Node;
use DoubleWrite::Workload;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';
my $SETTING = 'io_torn_pages_protection';
my $armed = 'SELECT armed FROM dw_state()';
my $disarmed = 'SELECT NOT armed FROM dw_state()';

my ($node, $offset, $receiver);

# Whatever happens to the test, no process is left behind that has been stopped.
END
{
	local $?;
	$receiver->signal('KILL') if defined $receiver;
}

# ---------------------------------------------------------------------
# A server that is stopped, and sends what is left of WAL, arms nothing (R12)
# ---------------------------------------------------------------------

SKIP:
{
	skip 'there are no signals that stop processes', 8 if $windows_os;

	$node = dw_new_node(
		'sending',
		init => { allows_streaming => 1 },
		conf => "wal_sender_timeout = 0\nlog_min_messages = notice\n");
	$node->start;
	dw_extensions($node);
	dw_workload_setup($node);

	my $archive = PostgreSQL::Test::Utils::tempdir('archive');
	$receiver = IPC::Run::start(
		[
			$node->installed_command('pg_receivewal'),
			'--directory' => $archive,
			'--dbname' => $node->connstr,
			'--no-loop'
		]);
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'"
	) or die 'timed out waiting for pg_receivewal';

	# It gets the last record, and does not say so: the server waits for that.
	$receiver->signal('STOP');
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('doublewrite-update-mode', 'notice')"
	);
	$offset = -s $node->logfile;
	kill('TERM', $node->{_pid});
	watchdog_until(
		'the server has been stopped',
		sub {
			my ($stdout) = run_command([ 'pg_controldata', $node->data_dir ]);

			return $stdout =~ /cluster state: +shut down$/m
			  && !-e $node->data_dir . "/$MARKER";
		});
	kill('HUP', $node->{_pid});
	$node->wait_for_log(
		qr/notice triggered for injection point doublewrite-update-mode/,
		$offset);
	ok(kill(0, $node->{_pid}), 'the server waits for pg_receivewal');

	$receiver->signal('CONT');
	dw_wait_for_exit($node);
	$receiver->finish;
	$receiver = undef;
	ok(!-e $node->data_dir . "/$MARKER",
		'no marker after a reload of a stopped server');
	unlike(
		slurp_file($node->logfile, $offset),
		qr/torn page protection has switched/,
		'it has not switched');
	$offset = -s $node->logfile;
	$node->start;
	unlike(
		slurp_file($node->logfile, $offset),
		qr/was not properly shut down/,
		'the stop was clean');
	dw_check_stopped($node);
}

# ---------------------------------------------------------------------
# A switch that fails keeps the checkpointer from nothing else (R11)
# ---------------------------------------------------------------------

sub switch_to
{
	my ($mode) = @_;

	$offset = -s $node->logfile;
	$node->adjust_conf('postgresql.conf', $SETTING, $mode);
	$node->reload;
	return;
}

sub count_log
{
	my ($pattern) = @_;

	return () = slurp_file($node->logfile, $offset) =~ /$pattern/g;
}

sub checkpoint_passes
{
	my ($what) = @_;

	$node->safe_psql('postgres', 'UPDATE accounts SET filler = filler');
	is($node->psql('postgres', 'CHECKPOINT'), 0,
		"$what: a checkpoint passes");
	return;
}

$node = dw_new_node('failing', mode => 'full_pages');
$node->start;
dw_extensions($node);
dw_workload_setup($node);

$node->safe_psql('postgres',
	"SELECT points_fail_at('doublewrite-create-segment', 'ENOSPC', 1, 1000000)"
);
switch_to('double_writes');
$node->wait_for_log(qr/ERROR: .*could not create the double-write log/,
	$offset);
checkpoint_passes('the log cannot be created');
is($node->safe_psql('postgres', $armed), 'f', '... and images go on');
is(count_log('could not create the double-write log'),
	1, '... and it is left at that');
$node->safe_psql('postgres',
	"SELECT points_clear('doublewrite-create-segment')");
switch_to('double_writes');
ok($node->poll_query_until('postgres', $armed), '... until the next reload');

# Images had begun, which end, and may begin again: that is what counts then. (R10)
sub switch_off_fails
{
	$node->safe_psql('postgres',
		"SELECT points_fail_at('doublewrite-switching-off', 'EIO', 1, 1000000)"
	);
	switch_to('off');
	$node->wait_for_log(qr/ERROR: .*doublewrite-switching-off/, $offset);
	return;
}

switch_to('full_pages');
$node->poll_query_until('postgres',
	"SELECT disarm_after <> '0/0' FROM dw_state()")
  or die 'timed out waiting for the switch';
switch_off_fails();
is($node->safe_psql('postgres', 'SELECT disarm_after FROM dw_state()'),
	'0/0', 'no checkpoint disarms for images of before');
checkpoint_passes('protection cannot be switched off');
is($node->safe_psql('postgres', $armed), 't', '... nor does that one');
$node->safe_psql('postgres',
	"SELECT points_clear('doublewrite-switching-off')");
ok($node->poll_query_until('postgres', $disarmed),
	'... which is tried again');

# Nor does it keep the server from a stop, or from the next switch.
switch_to('double_writes');
$node->poll_query_until('postgres', $armed) or die 'timed out';
switch_off_fails();
switch_to('double_writes');
$node->safe_psql('postgres',
	"SELECT points_clear('doublewrite-switching-off')");
switch_to('off');
ok( $node->poll_query_until('postgres', $disarmed),
	'switched off after a change of mind');
switch_to('double_writes');
$node->poll_query_until('postgres', $armed) or die 'timed out';
switch_off_fails();
$node->stop;
ok(!-e $node->data_dir . "/$MARKER",
	'stopped while protection cannot be switched off');
$node->start;

# The log is in use while there is a marker, or the next start would not find it up to date.
SKIP:
{
	skip 'nothing keeps us from removing files', 10 if $windows_os || $> == 0;

	foreach my $mode ('off', 'full_pages')
	{
		switch_to('double_writes');
		$node->poll_query_until('postgres', $armed) or die 'timed out';
		chmod(0500, $node->data_dir) or die "could not chmod: $!";
		switch_to($mode);
		$node->safe_psql('postgres', 'CHECKPOINT') if $mode eq 'full_pages';
		$node->wait_for_log(qr/could not remove file "$MARKER"/, $offset);
		checkpoint_passes("$mode: the marker cannot be removed");
		is($node->safe_psql('postgres', $armed),
			't', '... and the log stays in use');
		kill('QUIT', $node->{_pid});
		chmod(0700, $node->data_dir) or die "could not chmod: $!";
		dw_wait_for_exit($node);
		ok(dw_poll_start($node), '... so the server starts after a crash');
		$node->safe_psql('postgres', 'CHECKPOINT');
		ok( $node->poll_query_until('postgres', $disarmed)
			  && !-e $node->data_dir . "/$MARKER",
			'... and it is removed then');
	}

	# A stop leaves it to the next one, with a log that fits the data.
	switch_to('double_writes');
	$node->poll_query_until('postgres', $armed) or die 'timed out';
	chmod(0500, $node->data_dir) or die "could not chmod: $!";
	$offset = -s $node->logfile;
	kill('INT', $node->{_pid});
	$node->wait_for_log(qr/could not remove file "$MARKER"/, $offset);
	$node->wait_for_log(qr/database system is shut down/, $offset);
	chmod(0700, $node->data_dir) or die "could not chmod: $!";
	dw_wait_for_exit($node);
	ok(-e $node->data_dir . "/$MARKER", 'a marker is left by a stop');
	ok(dw_poll_start($node), '... and the server starts');
}
dw_check_stopped($node);

# ---------------------------------------------------------------------
# A recovery that would use the log by itself, as WAL lacks images, goes on if it
# cannot, as stock does (R10)
# ---------------------------------------------------------------------

my $USES =
  'using double writes because the WAL being replayed lacks full-page images';
my $CANNOT =
  'pages are not protected because the WAL being replayed lacks full-page images';
my $update = 'UPDATE accounts SET filler = filler';

# A file in place of the directory, or the directory again
sub spoil
{
	my $dir = $node->data_dir . '/pg_doublewrite';

	rename($dir, "$dir.away") or die "could not rename: $!";
	append_to_file($dir, '');
	return;
}

sub mend
{
	my $dir = $node->data_dir . '/pg_doublewrite';

	unlink($dir) or die "could not remove \"$dir\": $!";
	rename("$dir.away", $dir) or die "could not rename: $!";
	return;
}

# Redo writes pages in one case; in the other these wait for sessions.
foreach my $instant ('off', 'on')
{
	$node = dw_new_node("recovery_$instant", mode => 'off');
	$node->start;
	dw_workload_setup($node);
	dw_workload_start($node, transactions => 100);
	dw_workload_finish($node);
	$node->stop('immediate');
	$node->adjust_conf('postgresql.conf', $SETTING, 'full_pages');
	$node->append_conf('postgresql.conf', "instant_recovery = $instant\n");
	spoil();
	$offset = -s $node->logfile;
	$node->start;
	is(count_log($CANNOT), 1,
		"instant_recovery = $instant: crash recovery goes on without the log"
	);
	like(
		slurp_file($node->logfile, $offset),
		qr/DETAIL: .*"pg_doublewrite".*checkpoint complete.*ready to accept connections/s,
		'... with a checkpoint before clients get in');
	is($node->safe_psql('postgres', $armed), 'f', '... and none later');
	mend();
	dw_check($node);
}

{
	my $primary = dw_new_node('primary', init => { allows_streaming => 1 });
	$primary->start;
	dw_workload_setup($primary);
	$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);
	$node = PostgreSQL::Test::Cluster->new('standby');
	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->adjust_conf('postgresql.conf', $SETTING, 'full_pages');
	$node->append_conf(
		'postgresql.conf', q{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
});
	spoil();
	$node->start;

	# only the checkpointer writes pages there
	my $replay = sub {
		$offset = -s $node->logfile;
		$primary->safe_psql('postgres', "$update; CHECKPOINT");
		$primary->wait_for_replay_catchup($node);
	};
	$replay->();
	is($node->psql('postgres', 'CHECKPOINT'),
		0, 'a restartpoint passes without the log');
	is(count_log($CANNOT), 1, '... and says so');
	$replay->();
	$node->stop;
	is(count_log($CANNOT), 1, 'so does the one of a stop');
	is(count_log('FATAL:  pages|abnormal|restored'), 0, '... which is clean');

	$node->start;
	$replay->();
	foreach my $turn (1, 2)
	{
		$node->safe_psql('postgres',
			q{SELECT dw_evict('history'), dw_evict('accounts'), dw_flush_batch()}
		);
	}
	is(count_log($CANNOT), 1, 'not each batch tries it again');
	mend();
	$replay->();
	$node->reload;
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT armed FROM dw_evict('accounts'), dw_flush_batch(), dw_state()}
		),
		'a reload does');
	is(count_log($USES), 1, '... and says so');
	$primary->wait_for_replay_catchup($node);
	is(dw_contents($node), dw_contents($primary), 'same data');
	$node->stop;
	$primary->stop;
}

done_testing();
