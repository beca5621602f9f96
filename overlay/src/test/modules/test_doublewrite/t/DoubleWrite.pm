
# Copyright (c) 2025, PostgreSQL Global Development Group

=pod

=head1 NAME

DoubleWrite - crashes, torn pages and an oracle for the double-write engine

=head1 SYNOPSIS

  use FindBin;
  use lib $FindBin::RealBin;
  use DoubleWrite;

  dw_require_injection_points();
  my $node = dw_new_node('main', checksums => 1);
  dw_workload_setup($node);
  my $old = dw_snapshot($node);       # after a CHECKPOINT
  dw_workload_start($node);
  $node->safe_psql('postgres', q{SELECT dw_crash_at('doublewrite-log-synced', 3)});
  dw_wait_for_crash($node);
  dw_workload_finish($node);
  my $torn = dw_tear($node, $old);
  dw_start_after_crash($node);        # checks the number of restored pages
  dw_check($node);                    # the oracle

=head1 DESCRIPTION

A crash is real as far as processes go: at an injection point all processes
of the server are stopped, then killed, by the C module.  What the operating
system would have lost is simulated afterwards by editing files: C<dw_tear>
replaces pages whose home writes had not been synced by mixtures of old and
new sectors, C<dw_tear_log_tail> damages a batch that had not been synced.

=cut

package DoubleWrite;

use strict;
use warnings FATAL => 'all';

use Digest::MD5 qw(md5_hex);
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  dw_require_injection_points
  dw_new_node
  dw_quiet_node
  dw_extensions
  dw_read_log
  dw_live_copies
  dw_segment_path
  dw_crc32c
  dw_forged_header
  dw_home_path
  dw_read_block
  dw_write_block
  dw_page_key
  dw_snapshot
  dw_digest
  dw_tear
  dw_tear_log_tail
  dw_expected_restored
  dw_restore_line
  dw_stop_processes
  dw_wait_for_exit
  dw_wait_for_crash
  dw_poll_start
  dw_start_after_crash
  dw_workload_setup
  dw_workload_start
  dw_workload_finish
  dw_workload_stop
  dw_wait_for_pages
  dw_images_between
  dw_check_history
  dw_check_amcheck
  dw_check_stopped
  dw_check
  dw_hold_flusher
  dw_hold_torn
  dw_wait_until_held
  dw_release_flusher
  dw_wake
  BLCKSZ
);

use constant {
	BLCKSZ => 8192,
	RELSEG_SIZE => 131072,
	SEGMENT_BLOCKS => 512,
	MAGIC => 'PGDWLOG1',
	HEADER_LEN => 88,
	ENTRY_LEN => 32,
	SECTOR => 512,
};

my @fork_suffix = ('', '_fsm', '_vm', '_init');
my $relfile_re =
  qr/^(?:base\/\d+|global|pg_tblspc\/\d+\/[^\/]+\/\d+)\/\d+(?:_fsm|_vm|_init)?(?:\.\d+)?$/;

=pod

=head1 CLUSTERS

=over

=item dw_require_injection_points()

Skip the test if the server was built without injection points.

=cut

sub dw_require_injection_points
{
	plan skip_all => 'Injection points not supported by this build'
	  if ($ENV{enable_injection_points} // '') ne 'yes';
	return;
}

=pod

=item dw_new_node(name, %params)

Make a cluster, not started: tiny buffers, no autovacuum, the module loaded,
real syncs.  C<checksums> (default 1), C<mode> (default C<double_writes>),
C<conf> (more settings), C<init> (reference to a hash of parameters of
C<< PostgreSQL::Test::Cluster->init >>).

=cut

sub dw_new_node
{
	my ($name, %params) = @_;
	my $mode = $params{mode} // 'double_writes';
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		no_data_checksums => !($params{checksums} // 1),
		%{ $params{init} // {} });
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'test_doublewrite'
io_torn_pages_protection = $mode
double_write_buffer_size = 16MB
double_write_stage_size = 512kB
shared_buffers = 1MB
wal_level = replica
max_wal_size = 1GB
checkpoint_timeout = 1h
checkpoint_completion_target = 0
fsync = on
autovacuum = off
log_statement = none
log_checkpoints = on
max_connections = 20
jit = off
});
	$node->append_conf('postgresql.conf', $params{conf})
	  if defined $params{conf};
	$node->{dw_checksums} = $params{checksums} // 1;
	return $node;
}

=pod

=item dw_quiet_node(name, %params)

The same, started and with the extensions: a server on which nothing goes home
unless the test says so.  The background writer writes nothing back there, not even
when a batch is ready.

=cut

sub dw_quiet_node
{
	my ($name, %params) = @_;
	my $node = dw_new_node(
		$name,
		%params,
		conf => q{
shared_buffers = 16MB
bgwriter_lru_maxpages = 0
bgwriter_delay = 10s
wal_writer_delay = 10s
test_doublewrite.quiet = on
} . ($params{conf} // ''));

	$node->start;
	dw_extensions($node);
	return $node;
}

=pod

=item dw_extensions(node)

Create the extensions that the tests use, in database C<postgres>.

=cut

sub dw_extensions
{
	my ($node) = @_;

	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION IF NOT EXISTS test_doublewrite;
		CREATE EXTENSION IF NOT EXISTS injection_points;
		CREATE EXTENSION IF NOT EXISTS amcheck;
	});
	return;
}

=pod

=item dw_stop_processes(node, types)

Stop processes of the server, the background writer or the checkpointer, while
they have nothing to do: they hold no lock then.  Returns their numbers, for
C<kill('CONT', ...)>.

=cut

sub dw_stop_processes
{
	my ($node, @types) = @_;
	my $types = join(', ', map { "'$_'" } @types);
	my @pids = split(/\n/,
		$node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type IN ($types)"));
	my $idle = sub {
		return $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ($types) AND wait_event_type = 'Activity'"
		) == @pids;
	};

	watchdog_until(
		join(' and ', @types) . ' have nothing to do',
		sub {
			return 0 unless $idle->();
			kill('STOP', @pids);
			return 1 if $idle->();
			kill('CONT', @pids);
			return 0;
		});
	return @pids;
}

=pod

=back

=head1 THE LOG

=over

=cut

# CRC-32C, for what little of the log we have to verify
my @crc_table = map {
	my $c = $_;
	$c = ($c & 1) ? (0x82F63B78 ^ ($c >> 1)) : ($c >> 1) for (1 .. 8);
	$c
} (0 .. 255);

sub dw_crc32c
{
	my $crc = 0xFFFFFFFF;

	foreach my $data (@_)
	{
		$crc = $crc_table[ ($crc ^ $_) & 0xFF ] ^ ($crc >> 8)
		  foreach unpack('C*', $data);
	}
	return $crc ^ 0xFFFFFFFF;
}

=pod

=item dw_segment_path(node, segno)

=cut

sub dw_segment_path
{
	my ($node, $segno) = @_;

	return $node->data_dir . sprintf('/pg_doublewrite/%016X', $segno);
}

sub parse_batch
{
	my ($data, $segno, $blockno) = @_;
	my $start = $blockno * BLCKSZ;
	my %b;

	return undef if substr($data, $start, 8) ne MAGIC;

	@b{
		qw(version blcksz sysid batchno low_water segno blockno npages
		  redo redo_pending nonce compression crc)
	} = unpack('L L Q Q Q Q L L Q Q Q L L', substr($data, $start + 8, 80));

	return undef
	  if $b{segno} != $segno
	  || $b{blockno} != $blockno
	  || $b{npages} > 248;

	my $entries =
	  substr($data, $start + HEADER_LEN, $b{npages} * ENTRY_LEN);
	return undef
	  if dw_crc32c(substr($data, $start, HEADER_LEN - 4), $entries) != $b{crc};

	my $offset = ($blockno + 1) * BLCKSZ;

	$b{entries} = [];
	for my $i (0 .. $b{npages} - 1)
	{
		my %e;

		@e{qw(spc db rel fork length blkno crc lsn)} =
		  unpack('L L L S S L L Q', substr($entries, $i * ENTRY_LEN, ENTRY_LEN));
		$e{segno} = $segno;
		$e{offset} = $offset;
		$e{batchno} = $b{batchno};
		$e{stored} = substr($data, $offset, $e{length});
		$e{page} = $e{stored} if $e{length} == BLCKSZ;
		$offset += $e{length};
		push @{ $b{entries} }, \%e;
	}
	$b{nblocks} = int(($offset + BLCKSZ - 1) / BLCKSZ) - $blockno;
	return \%b;
}

=pod

=item dw_read_log(node)

Read the log of a cluster that is not running, or does not write at the
moment.  Returns a hash: C<segments> (numbers), C<batches> (all that are
intact, by number), C<live> (those in the live range, oldest first), C<torn>
(the newest, if it is incomplete).  A batch has C<batchno>, C<low_water>,
C<segno>, C<blockno>, C<npages>, C<nblocks>, C<redo>, C<redo_pending>,
C<compression>, and C<entries>: C<spc>, C<db>, C<rel>, C<fork>, C<blkno>,
C<lsn>, C<stored> (the bytes in the log), C<page> (the same, if they are not
compressed), and the place of the copy, C<segno>, C<offset> and C<length>.

=cut

sub dw_read_log
{
	my ($node) = @_;
	my $dir = $node->data_dir . '/pg_doublewrite';
	my %log = (segments => [], batches => [], live => [], torn => undef);
	my %batches;

	return \%log unless -d $dir;
	foreach my $name (sort grep { /^[0-9A-F]{16}$/ } slurp_dir($dir))
	{
		my $segno = hex($name);
		my $data = slurp_file("$dir/$name");
		my $pos = 0;

		push @{ $log{segments} }, $segno;
		$data .= "\0" x (SEGMENT_BLOCKS * BLCKSZ - length($data))
		  if length($data) < SEGMENT_BLOCKS * BLCKSZ;

		# batches start at block boundaries
		while (($pos = index($data, MAGIC, $pos)) >= 0)
		{
			my $batch;

			$batch = parse_batch($data, $segno, $pos / BLCKSZ)
			  if $pos % BLCKSZ == 0;
			$batches{ $batch->{batchno} } = $batch if defined $batch;
			$pos += defined $batch ? $batch->{nblocks} * BLCKSZ : 8;
		}
	}

	my @sorted = sort { $a->{batchno} <=> $b->{batchno} } values %batches;
	if (@sorted)
	{
		my $last = $sorted[-1];

		$log{torn} = pop @sorted
		  if grep { dw_crc32c($_->{stored}) != $_->{crc} } @{ $last->{entries} };
	}
	$log{batches} = \@sorted;
	$log{live} =
	  [ grep { $_->{batchno} >= $sorted[-1]{low_water} } @sorted ]
	  if @sorted;
	return \%log;
}

=pod

=item dw_forged_header(node, batch, %fields)

The header block of a batch with some fields replaced, C<entries> too, and a
right checksum.

=cut

sub dw_forged_header
{
	my ($node, $batch, %fields) = @_;
	my %b = (%$batch, %fields);
	my $file = slurp_file(dw_segment_path($node, $batch->{segno}));
	my $block = substr($file, $batch->{blockno} * BLCKSZ, BLCKSZ);
	my $entries = join(
		'',
		map {
			pack('L L L S S L L Q',
				@{$_}{qw(spc db rel fork length blkno crc lsn)})
		} @{ $b{entries} });

	substr($block, 8, 76) = pack('L L Q Q Q Q L L Q Q Q L',
		@b{
			qw(version blcksz sysid batchno low_water segno blockno npages
			  redo redo_pending nonce compression)
		});
	substr($block, HEADER_LEN, length($entries)) = $entries;
	substr($block, HEADER_LEN - 4, 4) =
	  pack('L', dw_crc32c(substr($block, 0, HEADER_LEN - 4), $entries));
	return $block;
}

=pod

=item dw_page_key(entry)

Text that identifies a page: C<spc/db/rel/fork/blkno>.

=cut

sub dw_page_key
{
	my ($e) = @_;

	return join('/', @{$e}{qw(spc db rel fork blkno)});
}

=pod

=item dw_live_copies(log)

The newest copy of each page in the live range, by page key.

=cut

sub dw_live_copies
{
	my ($log) = @_;
	my %copies;

	foreach my $batch (@{ $log->{live} })
	{
		$copies{ dw_page_key($_) } = $_ foreach @{ $batch->{entries} };
	}
	return \%copies;
}

=pod

=back

=head1 PAGES AT HOME

=over

=item dw_home_path(node, entry)

Relative path of the file that a page belongs to, and offset in it.

=cut

sub dw_home_path
{
	my ($node, $e) = @_;
	my $segno = int($e->{blkno} / RELSEG_SIZE);
	my $dir;

	if ($e->{spc} == 1664)
	{
		$dir = 'global';
	}
	elsif ($e->{spc} == 1663)
	{
		$dir = "base/$e->{db}";
	}
	else
	{
		my $top = "pg_tblspc/$e->{spc}";
		my ($version) =
		  -d $node->data_dir . "/$top"
		  ? grep { /^PG_/ } slurp_dir($node->data_dir . "/$top")
		  : ();

		$dir = "$top/" . ($version // 'none') . "/$e->{db}";
	}
	return ("$dir/$e->{rel}$fork_suffix[$e->{fork}]"
		  . ($segno > 0 ? ".$segno" : ''),
		($e->{blkno} % RELSEG_SIZE) * BLCKSZ);
}

=pod

=item dw_read_block(node, path, offset)

A page of a file in the data directory, or undef if the file is shorter.

=cut

sub dw_read_block
{
	my ($node, $path, $offset) = @_;
	my $page;

	open(my $fh, '<:raw', $node->data_dir . "/$path") or return undef;
	sysseek($fh, $offset, 0) or die "could not seek in $path: $!";
	my $n = sysread($fh, $page, BLCKSZ) // die "could not read $path: $!";
	close($fh);
	return $n == BLCKSZ ? $page : undef;
}

=pod

=item dw_write_block(node, path, offset, bytes)

=cut

sub dw_write_block
{
	my ($node, $path, $offset, $page) = @_;

	open(my $fh, '+<:raw', $node->data_dir . "/$path")
	  or die "could not open $path: $!";
	sysseek($fh, $offset, 0) or die "could not seek in $path: $!";
	syswrite($fh, $page) == length($page) or die "could not write $path: $!";
	close($fh);
	return;
}

sub relation_files
{
	my ($node) = @_;
	my $dir = $node->data_dir;
	my @dirs = ('global');
	my @files;

	push @dirs, map { "base/$_" } grep { /^\d+$/ } slurp_dir("$dir/base");
	foreach my $spc (grep { /^\d+$/ } slurp_dir("$dir/pg_tblspc"))
	{
		next unless -d "$dir/pg_tblspc/$spc";
		foreach my $v (grep { /^PG_/ } slurp_dir("$dir/pg_tblspc/$spc"))
		{
			push @dirs, map { "pg_tblspc/$spc/$v/$_" }
			  grep { /^\d+$/ } slurp_dir("$dir/pg_tblspc/$spc/$v");
		}
	}
	foreach my $d (@dirs)
	{
		push @files, grep { $_ =~ $relfile_re } map { "$d/$_" } slurp_dir("$dir/$d");
	}
	return sort @files;
}

=pod

=item dw_snapshot(node)

Contents of all relation files, by path: the old versions for C<dw_tear>.
Take it when everything is durable, after a CHECKPOINT or a clean stop.

=cut

sub dw_snapshot
{
	my ($node) = @_;

	return { map { $_ => slurp_file($node->data_dir . "/$_") }
		  relation_files($node) };
}

=pod

=item dw_digest(node)

Text that changes whenever a relation file does.

=cut

sub dw_digest
{
	my ($node) = @_;

	return join("\n",
		map { "$_ " . md5_hex(slurp_file($node->data_dir . "/$_")) }
		  relation_files($node));
}

# A mixture of two versions of a page, with the kind of tear rotating.
# Returns undef if no tear gives anything but one of the versions.
my $tear_turn = 0;
my %tear_seen;

sub torn_page
{
	my ($old, $new) = @_;

	return undef if $old eq $new;
	for my $try (0 .. 60)
	{
		my $turn = $tear_turn++;
		my $kind = qw(head tail random head4k tail4k)[ $turn % 5 ];
		my $cut = 1 + int($turn / 5) % 15;
		my @take;    # which sectors are new

		if ($kind eq 'head')
		{
			@take = map { $_ < $cut } (0 .. 15);
		}
		elsif ($kind eq 'tail')
		{
			@take = map { $_ >= $cut } (0 .. 15);
		}
		elsif ($kind eq 'random')
		{
			@take = map { rand() < 0.5 } (0 .. 15);
		}
		else
		{
			@take = map { ($_ < 8) == ($kind eq 'head4k') } (0 .. 15);
		}

		my $page = join(
			'',
			map {
				substr($take[$_] ? $new : $old, $_ * SECTOR, SECTOR)
			} (0 .. 15));

		if ($page ne $old && $page ne $new)
		{
			$tear_seen{$kind}++;
			return $page;
		}
	}
	return undef;
}

=pod

=item dw_tear(node, snapshot, %params)

Tear pages whose home writes may not have been durable at the crash.  The
pages in the live range of the log are, always: each gets a mixture of its
newest copy and of what is at home or, if that is the same, of what was there
when the snapshot was taken.

With C<unlogged_too>, other pages that have changed since the snapshot are
torn as well; that is fair if there has been no checkpoint and no sync cycle
since, and then hits the pages that were not double-written because redo
rebuilds them.

With C<max>, tear no more than so many.  With C<only>, a regular expression,
only pages of files whose path matches.

Returns a hash: C<logged> and C<unlogged> (number of pages torn), C<pages>
(references to path and offset).

=cut

sub dw_tear
{
	my ($node, $snapshot, %params) = @_;
	my $log = dw_read_log($node);
	my $copies = dw_live_copies($log);
	my %result = (logged => 0, unlogged => 0, pages => []);
	my %logged_at;
	my $max = $params{max} // 1_000_000_000;

	my $tear = sub {
		my ($path, $offset, $old, $new) = @_;

		return 0 if @{ $result{pages} } >= $max;
		return 0 if defined $params{only} && $path !~ $params{only};
		my $page = torn_page($old, $new);
		return 0 unless defined $page;
		dw_write_block($node, $path, $offset, $page);
		push @{ $result{pages} }, [ $path, $offset ];
		return 1;
	};
	my $old_version = sub {
		my ($path, $offset) = @_;

		return "\0" x BLCKSZ
		  if !defined $snapshot->{$path}
		  || length($snapshot->{$path}) < $offset + BLCKSZ;
		return substr($snapshot->{$path}, $offset, BLCKSZ);
	};

	foreach my $key (sort keys %$copies)
	{
		my $copy = $copies->{$key};
		my ($path, $offset) = dw_home_path($node, $copy);
		my $home = dw_read_block($node, $path, $offset);

		$logged_at{"$path $offset"} = 1;
		next unless defined $home;
		$home = $old_version->($path, $offset) if $home eq $copy->{page};
		$result{logged} += $tear->($path, $offset, $home, $copy->{page});
	}

	if ($params{unlogged_too})
	{
		foreach my $path (relation_files($node))
		{
			my $data = slurp_file($node->data_dir . "/$path");

			for (my $off = 0; $off + BLCKSZ <= length($data); $off += BLCKSZ)
			{
				next if $logged_at{"$path $off"};
				$result{unlogged} += $tear->(
					$path, $off,
					$old_version->($path, $off),
					substr($data, $off, BLCKSZ));
			}
		}
	}

	note "tore $result{logged} pages in the log, $result{unlogged} others";
	return \%result;
}

=pod

=item dw_tear_log_tail(node, kind)

Damage the newest batch of the log, as if it had not been synced: C<header>
(its first sector is lost), C<pages> (some sectors of its pages), C<all>
(all of it).  Returns the batch.

=cut

sub dw_tear_log_tail
{
	my ($node, $kind) = @_;
	my $log = dw_read_log($node);
	my $batch = $log->{torn} // $log->{batches}[-1];
	my $path = sprintf('pg_doublewrite/%016X', $batch->{segno});
	my $start = $batch->{blockno} * BLCKSZ;

	$kind = 'header' if $kind eq 'pages' && $batch->{npages} == 0;
	if ($kind eq 'header')
	{
		dw_write_block($node, $path, $start, "\0" x SECTOR);
	}
	elsif ($kind eq 'all')
	{
		dw_write_block($node, $path, $start,
			"\0" x (BLCKSZ * $batch->{nblocks}));
	}
	else
	{
		my $page = $batch->{entries}[ int($batch->{npages} / 2) ];
		my $n = 0;

		for my $sector (0 .. 15)
		{
			next if substr($page->{page}, $sector * SECTOR, SECTOR) eq "\0" x SECTOR;
			dw_write_block($node, $path,
				$page->{offset} + $sector * SECTOR,
				"\0" x SECTOR)
			  if ++$n % 2 == 1;
		}
		die "page in batch is empty" if $n == 0;
	}
	return $batch;
}

=pod

=item dw_expected_restored(node)

How many pages restore has to write: those whose newest live copy differs
from home, in files that reach that far.

=cut

sub dw_expected_restored
{
	my ($node) = @_;
	my $copies = dw_live_copies(dw_read_log($node));
	my $n = 0;

	foreach my $copy (values %$copies)
	{
		my $home = dw_read_block($node, dw_home_path($node, $copy));

		$n++ if defined $home && $home ne $copy->{page};
	}
	return $n;
}

=pod

=item dw_restore_line(node, log_offset)

What the server log says about the restore after that offset: a hash with
C<examined>, C<batches>, C<restored>, C<identical>, C<missing>, C<buffered>, or
undef.

=cut

sub dw_restore_line
{
	my ($node, $offset) = @_;
	my $text = slurp_file($node->logfile, $offset);
	my %r;

	return undef
	  unless $text =~
	  /double-write log: examined (\d+) pages in (\d+) batches, restored (\d+), (\d+) identical, (\d+) beyond the end of their file, put (\d+) into/;
	@r{qw(examined batches restored identical missing buffered)} =
	  ($1, $2, $3, $4, $5, $6);
	return \%r;
}

=pod

=back

=head1 CRASHES

=over

=item dw_wait_for_exit(node)

Wait until the server is gone, for whatever reason.

=cut

sub dw_wait_for_exit
{
	my ($node) = @_;
	my $pid = $node->{_pid};

	if (!defined $pid)
	{
		# start failed: look into the lock file
		my $file = $node->data_dir . '/postmaster.pid';

		return unless -e $file;
		($pid) = split(/\n/, slurp_file($file));
	}
	watchdog_until($node->name . ' has exited',
		sub { (!kill(0, $pid) || zombie($pid)) && !in_directory($node) });

	# A zombie that is not reaped would keep its lock files in force.
	unlink($node->data_dir . '/postmaster.pid',
		$node->host . '/.s.PGSQL.' . $node->port . '.lock');
	$node->{_pid} = undef;
	return;
}

sub zombie
{
	my ($pid) = @_;

	open(my $fh, '<', "/proc/$pid/stat") or return 0;
	my $line = <$fh> // '';
	close($fh);
	return $line =~ /\) Z /;
}

# Processes of the server that are still there, where /proc tells
sub in_directory
{
	my ($node) = @_;
	my $dir = $node->data_dir;

	return scalar(
		grep { (readlink($_) // '') eq $dir } glob('/proc/[0-9]*/cwd'));
}

=pod

=item dw_wait_for_crash(node, log_offset)

Wait until the server has crashed at an injection point, and check that it
was that.

=cut

sub dw_wait_for_crash
{
	my ($node, $offset) = @_;

	dw_wait_for_exit($node);
	my $text = slurp_file($node->logfile, $offset // 0);
	my ($where) = $text =~ /test_doublewrite: crash at injection point "(.*)"/;
	ok(defined $where,
		'server crashed' . (defined $where ? " at $where" : ''));
	return;
}

=pod

=item dw_poll_start(node)

Start a server after a crash; what is left of its processes may take a while
to go.  Returns whether it started.  If it did not, it is gone.

=cut

sub dw_poll_start
{
	my ($node) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $offset = -s $node->logfile;

		return 1 if $node->start(fail_ok => 1);
		dw_wait_for_exit($node);
		return 0
		  unless slurp_file($node->logfile, $offset) =~
		  /pre-existing shared memory block/;
		usleep(100_000);
	}
	return 0;
}

=pod

=item dw_start_after_crash(node, torn)

Start and check that restore wrote exactly the pages that it had to, which are
no fewer than were torn.

=cut

sub dw_start_after_crash
{
	my ($node, $torn) = @_;
	my $expected = dw_expected_restored($node);
	my $offset = -s $node->logfile;

	ok(dw_poll_start($node), 'server starts') or BAIL_OUT('no start');
	my $line = dw_restore_line($node, $offset);
	is($line ? $line->{restored} : 0,
		$expected, "pages restored: $expected");
	cmp_ok($expected, '>=', $torn->{logged}, 'no fewer than were torn')
	  if defined $torn;
	unlike(slurp_file($node->logfile, $offset),
		qr/PANIC|invalid page|could not read block/,
		'no complaints in the server log');
	return $line;
}

=pod

=back

=head1 WORKLOAD AND ORACLE

=over

=item dw_workload_setup(node, accounts => n)

Tables and indexes for transfers between accounts, each with a row of history
that names the client, and its number among the client's transactions.

=cut

sub dw_workload_setup
{
	my ($node, %params) = @_;
	my $accounts = $params{accounts} // 3000;
	my $script = $node->basedir . '/transfer.sql';

	dw_extensions($node);
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE accounts (id int PRIMARY KEY, bal int NOT NULL, n int,
							   filler text) WITH (fillfactor = 80);
		INSERT INTO accounts SELECT i, 0, 0, repeat('x', 150)
			FROM generate_series(1, $accounts) i;
		CREATE INDEX accounts_bal ON accounts (n);
		CREATE TABLE history (run int, client int, n int, src int, dst int,
							  amount int, filler text);
		CREATE UNIQUE INDEX history_key ON history (run, client, n);
		CREATE INDEX history_src ON history (src);
		CHECKPOINT;
	});

	PostgreSQL::Test::Utils::append_to_file(
		$script, qq{
\\set n :n + 1
\\set a random(1, $accounts - 1)
\\set b random(:a + 1, $accounts)
\\set d random(-100, 100)
BEGIN;
UPDATE accounts SET bal = bal - :d, n = :n WHERE id = :a;
UPDATE accounts SET bal = bal + :d WHERE id = :b;
INSERT INTO history VALUES (:run, :client_id, :n, :a, :b, :d, repeat('y', 60));
COMMIT;
});
	$node->{dw_script} = $script;
	$node->{dw_acked} = {};
	$node->{dw_run} = 0;
	return;
}

=pod

=item dw_workload_start(node, %params)

Start clients in the background: C<clients> (default 4), C<transactions> for
each (default: until the server is gone).

=cut

sub dw_workload_start
{
	my ($node, %params) = @_;
	my $run = ++$node->{dw_run};
	my $clients = $params{clients} // 4;
	my $prefix = $node->basedir . "/run$run";

	$node->{dw_output} = '';
	$node->{dw_prefix} = $prefix;
	$node->{dw_handle} = IPC::Run::start(
		[
			'pgbench', '--no-vacuum',
			'--client' => $clients,
			'--transactions' => $params{transactions} // 1_000_000,
			'--file' => $node->{dw_script},
			'--define' => "run=$run",
			'--define' => 'n=0',
			'--log',
			'--log-prefix' => $prefix,
			'--host' => $node->host,
			'--port' => $node->port,
			'postgres'
		],
		'<' => \undef,
		'>' => \$node->{dw_output},
		'2>' => \$node->{dw_output});
	return;
}

=pod

=item dw_workload_finish(node)

Wait for the clients to end, and note what was acknowledged to them.  Returns
how many transactions were.

=cut

sub dw_workload_finish
{
	my ($node) = @_;
	my $run = $node->{dw_run};
	my $handle = $node->{dw_handle};
	my $total = 0;

	watchdog_until(
		'clients of ' . $node->name . ' have ended',
		sub {
			$handle->pump_nb if $handle->pumpable;
			return !$handle->pumpable;
		});
	$handle->finish;
	foreach my $file (glob("$node->{dw_prefix}.*"))
	{
		foreach my $line (split(/\n/, slurp_file($file)))
		{
			my ($client, $no) = split(' ', $line);

			$node->{dw_acked}{$run}{$client}++;
			$total++;
		}
	}
	note "run $run: $total transactions acknowledged";
	return $total;
}

=pod

=item dw_workload_stop(node)

End the clients that go on until the server is gone, and note what was
acknowledged to them.

=cut

sub dw_workload_stop
{
	my ($node) = @_;
	my $handle = $node->{dw_handle};

	# some may not have connected yet
	watchdog_until(
		'clients of ' . $node->name . ' have been ended',
		sub {
			$node->psql('postgres',
				'SELECT pg_terminate_backend(pid) FROM pg_stat_activity'
				  . " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
			);
			$handle->pump_nb if $handle->pumpable;
			return !$handle->pumpable;
		});
	return dw_workload_finish($node);
}

=pod

=item dw_wait_for_pages(node, n)

Wait until the load has brought home so many more pages, on this server.

=cut

sub dw_wait_for_pages
{
	my ($node, $n) = @_;
	my $now = $node->safe_psql('postgres', 'SELECT home_pages FROM dw_stats()');

	$node->poll_query_until('postgres',
		"SELECT home_pages >= $now + $n FROM dw_stats()")
	  or die 'timed out waiting for pages to be written';
	return;
}

=pod

=item dw_images_between(node, from, to)

Number of WAL records with full-page images between two locations.  Segments are
named, as pg_waldump would otherwise look into any file to learn their size, and
that may be one that has been preallocated.

=cut

sub dw_images_between
{
	my ($node, $from, $to) = @_;
	my @segments = split(/\n/,
		$node->safe_psql('postgres',
			"SELECT pg_walfile_name(l) FROM unnest('{$from, $to}'::pg_lsn[]) l"));
	my ($stdout, $stderr) = run_command(
		[
			'pg_waldump',
			'--path' => $node->data_dir . '/pg_wal',
			'--start' => $from,
			'--end' => $to,
			'--fullpage', @segments
		]);

	note $stderr if $stderr ne '';
	return scalar(split(/\n/, $stdout));
}

=pod

=item dw_check_history(node)

The oracle: all that was acknowledged is there, at most one more transaction
per client of each run, none missing in between; balances agree with history.

=cut

sub dw_check_history
{
	my ($node) = @_;
	my @problems;
	my %found;

	foreach my $line (
		split(
			/\n/,
			$node->safe_psql(
				'postgres', q{
		SET enable_indexscan = off; SET enable_indexonlyscan = off;
		SET enable_bitmapscan = off;
		SELECT run, client, count(*), min(n), max(n), count(DISTINCT n)
			FROM history GROUP BY 1, 2})))
	{
		my ($run, $client, $count, $min, $max, $distinct) =
		  split(/\|/, $line);
		my $acked = $node->{dw_acked}{$run}{$client} // 0;

		$found{"$run/$client"} = 1;
		push @problems,
		  "run $run client $client: $acked acknowledged, found $count from $min to $max, $distinct distinct"
		  if $min != 1
		  || $max != $count
		  || $distinct != $count
		  || $count < $acked
		  || $count > $acked + 1;
	}
	foreach my $run (keys %{ $node->{dw_acked} })
	{
		foreach my $client (keys %{ $node->{dw_acked}{$run} })
		{
			push @problems, "run $run client $client: nothing found"
			  unless $found{"$run/$client"};
		}
	}

	# once by the heap, once by an index
	foreach my $scan ('indexscan', 'seqscan')
	{
		my $bad = $node->safe_psql(
			'postgres', qq{
			SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
			SET enable_$scan = off;
			SELECT 'sum', sum(bal) FROM accounts HAVING sum(bal) <> 0
			UNION ALL
			SELECT 'account ' || a.id, a.bal - coalesce(h.s, 0) FROM accounts a
				FULL JOIN (SELECT id, sum(d) AS s FROM
							(SELECT src AS id, -amount AS d FROM history
							 UNION ALL
							 SELECT dst, amount FROM history) GROUP BY id) h
				USING (id)
				WHERE a.bal IS DISTINCT FROM coalesce(h.s, 0)});

		push @problems, "$scan off: $bad" if $bad ne '';
	}

	is(join("\n", @problems),
		'', 'all acknowledged transactions are there, and no others');
	return !@problems;
}

=pod

=item dw_check_amcheck(node)

amcheck of all tables and indexes of database C<postgres>, catalogs included.

=cut

sub dw_check_amcheck
{
	my ($node, @options) = @_;

	return $node->command_ok(
		[
			'pg_amcheck', '--database' => 'postgres',
			'--heapallindexed', @options
		],
		'amcheck finds nothing');
}

=pod

=item dw_check_stopped(node)

Stop cleanly; then: no marker left, checksums right, and another start and
stop change nothing.

=cut

sub dw_check_stopped
{
	my ($node) = @_;

	$node->stop;
	ok(!-e $node->data_dir . '/backup_label', 'no marker after a clean stop');
	$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		'checksums are right')
	  if $node->{dw_checksums};

	my $digest = dw_digest($node);
	my $offset = -s $node->logfile;
	$node->start;
	$node->stop;
	is(dw_digest($node), $digest, 'second restart changes nothing');
	ok(!defined dw_restore_line($node, $offset), '... and restores nothing');
	return;
}

=pod

=item dw_check(node)

All checks of a server that has been started after a crash.  It is stopped
afterwards.

=cut

sub dw_check
{
	my ($node) = @_;

	dw_check_history($node);
	dw_check_amcheck($node);
	dw_check_stopped($node);
	return;
}

=pod

=back

=head1 HOLDING THE FLUSHER

=over

=item dw_hold_flusher(node, point)

From now on whoever flushes a batch stops at the given injection point
(default C<doublewrite-log-synced>), with the flush lock held, until
C<dw_release_flusher> is called.  With C<bgwriter_lru_maxpages = 0> and enough
buffers, only evictions by the test give it anything to flush.

=cut

sub dw_hold_flusher
{
	my ($node, $point) = @_;

	$point //= 'doublewrite-log-synced';
	$node->{dw_held} = $point;
	$node->safe_psql('postgres',
		"SELECT dw_drain(); SELECT injection_points_attach('$point', 'wait')");
	return;
}

=pod

=item dw_hold_torn(node, sub)

Call the function given, which is to change pages and push them out of shared
buffers, fewer than there are slots in the stage.  On return, some process is
about to write a batch of them home, and each page of the batch is half there:
whoever reads the files meets torn pages.  It waits, with the flush lock held,
for C<dw_release_flusher>.  Returns a reference to an array of the torn pages:
C<path>, C<offset>, and C<page>, the bytes as they are at home.

The stage is filled while the flusher is held at the end of an earlier batch, so
that this one is large.

=cut

sub dw_hold_torn
{
	my ($node, $change) = @_;
	my $point = 'doublewrite-home-written';
	my @torn;

	# Pages with a copy in the log would be in no batch.  From the moment when
	# the point is attached, somebody may wait there with the flush lock: nothing
	# below may take it.
	$node->safe_psql('postgres',
		"SELECT dw_drain(); SELECT dw_sync_cycle(); SELECT injection_points_attach('$point', 'wait')"
	);
	$node->{dw_held} = $point;
	$change->();
	dw_wait_until_held($node);
	$node->safe_psql(
		'postgres', q{
		SELECT dw_tear_at('doublewrite-home-write');
		SELECT injection_points_attach('test-doublewrite-torn', 'wait')});
	dw_release_flusher($node);
	$node->{dw_held} = 'test-doublewrite-torn';
	dw_wait_until_held($node);

	foreach my $copy (@{ dw_read_log($node)->{batches}[-1]{entries} })
	{
		my ($path, $offset) = dw_home_path($node, $copy);
		my $page = dw_read_block($node, $path, $offset);

		push @torn, { path => $path, offset => $offset, page => $page }
		  if $page ne $copy->{page}
		  && substr($page, 0, BLCKSZ / 2) eq
		  substr($copy->{page}, 0, BLCKSZ / 2);
	}
	cmp_ok(scalar(@torn), '>', 100, $node->name . ': pages are half at home');
	return \@torn;
}

=pod

=item dw_wait_until_held(node)

Wait until a process has stopped there.  There must be something to flush.

=cut

sub dw_wait_until_held
{
	my ($node) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$node->{dw_held}'"
	) or die "nobody flushes";
	return;
}

=pod

=item dw_release_flusher(node)

=cut

sub dw_release_flusher
{
	my ($node) = @_;

	dw_wake($node, $node->{dw_held});
	return;
}

=pod

=item dw_wake(node, point)

Detach an injection point of action C<wait>, and wake up whoever waits there.
The other way round, the next one to arrive would wait for ever; and each call
of C<injection_points_wakeup> wakes up one process only.

=cut

sub dw_wake
{
	my ($node, $point) = @_;

	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	watchdog_until(
		"nobody waits at $point",
		sub {
			return 1
			  if $node->safe_psql('postgres',
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$point'"
			  ) == 0;
			$node->psql('postgres',
				"SELECT injection_points_wakeup('$point')");
			return 0;
		});
	return;
}

=pod

=back

=cut

1;
