
# Copyright (c) 2025, PostgreSQL Global Development Group

# A server that restarts after a crash cannot recover, or is stopped before redo begins: the
# postmaster exits, and does not wait for ever.

use strict;
use warnings FATAL => 'all';

use Fcntl qw(O_NONBLOCK O_WRONLY);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

sub is_gone
{
	my ($cluster) = @_;
	my $pidfile = $cluster->data_dir . '/postmaster.pid';

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 unless -e $pidfile;
		usleep(100_000);
	}
	return 0;
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
restart_after_crash = on
});
$node->start;
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
unlink(glob($node->data_dir . '/pg_wal/0*'));
kill 'KILL', $pid;
$node->wait_for_log(qr/shutting down due to startup process failure/);
ok(is_gone($node), 'no recovery: the postmaster has exited');
eval { $session->quit };

$node->{_pid} = undef;

# A fast stop that comes while the server restarts after a crash, before redo begins: children
# that have been started since are stopped as well.  The startup process is held by a pipe.
SKIP:
{
	skip 'no named pipes', 2 if $windows_os;

	my $stopped = PostgreSQL::Test::Cluster->new('stopped');
	$stopped->init;
	$stopped->append_conf('postgresql.conf', 'restart_after_crash = on');
	$stopped->start;
	$stopped->safe_psql('postgres', 'CHECKPOINT');
	my $file = $stopped->data_dir . '/pg_logical/replorigin_checkpoint';
	my $content = slurp_file($file);
	unlink($file) or die "could not remove $file: $!";
	POSIX::mkfifo($file, 0600) or die "could not make $file: $!";
	my $client = $stopped->background_psql('postgres', on_error_stop => 0);
	$pid = $client->query('SELECT pg_backend_pid()');
	kill 'KILL', $pid;

	# it reads from the pipe, and goes on when there is something in it
	my $pipe;
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if sysopen($pipe, $file, O_WRONLY | O_NONBLOCK);
		usleep(100_000);
	}
	die 'the startup process does not come to the pipe'
	  unless defined fileno($pipe);
	system_or_bail(
		'pg_ctl', '--no-wait',
		'--pgdata' => $stopped->data_dir,
		'--mode' => 'fast',
		'stop');
	$stopped->wait_for_log(qr/received fast shutdown request/);
	unlink($file) or die "could not remove $file: $!";
	append_to_file($file, $content);
	syswrite($pipe, $content) // die "could not write to the pipe: $!";
	close($pipe);
	ok(is_gone($stopped),
		'a stop while the server restarts after a crash: it ends');
	eval { $client->quit };
	$stopped->{_pid} = undef;
	$stopped->start;
	is($stopped->safe_psql('postgres', 'SELECT 1'),
		'1', '... and starts again');
	$stopped->stop;
}

done_testing();
