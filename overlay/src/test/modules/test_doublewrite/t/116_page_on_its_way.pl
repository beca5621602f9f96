
# Copyright (c) 2025, PostgreSQL Global Development Group

# A page that a standby gets from its primary has been damaged on its way, or is another
# one.  It is not used, neither by redo nor by pg_doublewrite.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use DoubleWrite::Node;
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog seconds => 600;
use Test::More;

my $BLOCK = 7;

my $place = PostgreSQL::Test::Utils::tempdir_short;
my $damage_file = "$place/damage";
my $old_page = "$place/old_page";

# What becomes of an answer: page, location, and location in the request
my %DAMAGES = (
	'a digit that differs' =>
	  sub { substr($_[0], 9000, 1) =~ tr/0-9a-f/1-9a-f0/ },
	'nothing but zeroes' => sub { $_[0] = '0' x 16384 },
	'half a page' => sub { $_[0] = substr($_[0], 0, 8192) },
	'an old page' => sub { @_[ 0, 1 ] = split(/ /, slurp_file($old_page)) },
	'a location before that of the page' => sub { $_[1] = $_[2] },
	'another block' => undef);

my $primary = dw_new_node(
	'primary',
	init => { allows_streaming => 1, extra => ['--data-checksums'] },
	conf => "wal_keep_size = 512MB\n");
$primary->start;
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE t (i int PRIMARY KEY, v int) WITH (fillfactor = 50);
	INSERT INTO t SELECT g, 0 FROM generate_series(1, 5000) g;
	CHECKPOINT;
});
my $file =
  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('t')");
$primary->backup('base');

# --- Between primary and standby: what it does stands in a file.

my $port = $primary->port;

sub damage
{
	my ($what) = @_;

	PostgreSQL::Test::Utils::append_to_file("$damage_file.new", $what);
	rename("$damage_file.new", $damage_file) or die $!;
	return;
}

# Pass on what comes from the client.
sub ask
{
	my ($bytes, $damage, $replayed) = @_;

	if ($bytes =~ m{READ_PAGE '\S+ (\S+) })
	{
		$$replayed = $1;
		my $other = $BLOCK + 1;
		$bytes =~ s{/$BLOCK }{/$other } if $damage eq 'another block';
	}
	return $bytes;
}

# Pass on a message of the server, with its damage if it has a page.
sub answer
{
	my ($message, $damage, $replayed) = @_;
	my ($type, undef, $count, $length) = unpack('a N n N', $message);

	return $message
	  if $type ne 'D'
	  || $count != 3
	  || $length != 16384
	  || !defined $DAMAGES{$damage};
	my @fields = unpack('x7 (N/a)*', $message);
	$DAMAGES{$damage}->($fields[0], $fields[1], $replayed);
	my $body = pack('n (N/a*)*', $count, @fields);
	return pack('a N', $type, 4 + length($body)) . $body;
}

sub serve
{
	my ($client) = @_;
	my $server =
	  IO::Socket::UNIX->new(Peer => $primary->host . "/.s.PGSQL.$port")
	  or return;
	my $select = IO::Select->new($client, $server);
	my $pending = '';
	my $replayed;

	while (1)
	{
		foreach my $socket ($select->can_read)
		{
			sysread($socket, my $bytes, 65536) or return;
			my $damage = slurp_file($damage_file);
			if ($socket == $client)
			{
				print $server ask($bytes, $damage, \$replayed);
				next;
			}
			$pending .= $bytes;
			while (length($pending) >= 5)
			{
				my $length = 1 + unpack('x N', $pending);
				last if length($pending) < $length;
				print $client answer(substr($pending, 0, $length, ''),
					$damage, $replayed);
			}
		}
	}
}

damage('none');
my $listener =
  IO::Socket::UNIX->new(Local => "$place/.s.PGSQL.$port", Listen => 10)
  or die $!;
chmod(0777, "$place/.s.PGSQL.$port") or die $!;
my $test = $$;
my $proxy = fork() // die $!;
if ($proxy == 0)
{
	local $SIG{CHLD} = 'IGNORE';
	my $select = IO::Select->new($listener);

	while (getppid() == $test)
	{
		next unless $select->can_read(1);
		my $client = $listener->accept or next;
		next if fork() != 0;
		eval { serve($client); };
		POSIX::_exit(0);
	}
	POSIX::_exit(0);
}
close($listener);
my $conninfo = "host=$place port=$port dbname=postgres";

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	"wal_retrieve_retry_interval = 100ms\n");
$standby->append_conf('postgresql.conf',
	"primary_conninfo = '$conninfo application_name=standby'\n");
$standby->start;

# The page rots while the standby is stopped.  Returns it.
sub rot
{
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$standby->stop;
	my $bad = read_block($standby, $file, 8192 * $BLOCK);
	unlink($old_page);
	PostgreSQL::Test::Utils::append_to_file($old_page,
		unpack('H*', $bad) . sprintf(' %X/%X', unpack('LL', $bad)));
	substr($bad, 4000, 300) = 'rot' x 100;
	write_block($standby, $file, 8192 * $BLOCK, $bad);
	return $bad;
}

sub same
{
	my ($name) = @_;
	my $sums = 'SELECT count(*), sum(v) FROM t';

	# The page may come later than the last record.
	ok( $standby->poll_query_until(
			'postgres', $sums, $primary->safe_psql('postgres', $sums)),
		$name);
	return;
}

my $COMPLAINT = qr/damaged on its way from the primary|unexpected answer/;

# --- Redo asks again until it gets the page, which is from its future.

rot();
damage('half a page');
$standby->start;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
$primary->wait_for_replay_catchup($standby);
my $walreceiver = $standby->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'});
kill('STOP', $walreceiver) or die;
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');

foreach my $what (sort keys %DAMAGES)
{
	damage($what);
	my $offset = -s $standby->logfile;
	# The first one may have been under way.
	ok( $standby->wait_for_log(
			qr/ERROR: .*$COMPLAINT.*ERROR: .*$COMPLAINT/s, $offset),
		"redo does not use $what");
}
damage('none');
kill('CONT', $walreceiver);
same('redo uses the page');

# --- pg_doublewrite leaves all as it is.

my $bad = rot();
my @command = (
	'pg_doublewrite', 'fetch-page',
	'--relation' => $file,
	'--block' => $BLOCK,
	'--source-server' => $conninfo,
	$standby->data_dir);
$primary->safe_psql('postgres', 'UPDATE t SET v = v + 1');
foreach my $what (sort keys %DAMAGES)
{
	damage($what);
	command_fails_like(\@command, $COMPLAINT, "pg_doublewrite refuses $what");
}
ok(read_block($standby, $file, 8192 * $BLOCK) eq $bad,
	'... and puts none in place');
damage('none');
command_ok(\@command, '... but the page');
$standby->start;
same('... which is right');

$_->stop foreach ($standby, $primary);
kill('TERM', $proxy);
waitpid($proxy, 0);

done_testing();
