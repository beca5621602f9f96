
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

PostgreSQL::Test::Watchdog - tests that hang end, and say which process waits for which

=head1 SYNOPSIS

  use PostgreSQL::Test::Watchdog;         # 600 seconds
  use PostgreSQL::Test::Watchdog seconds => 900;

=head1 DESCRIPTION

Nothing that a test waits for may be waited for without limit.  With this
module,

=over

=item *

C<psql>, C<safe_psql>, C<poll_query_until> and all that is made of them (such as
C<wait_for_catchup>) end after 240 seconds of time on the wall, unless the caller
names a C<timeout> of their own;

=item *

a process of its own watches the test, and ends it and its servers after the
number of seconds given;

=item *

in both cases a report of what all processes of all servers wait for goes into
the file F<hang_report> beside the log of the test.  Its first line says which
process holds what and which one waits for it.

=back

On slow machines, C<PGDW_TEST_SLOWNESS> multiplies all limits.

=cut

package PostgreSQL::Test::Watchdog;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter;
use File::Basename qw(basename dirname);
use IPC::Run;
use List::Util qw(max uniq);
use POSIX      qw(_exit);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Scalar::Util qw(looks_like_number);
use Test::More;
use Time::HiRes qw(sleep time);

our @ISA = ('Exporter');
our @EXPORT = qw(
  watchdog_fail
  watchdog_limits
  watchdog_until
  watchdog_wait_seconds
);

use constant {
	TEST_SECONDS => 600,
	WAIT_SECONDS => 240,

	# what a report may take, and a look at one server or process in it; the
	# debugger has much to read
	REPORT_SECONDS => 120,
	LOOK_SECONDS => 20,
	DEBUGGER_SECONDS => 60,
	LOG_LINES => 40,
};

my $slowness = $ENV{PGDW_TEST_SLOWNESS} || 1;
my $test_seconds = TEST_SECONDS * $slowness;
my $wait_seconds = WAIT_SECONDS * $slowness;
my $test_name = basename($0, '.pl');

# The watchdog lives until it reads the end of this pipe.  What comes before that
# are new limits for the test, each on a line.
my $lifeline;

=pod

=over

=item watchdog_wait_seconds()

How long to wait for anything.

=cut

sub watchdog_wait_seconds
{
	return $wait_seconds;
}

sub import
{
	my ($class, %params) = @_;

	$test_seconds = $params{seconds} * $slowness if defined $params{seconds};
	$class->export_to_level(1, $class, @EXPORT);
	return;
}

# After the one of PostgreSQL::Test::Utils, which makes the directories.
INIT
{
	$PostgreSQL::Test::Utils::timeout_default = watchdog_wait_seconds()
	  if $PostgreSQL::Test::Utils::timeout_default > watchdog_wait_seconds();
	start_watchdog();
}

# ---------------------------------------------------------------------
# Waiting with a deadline
# ---------------------------------------------------------------------

=pod

=item watchdog_limits(wait => seconds, test => seconds)

Other limits, for a test that knows what is going to happen: for anything that is
waited for, and for the test itself, from now on.

=cut

sub watchdog_limits
{
	my (%seconds) = @_;

	if (defined $seconds{wait})
	{
		$wait_seconds = $seconds{wait};
		$PostgreSQL::Test::Utils::timeout_default = $wait_seconds;
	}
	if (defined $seconds{test} && defined $lifeline)
	{
		syswrite($lifeline, "$seconds{test}\n")
		  or die "could not tell the watchdog: $!";
	}
	return;
}

=pod

=item watchdog_fail(what)

Report what all processes do, and die.

=cut

sub watchdog_fail
{
	my ($what) = @_;
	my $first = report($what);

	die "$what: $first\n";
}

=pod

=item watchdog_until(what, condition)

Call the function given until it returns true, every tenth of a second.

=cut

sub watchdog_until
{
	my ($what, $condition) = @_;
	my $seconds = watchdog_wait_seconds();
	my $deadline = time() + $seconds;

	until ($condition->())
	{
		watchdog_fail("hung after $seconds s waiting until $what")
		  if time() > $deadline;
		sleep(0.1);
	}
	return;
}

{
	my $psql = \&PostgreSQL::Test::Cluster::psql;
	my $wait_for_log = \&PostgreSQL::Test::Cluster::wait_for_log;
	my $background_query = \&PostgreSQL::Test::BackgroundPsql::query;
	my $query_until = \&PostgreSQL::Test::BackgroundPsql::query_until;

	# Functions that have a deadline already, and die: report before that.
	my $with_report = sub {
		my ($function, @arguments) = @_;
		my $list = wantarray;
		my @result = eval {
			$list ? $function->(@arguments) : scalar($function->(@arguments));
		};

		watchdog_fail('hung after ' . watchdog_wait_seconds() . " s: $@")
		  if $@ =~ /timed out|timeout on timer/;
		die $@ if $@;
		return $list ? @result : $result[0];
	};

	no warnings 'redefine';

	*PostgreSQL::Test::Cluster::psql = sub {
		my ($self, $dbname, $sql, %params) = @_;
		my $seconds = watchdog_wait_seconds();
		my $expired = 0;

		return $psql->($self, $dbname, $sql, %params)
		  if defined $params{timeout};
		%params = (%params, timeout => $seconds, timed_out => \$expired);
		my @result =
		  wantarray
		  ? $psql->($self, $dbname, $sql, %params)
		  : scalar($psql->($self, $dbname, $sql, %params));
		watchdog_fail('hung after '
			  . $seconds
			  . ' s in psql to "'
			  . $self->name
			  . "\": $sql")
		  if $expired;
		return wantarray ? @result : $result[0];
	};

	*PostgreSQL::Test::Cluster::wait_for_log =
	  sub { $with_report->($wait_for_log, @_) };
	*PostgreSQL::Test::BackgroundPsql::query =
	  sub { $with_report->($background_query, @_) };
	*PostgreSQL::Test::BackgroundPsql::query_until =
	  sub { $with_report->($query_until, @_) };

	*PostgreSQL::Test::Cluster::poll_query_until = sub {
		my ($self, $dbname, $query, $expected) = @_;
		my $seconds = watchdog_wait_seconds();
		my $deadline = time() + $seconds;
		my ($stdout, $stderr) = ('', '');

		$expected //= 't';
		while (time() < $deadline)
		{
			my $expired;

			# a server that is not there yet may end psql before it has read the query
			my $ran = eval {
				$psql->(
					$self, $dbname, $query,
					on_error_stop => 0,
					stdout => \$stdout,
					stderr => \$stderr,
					timeout => $deadline - time(),
					timed_out => \$expired);
				1;
			};
			die $@ if !$ran && $@ !~ /Broken pipe/;
			return 1
			  if $ran && !$expired && $stdout eq $expected && $stderr eq '';
			sleep(0.1);
		}
		watchdog_fail(
				"hung after $seconds s waiting for \"$expected\" from \""
			  . $self->name
			  . "\": $query (last: \"$stdout\" $stderr)");
	};
}

# ---------------------------------------------------------------------
# The watchdog
# ---------------------------------------------------------------------

sub start_watchdog
{
	my $test = $$;

	return if $windows_os;
	pipe(my $reader, $lifeline) or die "could not make a pipe: $!";
	my $pid = fork() // die "could not fork: $!";
	if ($pid == 0)
	{
		$0 = "watchdog of $test_name";
		$SIG{$_} = 'DEFAULT' foreach qw(TERM INT CHLD);
		close($lifeline);
		eval { watch($test, $reader) } or print STDERR "watchdog: $@";
		_exit(0);
	}
	close($reader);
	return;
}

# Wait for the end of the test, or of its time.  Returns whether it has ended.
sub wait_for_test
{
	my ($lifeline) = @_;
	my $deadline = time() + $test_seconds;
	my $bits = '';

	vec($bits, fileno($lifeline), 1) = 1;
	while ((my $left = $deadline - time()) > 0)
	{
		next unless select(my $ready_bits = $bits, undef, undef, $left) > 0;
		return 1 unless sysread($lifeline, my $message, 100);
		($test_seconds) = $message =~ /([\d.]+)\n$/;
		$deadline = time() + $test_seconds;
	}
	return 0;
}

sub kill_servers
{
	my %pids = server_pids();

	foreach my $dir (keys %pids)
	{
		kill('KILL', @{ $pids{$dir} });
		unlink("$dir/postmaster.pid");
	}
	return;
}

sub watch
{
	my ($test, $lifeline) = @_;

	return 1 if wait_for_test($lifeline);

	# Whatever goes wrong here, the test has to end.
	eval { report("hung after $test_seconds s in all"); 1 }
	  or print STDERR "watchdog: no report: $@";
	eval {
		my @descendants = grep { $_ != $$ } descendants($test);

		kill_servers();
		kill('KILL', @descendants);
		1;
	} or print STDERR "watchdog: $@";
	kill('TERM', $test);
	for (1 .. 100)
	{
		last unless kill(0, $test);
		sleep(0.1);
	}
	kill('KILL', $test);

	# one that was just being started
	kill_servers();
	return 1;
}

# ---------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------

# The contents of a file, or nothing if it is gone
sub read_file
{
	my ($path) = @_;

	open(my $fh, '<', $path) or return '';
	local $/ = undef;
	my $text = readline($fh) // '';
	close($fh);
	return $text;
}

sub read_proc
{
	my ($pid, $name) = @_;
	my $text = read_file("/proc/$pid/$name");

	$text =~ s/\0/ /g;
	$text =~ s/\s+$//;
	return $text;
}

sub all_pids
{
	return map { /(\d+)$/ ? $1 : () } glob('/proc/[0-9]*');
}

sub descendants
{
	my ($pid) = @_;

	# a process may have gone before we look at it
	my %parent =
	  map { $_ => read_proc($_, 'status') =~ /^PPid:\s+(\d+)/m ? $1 : 0 }
	  all_pids();
	my @found = ($pid);

	for (my $i = 0; $i < @found; $i++)
	{
		push @found, grep { $parent{$_} == $found[$i] } keys %parent;
	}
	shift @found;
	return @found;
}

# The processes of the servers of this test, by the directory that they are in
sub server_pids
{
	my $ours = abs_path($PostgreSQL::Test::Utils::tmp_check) // return ();
	my %pids;

	foreach my $pid (all_pids())
	{
		my $cwd = readlink("/proc/$pid/cwd") // next;

		push @{ $pids{$cwd} }, $pid
		  if index($cwd, "$ours/") == 0 && -e "$cwd/PG_VERSION";
	}
	return %pids;
}

# The servers of this test: "dir", "name", "pids", and "port" and "host" if they
# can be known.
sub servers
{
	my %pids = server_pids();

	return map { describe_server($_, $pids{$_}) } sort keys %pids;
}

sub describe_server
{
	my ($dir, $pids) = @_;
	my $name = basename(dirname($dir));
	my %title = map { $_ => read_proc($_, 'cmdline') } @$pids;

	# the file may be incomplete, or go at any moment
	my @lines = split(/\n/, read_file("$dir/postmaster.pid"));

	$name =~ s/^t_\Q$test_name\E_(.*)_data$/$1/;
	s/^postgres: (?:\Q$name\E: )?// foreach values %title;
	return {
		dir => $dir,
		name => $name,
		pids => [ sort { $a <=> $b } @$pids ],
		port => $lines[3] // '',
		host => $lines[4] // '',
		title => \%title,

		# what we find out: texts, and by process
		blocked => [],
		busy => {},
		waits_for => {},
		at => {},
		holds => {},
	};
}

# ---------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------

# Write the report; returns its first line.
sub report
{
	my ($what) = @_;
	$what =~ s/\s+/ /g;
	my $deadline = time() + REPORT_SECONDS * max(1, $slowness);
	my (@waits, @text);

	foreach my $server (servers())
	{
		push @text, "==== server $server->{name} in $server->{dir}";
		push @text, report_sql($server);
		push @text, report_processes($server, $deadline);
		push @waits, map { "$server->{name}: $_" } waits($server);
	}
	push @text,
	  map { report_log($_) } glob("$PostgreSQL::Test::Utils::log_path/*.log");

	my $first =
	  @waits
	  ? join('; ', uniq(@waits))
	  : 'no process waits for a lock: the test is slow, or waits for what never comes';
	append_to_file("$PostgreSQL::Test::Utils::log_path/hang_report",
		join("\n", $first, $what, @text, ''));
	diag("$what: $first");
	return $first;
}

# Which process of a server waits for which, by what we found out.
sub waits
{
	my ($server) = @_;
	my ($waits_for, $at, $holds) = @{$server}{qw(waits_for at holds)};
	my @waits = @{ $server->{blocked} };

	# a process may have been started after we had looked for them
	my $title = sub {
		my ($pid) = @_;

		return "$pid (" . ($server->{title}{$pid} // 'a new process') . ')';
	};
	my $name = sub {
		my ($pid) = @_;
		my $where =
		  defined $at->{$pid} ? " at injection point $at->{$pid}" : '';

		$where = " waiting for $waits_for->{$pid}"
		  if defined $waits_for->{$pid};
		return $title->($pid) . $where;
	};
	foreach my $pid (sort { $a <=> $b } keys %$waits_for)
	{
		my $lock = $waits_for->{$pid};
		my @holders = sort { $a <=> $b } keys %{ $holds->{$lock} // {} };

		push @waits,
			$title->($pid)
		  . " waits for $lock, held by "
		  . (join(' and ', map { $name->($_) } @holders)
			  || 'an unknown process');
	}
	push @waits, map { $name->($_) . ' waits' } sort { $a <=> $b } keys %$at;
	return @waits;
}

# Run a program for a limited time; returns what it has to say.
sub look
{
	my ($seconds, @command) = @_;
	my $output = '';

	eval {
		IPC::Run::run(
			\@command,
			'<' => \undef,
			'>' => \$output,
			'2>' => \$output,
			IPC::Run::timeout($seconds * max(1, $slowness)));
	};
	$output .= "($command[0]: $@)" if $@;
	chomp($output);
	return $output;
}

sub query
{
	my ($server, $sql) = @_;

	local $ENV{PGCONNECT_TIMEOUT} = 10;
	local $ENV{PGOPTIONS} = '-c statement_timeout=15s -c log_statement=none';
	return look(
		LOOK_SECONDS,
		'psql', '--no-psqlrc',
		'--quiet', '--no-align',
		'--tuples-only',
		'--dbname' => 'postgres',
		'--host' => $server->{host},
		'--port' => $server->{port},
		'--command' => $sql);
}

sub report_sql
{
	my ($server) = @_;
	my @text;

	return '(no lock file)'
	  unless looks_like_number($server->{port}) && $server->{host} ne '';

	my $activity = query(
		$server, q{
		SELECT pid, wait_event_type, wait_event, backend_type, state,
			   date_trunc('second', clock_timestamp() - state_change) AS since,
			   regexp_replace(left(query, 200), '\s+', ' ', 'g')
		FROM pg_stat_activity WHERE pid <> pg_backend_pid() ORDER BY pid});
	push @text, '-- activity', $activity;
	foreach my $line (split(/\n/, $activity))
	{
		my ($pid, $type, $event) = split(/\|/, $line);

		next unless looks_like_number($pid) && defined $event;
		$server->{busy}{$pid} = 1 if $type !~ /^(?:Activity|Client)$/;
		$server->{waits_for}{$pid} = $event if $type eq 'LWLock';
		next unless $type eq 'InjectionPoint';
		$server->{at}{$pid} = $event;
		$server->{busy}{$pid} = 2;
	}
	return @text unless $activity =~ /^\d+\|/m;

	my $blocked = query(
		$server, q{
		SELECT format('%s (%s) waits for %s %s, held by %s', w.pid, w.backend_type,
					  l.locktype, coalesce(l.relation::regclass::text, l.database::text, ''),
					  string_agg(format('%s (%s, %s %s)', h.pid, h.backend_type,
										h.wait_event_type, h.wait_event), ' and '))
		FROM pg_stat_activity w, pg_locks l, pg_stat_activity h
		WHERE l.pid = w.pid AND NOT l.granted AND h.pid = ANY (pg_blocking_pids(w.pid))
		GROUP BY w.pid, w.backend_type, l.locktype, l.relation, l.database});
	$server->{blocked} = [ grep { / waits for / } split(/\n/, $blocked) ];

	push @text, '-- locks', query(
		$server, q{
		SELECT pid, granted, mode, locktype, database, relation, virtualxid,
			   transactionid, fastpath, date_trunc('second', waitstart)
		FROM pg_locks WHERE pid <> pg_backend_pid() ORDER BY granted, pid LIMIT 60}
	);
	push @text, '-- WAL receiver, senders, and positions',
	  grep { $_ ne '' }
	  query($server, 'SELECT r FROM pg_stat_wal_receiver r'),
	  query($server, 'SELECT r FROM pg_stat_replication r'), query(
		$server, q{
		SELECT CASE WHEN pg_is_in_recovery() THEN
			format('received %s, replayed %s, pause: %s', pg_last_wal_receive_lsn(),
				   pg_last_wal_replay_lsn(), pg_get_wal_replay_pause_state())
			ELSE format('inserted %s', pg_current_wal_insert_lsn()) END});
	return @text;
}

# What the debugger is to say of a process: the LWLocks that it holds, the one
# that it waits for, and where it is.  Wait events of LWLocks are of class 1.
my $GDB_COMMANDS = q{set pagination off
set width 0
set $ntranches = sizeof(BuiltinTrancheNames) / sizeof(BuiltinTrancheNames[0])
set $i = 0
while $i < num_held_lwlocks
  set $tranche = held_lwlocks[$i].lock->tranche
  if $tranche < $ntranches && BuiltinTrancheNames[$tranche] != 0
    printf "HOLDS %s\n", BuiltinTrancheNames[$tranche]
  else
    printf "HOLDS tranche %d\n", $tranche
  end
  set $i = $i + 1
end
set $event = *my_wait_event_info
if ($event >> 24) == 1 && ($event & 0xFFFF) < $ntranches
  printf "WAITS %s\n", BuiltinTrancheNames[$event & 0xFFFF]
end
backtrace
};

# The debugger takes seconds for each process: those that wait for something out
# of the ordinary come first, and before them those that a test has made wait.
sub report_processes
{
	my ($server, $deadline) = @_;
	my $busy = $server->{busy};
	my $script = "$PostgreSQL::Test::Utils::tmp_check/watchdog.gdb";
	my @pids = sort { ($busy->{$b} // 0) <=> ($busy->{$a} // 0) || $a <=> $b }
	  @{ $server->{pids} };
	my @text;

	unlink($script);
	append_to_file($script, $GDB_COMMANDS);
	foreach my $pid (@pids)
	{
		my ($state) = read_proc($pid, 'status') =~ /^State:\s+(.*)/m;

		push @text,
		  join(' ',
			"-- process $pid ($server->{title}{$pid}):",
			$state // 'gone',
			read_proc($pid, 'wchan'));
		push @text, split(/\n/, read_proc($pid, 'stack'));
		if (time() > $deadline)
		{
			push @text, '(gdb: no time is left)';
			next;
		}

		# down to where a process begins
		my $trace = look(DEBUGGER_SECONDS,
			'gdb', '-batch', '-nx', '-p', $pid, '-x', $script);
		$trace =~ s/^#\d+ [^\n]* postmaster_child_launch .*//ms;
		push @text, grep { /^#|^HOLDS|^WAITS|^ptrace|not permitted|\(gdb:/ }
		  split(/\n/, $trace);
		$server->{holds}{$1}{$pid} = 1 while $trace =~ /^HOLDS (.*)/mg;
		$server->{waits_for}{$pid} = $1 if $trace =~ /^WAITS (.*)/m;
		$server->{at}{$pid} = $1
		  if $trace =~ /injection_wait \(.*?name=0x\w+ "([^"]+)"/;
	}
	return @text;
}

sub report_log
{
	my ($path) = @_;
	my @lines = split(/\n/, slurp_file($path));

	@lines = splice(@lines, -(LOG_LINES)) if @lines > LOG_LINES;
	return ("==== end of $path", @lines);
}

=pod

=back

=cut

1;
