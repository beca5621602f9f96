
# Copyright (c) 2025, PostgreSQL Global Development Group

# Backups and pg_rewind read relation files while pages are half written.  From
# a primary they get torn pages, which images in WAL repair, but none that would
# be taken for damaged.  From a standby, and in pg_rewind, nothing would repair
# them, and they must not get any (R9a).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Hold;
use DoubleWrite::Log;
use DoubleWrite::Node;
use DoubleWrite::Workload;
use Errno qw(EAGAIN);
use File::Copy;
use IO::Handle;
use PostgreSQL::Test::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

dw_require_injection_points();

# A stage for all pages of the table, which are more than two batches.
my $CONF = qq{
wal_log_hints = off
allow_in_place_tablespaces = on
wal_keep_size = 1GB
double_write_buffer_size = 1GB
double_write_stage_size = 8MB
summarize_wal = on
};

my $DISCARDED =
  qr/LOG:  discarding the double-write log, because the cluster is being restored from a backup/;

my $round = 0;

# Change both halves of each page of a table, in place.
sub change_pages
{
	my ($node) = @_;
	my $n = $round++ % 5;

	$node->safe_psql('postgres',
		"UPDATE accounts SET filler = repeat('$round', 150 / length('$round')) WHERE id % 5 = $n"
	);
	return;
}

# Tear pages of a primary, or of its standby.
sub hold_torn
{
	my ($node, $primary) = @_;

	return dw_hold_torn(
		$node,
		sub {
			change_pages($primary);
			$primary->wait_for_replay_catchup($node) if $node != $primary;
			$node->safe_psql('postgres', q{SELECT dw_evict('accounts')});
		});
}

sub contents
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		'SELECT count(*), sum(hashtextextended(a::text, 0)) FROM accounts a');
}

# How many of the torn pages are in a copy of the data directory?
sub torn_in
{
	my ($dir, $torn) = @_;
	my $n = 0;

	foreach my $t (@$torn)
	{
		open(my $fh, '<:raw', "$dir/$t->{path}") or die "$t->{path}: $!";
		sysseek($fh, $t->{offset}, 0) or die $!;
		my $read = sysread($fh, my $page, BLCKSZ);
		$n++ if $read && $page eq $t->{page};
		close($fh);
	}
	return $n;
}

sub is_held_up
{
	my ($node) = @_;

	return $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_stat_activity
		  WHERE backend_type IN ('walsender', 'client backend')
			AND wait_event IN ('DoubleWriteHome', 'DoubleWriteFlush', 'DoubleWriteTurn')}
	);
}

# ---------------------------------------------------------------------
# pg_basebackup, full and incremental
# ---------------------------------------------------------------------

# Begin a backup, which comes to a halt when the pipe to us is full.
sub begin_backup
{
	my ($node, @options) = @_;
	my $pid = open(
		my $fh, '-|', 'pg_basebackup',
		'--host' => $node->host,
		'--port' => $node->port,
		'--checkpoint' => 'fast',
		'--format' => 'tar',
		'--wal-method' => 'fetch',
		'--no-sync',
		'--pgdata' => '-',
		@options) or die "could not start pg_basebackup: $!";

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_progress_basebackup WHERE phase = 'streaming database files'"
	) or die 'timed out waiting for the backup';
	return $fh;
}

# Read what there is.  Returns whether there may be more.
sub read_some
{
	my ($from, $to) = @_;

	for (;;)
	{
		my $n = sysread($from, my $data, 65536);

		return 1 if !defined $n && $! == EAGAIN;
		die "could not read from pg_basebackup: $!" if !defined $n;
		return 0 if $n == 0;
		print $to $data;
	}
}

# Receive a backup of a standby until it is held up.  If it never is, it comes
# to an end, and that is noticed.
sub receive_until_held_up
{
	my ($node, $from, $to) = @_;
	my $held_up = 0;

	$from->blocking(0);
	watchdog_until(
		'the backup is held up, or ends',
		sub {
			return 1 if !read_some($from, $to);
			$held_up = is_held_up($node);
			return $held_up;
		});
	return $held_up;
}

sub receive_rest
{
	my ($from, $to) = @_;

	$from->blocking(1);
	read_some($from, $to);
	ok(close($from), 'pg_basebackup succeeds');
	close($to) or die "could not write backup: $!";
	return;
}

# Take a backup of $node in the midst of which pages are torn.
sub torn_backup
{
	my ($node, $primary, $name, @options) = @_;
	my $dir = $node->backup_dir . "/$name";
	my $tar = $node->backup_dir . "/$name.tar";

	note "$name of " . $node->name;
	my $from = begin_backup($node, @options);
	my $torn = hold_torn($node, $primary);
	open(my $to, '>:raw', $tar) or die "$tar: $!";
	if ($node == $primary)
	{
		receive_rest($from, $to);
		dw_release_flusher($node);
	}
	else
	{
		is(receive_until_held_up($node, $from, $to),
			1, "$name: held up by home writes");
		dw_release_flusher($node);
		receive_rest($from, $to);
	}

	mkdir($dir) or die $!;
	system_or_bail('tar', 'xf', $tar, '-C', $dir);
	unlink($tar);
	command_ok([ 'pg_verifybackup', $dir ], "$name: pg_verifybackup");
	return $torn;
}

# Torn pages are in the copy if WAL can repair them, else not.
sub check_torn
{
	my ($node, $primary, $dir, $torn, $test_name) = @_;
	my $n = torn_in($dir, $torn);

	if ($node == $primary)
	{
		cmp_ok($n, '>', 0, "$test_name: torn pages were read");
	}
	else
	{
		is($n, 0, "$test_name: no torn pages were read");
	}
	return;
}

# A copy follows the primary, and is as it is.
sub copy_ok
{
	my ($copy, $primary, $test_name) = @_;
	my $offset = (-s $copy->logfile) // 0;

	$copy->append_conf('postgresql.conf', "summarize_wal = off\n");
	$copy->enable_streaming($primary);
	$copy->start;
	$primary->wait_for_replay_catchup($copy);
	is(contents($copy), contents($primary), "$test_name: same data");
	unlike(
		slurp_file($copy->logfile, $offset),
		qr/invalid page|page verification failed|double-write log: examined/,
		"$test_name: no torn page is met");
	dw_check_amcheck($copy);
	$copy->stop;
	$copy->command_ok([ 'pg_checksums', '--check', '-D', $copy->data_dir ],
		"$test_name: checksums are right");
	$copy->clean_node;
	return;
}

sub test_basebackup
{
	my ($node, $primary) = @_;
	my $name = $node->name;
	my $full = $node->backup_dir . '/full';
	my $torn = torn_backup($node, $primary, 'full');

	check_torn($node, $primary, $full, $torn, 'full');
	my $copy = PostgreSQL::Test::Cluster->new("full_$name");
	$copy->init_from_backup($node, 'full');
	copy_ok($copy, $primary, "full backup of $name");

	# an incremental one needs changes since, and a checkpoint after them
	change_pages($primary);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($node) if $node != $primary;
	$torn = torn_backup($node, $primary, 'incremental',
		"--incremental=$full/backup_manifest");
	$copy = PostgreSQL::Test::Cluster->new("incremental_$name");
	$copy->init_from_backup($node, 'incremental',
		combine_with_prior => ['full']);
	command_ok(
		[
			'pg_verifybackup', '--no-parse-wal',
			'--ignore=postgresql.conf', $copy->data_dir
		],
		'combined: pg_verifybackup');
	check_torn($node, $primary, $copy->data_dir, $torn, 'combined');
	copy_ok($copy, $primary, "incremental backup of $name");
	return;
}

# A page of a primary whose first half is still as it was does not tell that it
# has changed since the backup began, and looks damaged.  It is read again when
# no process writes it.
sub test_looks_damaged
{
	my ($node) = @_;
	my $path = $node->safe_psql('postgres',
		q{CHECKPOINT; SELECT pg_relation_filepath('accounts')});
	my %before = map { s{^\Q@{[ $node->data_dir ]}\E/}{}r => slurp_file($_) }
	  grep { /\Q$path\E(?:\.\d+)?$/ } glob($node->data_dir . "/$path*");
	my $tar = $node->backup_dir . '/looks_damaged.tar';
	my $damaged = 0;

	my $from = begin_backup($node);
	my $torn = hold_torn($node, $node);
	foreach my $t (@$torn)
	{
		my $old =
		  substr($before{ $t->{path} } // '', $t->{offset}, BLCKSZ / 2);

		next if length($old) == 0;
		write_block($node, $t->{path}, $t->{offset},
			$old . substr($t->{whole}, BLCKSZ / 2));
		$damaged++;
	}
	cmp_ok($damaged, '>', 0, 'pages look damaged');

	open(my $to, '>:raw', $tar) or die "$tar: $!";
	is(receive_until_held_up($node, $from, $to),
		1, 'a page that looks damaged is not read again while it is written');
	dw_release_flusher($node);
	receive_rest($from, $to);
	unlink($tar);
	return;
}

# ---------------------------------------------------------------------
# Copies of files
# ---------------------------------------------------------------------

sub copy_files
{
	my ($from, $to, $wanted) = @_;

	PostgreSQL::Test::RecursiveCopy::copypath(
		$from->data_dir,
		$to,
		filterfn => sub {
			my $path = shift;

			return $path !~ m{^postmaster\.(?:pid|opts)$|^pg_wal/.}
			  && $path =~ $wanted;
		});
	return;
}

# Tools that copy files themselves ask the primary for the label.  They may
# copy everything, the log included, or relation files from a standby that has
# made a restartpoint since the backup began.
sub test_copy
{
	my ($node, $primary) = @_;
	my $name = 'files_' . $node->name;
	my $dir = $primary->backup_dir . "/$name";
	my $session = $primary->background_psql('postgres', on_error_stop => 1);

	note "copy of files of " . $node->name;
	$session->query_safe('SET client_min_messages = warning');
	$session->query_safe(q{SELECT pg_backup_start('copy', true)});
	if ($node != $primary)
	{
		$primary->wait_for_replay_catchup($node);
		$node->safe_psql('postgres', 'CHECKPOINT');
	}

	my $torn = hold_torn($node, $primary);
	copy_files($primary, $dir, $node == $primary ? qr/^/ : qr/^(?!base\/.)/);
	if ($node != $primary)
	{
		rmdir("$dir/base") or die $!;
		copy_files($node, "$dir/standby", qr/^(?:$|base)/);
		rename("$dir/standby/base", "$dir/base") or die $!;
		rmdir("$dir/standby") or die $!;
	}
	dw_release_flusher($node);
	cmp_ok(torn_in($dir, $torn), '>', 0, "$name: torn pages were copied");
	cmp_ok(scalar(dw_segments("$dir/pg_doublewrite")),
		'>', 0, "$name: so was the log");

	my $label =
	  $session->query_safe('SELECT labelfile FROM pg_backup_stop()');
	$session->quit;
	unlink("$dir/backup_label") or die $!;
	append_to_file("$dir/backup_label", "$label\n");

	my $copy = PostgreSQL::Test::Cluster->new("copy_$name");
	$copy->init_from_backup($primary, $name);
	copy_ok($copy, $primary, $name);
	like(slurp_file($copy->logfile),
		$DISCARDED, "$name: the log is discarded");
	return;
}

# ---------------------------------------------------------------------
# pg_rewind from a running server
# ---------------------------------------------------------------------

sub test_rewind
{
	my ($old, $new) = @_;
	my $conf = $old->basedir . '/postgresql.conf.saved';
	my $stderr = '';

	# no images of earlier backups in the WAL that is replayed
	note 'pg_rewind';
	$old->safe_psql('postgres', 'CHECKPOINT');
	$old->wait_for_replay_catchup($new);
	$new->promote;
	$new->safe_psql('postgres', 'CHECKPOINT');
	change_pages($_) foreach ($old, $new);
	$old->stop('immediate');
	copy($old->data_dir . '/postgresql.conf', $conf) or die $!;

	my $torn = hold_torn($new, $new);
	my $rewind = IPC::Run::start(
		[
			'pg_rewind', '--no-sync',
			'--target-pgdata' => $old->data_dir,
			'--source-server' => $new->connstr('postgres')
		],
		'<' => \undef,
		'2>' => \$stderr);
	my $held_up = 0;
	watchdog_until(
		'pg_rewind is held up, or ends',
		sub {
			return 1 if !$rewind->pumpable;
			$rewind->pump_nb;
			$held_up = is_held_up($new);
			return $held_up;
		});
	is($held_up, 1, 'pg_rewind is held up by home writes');
	dw_release_flusher($new);
	ok($rewind->finish, 'pg_rewind succeeds') or note $stderr;
	is(torn_in($old->data_dir, $torn),
		0, 'pg_rewind: no torn pages were read');

	copy($conf, $old->data_dir . '/postgresql.conf') or die $!;
	$old->set_standby_mode;
	copy_ok($old, $new, 'pg_rewind');
	return;
}

my $primary = dw_new_node(
	'primary',
	init => { allows_streaming => 1, has_archiving => 1 },
	conf => $CONF);
$primary->start;
dw_workload_setup($primary, accounts => 20000);
$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "archive_mode = off\n");
$standby->start;
$primary->wait_for_replay_catchup($standby);

test_basebackup($primary, $primary);
test_looks_damaged($primary);
test_basebackup($standby, $primary);
test_copy($primary, $primary);
test_copy($standby, $primary);

# A page that cannot be written home keeps its own file from being read, and no others.
$primary->safe_psql('postgres', $_)
  foreach (
	'CREATE TABLE bad AS SELECT i FROM generate_series(1, 10) i',
	'CREATE TABLE good AS SELECT i FROM generate_series(1, 10) i',
	q{CREATE TABLESPACE elsewhere LOCATION ''},
	'CREATE TABLE bad_elsewhere TABLESPACE elsewhere AS SELECT i FROM generate_series(1, 10) i',
	'CHECKPOINT');
foreach my $bad ('bad', 'bad_elsewhere')
{
	# the background writer may write the page as soon as it is evicted
	$primary->safe_psql(
		'postgres', qq{
		SELECT points_fail_at('doublewrite-home-write', 'EIO', 1, 1000000);
		UPDATE $bad SET i = i + 1;
		SELECT dw_evict('$bad')});
	my $read = sub {
		return $primary->psql('postgres',
			"SELECT length(pg_read_binary_file(pg_relation_filepath('$_[0]')))"
		);
	};
	$primary->psql('postgres', 'SELECT dw_drain()');
	isnt($read->($bad), 0,
		"$bad: a file with a page that may be torn is not read");
	is($read->('good'), 0, '... and others are');
	my $path =
	  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('$bad')");
	$path =~ s{.*/(\d+/\d+)$}{/where/the/tablespace/is/$1};
	isnt($primary->psql('postgres', "SELECT dw_hold_home_writes('$path')"),
		0, '... nor is it by another name');
	isnt($primary->psql('postgres', "SELECT dw_hold_home_writes('./$path')"),
		0, '... or that');
	$primary->safe_psql('postgres',
		q{SELECT points_clear('doublewrite-home-write')});
	is($read->($bad), 0, '... and once the page can be written, it is');
}

# There is nothing that could protect the reads of others on a standby.
my ($ret, $stdout, $stderr) =
  $standby->psql('postgres', q{SELECT pg_backup_start('copy', true)});
like(
	$stderr,
	qr/ERROR:  WAL generated with "full_page_writes=off" was replayed/,
	'pg_backup_start() is refused on a standby');

test_rewind($primary, $standby);

$standby->stop;

done_testing();
