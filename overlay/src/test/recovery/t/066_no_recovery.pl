
# Copyright (c) 2026, PostgreSQL Global Development Group

# A server that restarts after a crash cannot recover: the postmaster exits, and does not
# wait for ever.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

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
my $pidfile = $node->data_dir . '/postmaster.pid';
foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last unless -e $pidfile;
	usleep(100_000);
}
ok(!-e $pidfile, 'no recovery: the postmaster has exited');
eval { $session->quit };

$node->{_pid} = undef;
done_testing();
