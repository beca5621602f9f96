
# Copyright (c) 2025, PostgreSQL Global Development Group

# pg_rewind of an old primary in double_writes that has crashed, against the
# standby that has been promoted: from its files, and from the live server; and
# of one with hints that no record tells of.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Hold;
use DoubleWrite::Node;
use DoubleWrite::Workload;
use File::Copy;
use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';

# A primary that has crashed with changes of its own, and a standby that has
# been promoted before.  With a link, the log of the primary is elsewhere.
sub diverge
{
	my ($name, %params) = @_;
	my $old = dw_new_node(
		"${name}_old",
		init => { allows_streaming => 1 },
		conf => "wal_log_hints = off\nwal_keep_size = 1GB\n");

	if ($params{link})
	{
		my $dir = $old->basedir . '/log_elsewhere';

		unlink(glob($old->data_dir . '/pg_doublewrite/*'));
		rmdir($old->data_dir . '/pg_doublewrite') or die $!;
		mkdir($dir, 0700) or die $!;
		symlink($dir, $old->data_dir . '/pg_doublewrite') or die $!;
	}
	$old->start;
	dw_workload_setup($old);
	$old->safe_psql('postgres', 'CREATE TABLE origin (name text)');
	$old->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);

	my $new = PostgreSQL::Test::Cluster->new("${name}_new");
	$new->init_from_backup($old, 'base', has_streaming => 1);
	$new->{dw_checksums} = 1;
	$new->start;
	dw_workload_start($old, transactions => 100);
	dw_workload_finish($old);
	$old->wait_for_replay_catchup($new);
	$new->promote;
	$new->safe_psql('postgres',
		"INSERT INTO origin VALUES ('new'); CHECKPOINT");
	$new->safe_psql('postgres',
		'UPDATE accounts SET filler = repeat(\'n\', 150) WHERE id % 3 = 0');

	# what the old one does now is lost
	$old->safe_psql('postgres', "INSERT INTO origin VALUES ('old')");
	$old->safe_psql('postgres',
		'UPDATE accounts SET filler = repeat(\'o\', 150); SELECT dw_drain()');
	$old->stop('immediate');
	ok(-f $old->data_dir . "/$MARKER", "$name: old primary has crashed");
	return ($old, $new);
}

sub rewind
{
	my ($old, $new, @source) = @_;
	my $conf = $old->basedir . '/postgresql.conf.saved';
	my @cmd = (
		'pg_rewind', '--debug',
		'--target-pgdata' => $old->data_dir,
		'--no-sync', @source);
	my ($stdout, $stderr);

	copy($old->data_dir . '/postgresql.conf', $conf) or die $!;
	note(join(' ', @cmd));
	my $result = IPC::Run::run(\@cmd, '>' => \$stdout, '2>' => \$stderr);
	note($stderr) if !$result;
	copy($conf, $old->data_dir . '/postgresql.conf') or die $!;
	return ($result, $stderr);
}

# The rewound server must be as the new one is.
sub follows
{
	my ($old, $new, $name) = @_;
	my $offset = -s $old->logfile;

	$old->enable_streaming($new);
	$old->set_standby_mode;
	unlike(
		slurp_file($old->data_dir . "/$MARKER"),
		qr/DOUBLE WRITE/,
		"$name: the label is that of pg_rewind");
	$old->start;
	$new->wait_for_replay_catchup($old);
	unlike(
		slurp_file($old->logfile, $offset),
		qr/double-write log: examined|invalid page|page verification failed/,
		"$name: no old copies are restored, no torn page is met");
	is($old->safe_psql('postgres', 'SELECT name FROM origin'),
		'new', "$name: it follows the new primary");
	my $query = 'SELECT sum(hashtextextended(a::text, 0)) FROM accounts a';
	is( $old->safe_psql('postgres', $query),
		$new->safe_psql('postgres', $query),
		"$name: data are the same");
	dw_check_amcheck($old);
	$old->stop;
	$old->command_ok([ 'pg_checksums', '--check', '-D', $old->data_dir ],
		"$name: checksums are right");
	return;
}

# ---------------------------------------------------------------------
# From the files of the new primary
# ---------------------------------------------------------------------

for my $name ('files', 'files_link', 'files_link_only')
{
	my ($old, $new) = diverge($name, link => $name ne 'files');

	$new->stop;
	# as where the source comes from stock and has never been in double_writes
	rmtree($new->data_dir . '/pg_doublewrite') if $name eq 'files_link_only';
	my ($result) = rewind($old, $new, '--source-pgdata' => $new->data_dir);
	ok($result, "$name: pg_rewind succeeds");
	ok( -d $old->data_dir . '/pg_doublewrite',
		"$name: the log directory is kept");
	$new->start;
	follows($old, $new, $name) if $result;
	$new->stop;
}

# ---------------------------------------------------------------------
# Hints that tell of what the source has not done
# ---------------------------------------------------------------------

# A row is deleted between redo pointer and record of the last common checkpoint; only
# the old primary commits that.  A hint says so there, of which no record tells.
sub hints
{
	my $point = 'doublewrite-checkpoint-scanned';
	my $old = dw_new_node(
		'hints_old',
		init => { allows_streaming => 1 },
		conf => "wal_log_hints = off\nwal_keep_size = 1GB\n");

	$old->start;
	dw_extensions($old);
	$old->safe_psql(
		'postgres', q{
		CREATE TABLE hinted AS SELECT generate_series(1, 100) AS i;
		VACUUM hinted;
		CHECKPOINT});
	$old->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);
	my $new = PostgreSQL::Test::Cluster->new('hints_new');
	$new->init_from_backup($old, 'base', has_streaming => 1);
	$new->start;

	$old->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	my $checkpoint = dw_start($old, 'checkpoint', 'CHECKPOINT');
	$old->wait_for_event('checkpointer', $point);
	my $deletes = $old->background_psql('postgres');
	$deletes->query_safe('BEGIN; DELETE FROM hinted WHERE i = 1');
	dw_wake($old, $point);
	dw_finish($checkpoint);
	$old->wait_for_replay_catchup($new);
	$new->promote;
	$new->safe_psql('postgres', 'CHECKPOINT');

	$deletes->query_safe('COMMIT');
	$deletes->quit;
	is($old->safe_psql('postgres', 'SELECT count(*) FROM hinted'),
		99, 'hints: the old primary has deleted a row');
	$old->stop;
	$new->stop;
	my ($result) = rewind($old, $new, '--source-pgdata' => $new->data_dir);
	ok($result, 'hints: pg_rewind succeeds');
	$new->start;
	$old->enable_streaming($new);
	$old->set_standby_mode;
	$old->start;
	$new->wait_for_replay_catchup($old);
	is($_->safe_psql('postgres', 'SELECT count(*) FROM hinted'),
		100, 'hints: ' . $_->name . ' has it')
	  foreach ($new, $old);
	$old->stop;
	$new->stop;
	return;
}

hints();

# ---------------------------------------------------------------------
# From the live server: it protects what is read, or it is refused
# ---------------------------------------------------------------------

my ($old, $new) = diverge('live');
$new->{$_} = $old->{$_} for qw(dw_script dw_run dw_acked);
$new->append_conf('postgresql.conf', "wal_keep_size = 1GB\n");
$new->reload;
dw_workload_start($new);
my ($result, $stderr) =
  rewind($old, $new, '--source-server' => $new->connstr('postgres'));
dw_workload_stop($new);

if ($result)
{
	pass('live: pg_rewind succeeds');
	follows($old, $new, 'live');
}
else
{
	like($stderr, qr/io_torn_pages_protection/,
		'live: pg_rewind refuses and names the setting');
}
$new->stop;

done_testing();
