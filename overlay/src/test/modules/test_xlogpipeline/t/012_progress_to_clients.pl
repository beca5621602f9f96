
# Copyright (c) 2025, PostgreSQL Global Development Group

# Which clients are told about the progress of crash recovery when they are refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

if (!$use_unix_sockets)
{
	plan skip_all => 'needs Unix-domain sockets';
}

my $primary = xlp_primary('primary');
xlp_workload($primary, 1);
xlp_crash($primary, 'crashed');

# Ports are reserved among the tests of one build.  An address of this test alone, where
# all of a network are there, keeps those of others out of the way.
my $address =
  $^O eq 'linux'
  ? join('.', 127, 1 + ($$ >> 16 & 127), $$ >> 8 & 255, $$ & 255)
  : '127.0.0.1';

foreach my $case ([ 'local', 1, 0 ], [ 'on', 1, 1 ], [ 'off', 0, 0 ],
	[ undef, 1, 0 ])
{
	my ($setting, $local_told, $tcp_told) = @$case;
	my $name = $setting // 'default';
	my $node = PostgreSQL::Test::Cluster->new($name);

	# Redo is held when it has handed over a range, until the server is stopped.
	$node->init_from_backup($primary, 'crashed');
	$node->append_conf('postgresql.conf', xlp_conf('on'));
	$node->append_conf(
		'postgresql.conf', "
hot_standby = on
listen_addresses = '$address'
test_points.hold_at = 'xlogpipeline-engage'
");
	$node->append_conf('postgresql.conf',
		"show_recovery_progress = $setting\n")
	  if defined $setting;
	xlp_start_held($node, 'xlogpipeline-engage');

	my @clients = (
		[ 'socket', $node->host, $local_told ],
		[ 'TCP', $address, $tcp_told ]);
	foreach my $client (@clients)
	{
		my ($kind, $host, $told) = @$client;
		my $message = xlp_refusal($node, $host);
		like(
			$message,
			qr/the database system is not yet accepting connections/,
			"$name, $kind: refused");
		if ($told)
		{
			like(
				$message,
				qr/not been yet reached: \d+% of WAL replayed, \d+ MB left/,
				"$name, $kind: told about progress");
		}
		else
		{
			like(
				$message,
				qr/not been yet reached\.$/m,
				"$name, $kind: what stock tells");
			unlike($message, qr/%|MB/, "$name, $kind: and nothing else");
		}
	}

	$node->_update_pid(1);
	$node->stop('immediate');
	$node->clean_node;
}

done_testing();
