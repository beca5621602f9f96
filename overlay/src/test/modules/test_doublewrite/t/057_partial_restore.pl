# Copyright (c) 2025, PostgreSQL Global Development Group

# Tools that restore only some databases of a base backup leave the files of the
# others empty.  WAL without images refers to their pages: recovery passes over
# them, and over no others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $PASSED_OVER =
  qr/LOG: .*has empty files: WAL that refers to their pages is not replayed/;
my $SUM = 'SELECT count(*), sum(v) FROM t';

my $primary = dw_quiet_node(
	'primary',
	mode => 'double_writes',
	init => { allows_streaming => 1, has_archiving => 1 });
my $volume = PostgreSQL::Test::Utils::tempdir_short();

mkdir "$volume/space" or die "could not make a directory: $!";
$primary->safe_psql('postgres',
	"CREATE TABLESPACE space LOCATION '$volume/space'");
foreach my $db ('keep', 'skip', 'skip_elsewhere TABLESPACE space')
{
	my ($name) = split / /, $db;

	$primary->safe_psql('postgres', "CREATE DATABASE $db");
	$primary->safe_psql(
		$name, q{
		CREATE TABLE t (i int PRIMARY KEY, v int) WITH (fillfactor = 60);
		INSERT INTO t SELECT g, 0 FROM generate_series(1, 5000) g});
}
my @skipped = split /\n/,
  $primary->safe_psql('postgres',
	q{SELECT oid FROM pg_database WHERE datname ~ 'skip' ORDER BY dattablespace}
  );
my $kept_file =
  $primary->safe_psql('keep', q{SELECT pg_relation_filepath('t')});


# Change rows in each database.
sub work
{
	my ($change) = @_;

	foreach my $db (qw(keep skip skip_elsewhere))
	{
		$primary->safe_psql($db, $change);
	}
	return;
}

my $session = $primary->background_psql('postgres');
$session->query_safe(q{SELECT pg_backup_start('b', true)});
work('UPDATE t SET v = v + 1 WHERE i <= 1000');
# a file may go meanwhile, of which cp complains: one of the archiver, for instance
system_log('cp', '-a', $primary->data_dir, "$volume/copy");
system_or_bail('cp', '-a', "$volume/space", "$volume/space_copy");
my $label =
  $session->query_safe(q{SELECT labelfile FROM pg_backup_stop(false)});
$session->quit;
unlink "$volume/copy/postmaster.pid";
append_to_file("$volume/copy/backup_label", "$label\n");
work(
	q{UPDATE t SET v = v + 1;
	INSERT INTO t SELECT g, 5 FROM generate_series(5001, 6000) g; DELETE FROM t WHERE i <= 10}
);
my $sum = $primary->safe_psql('keep', $SUM);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->stop;

# A cluster restored from the backup, in which the files for which 'which' tells so have
# been emptied by 'how'
sub restored
{
	my ($name, $how, $which) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $data = $node->data_dir;
	my $dir = "$volume/$name";

	system_or_bail('cp', '-a', "$volume/copy", $data);
	system_or_bail('cp', '-a', "$volume/space_copy", $dir);
	foreach my $link (glob "$data/pg_tblspc/*")
	{
		unlink $link;
		symlink $dir, $link or die "could not link $link: $!";
	}
	foreach my $file (glob("$data/base/*/*"), glob("$data/pg_tblspc/*/*/*/*"))
	{
		next unless $which->($file);
		my $size = -s $file;
		truncate $file, 0 or die "could not truncate $file: $!";
		truncate $file, $size if $how eq 'zeroes';
	}
	$node->append_conf('postgresql.conf', 'port = ' . $node->port);
	$node->append_conf('postgresql.conf',
		"archive_mode = off\nrestart_after_crash = off\nrestore_command = 'cp "
		  . $primary->archive_dir
		  . "/%f %p'\nrecovery_target_action = promote\n");
	append_to_file("$data/recovery.signal", '');
	return $node;
}

sub of_skipped
{
	my ($file) = @_;

	return grep { $file =~ m{/$_/[^/]+$} } @skipped;
}

foreach my $how ('zeroes', 'nothing')
{
	foreach my $map (1, 0)
	{
		my $name = "restored_${how}_" . ($map ? 'with_map' : 'whole');
		my $node = restored(
			$name, $how,
			sub {
				of_skipped($_[0])
				  && ($map ? $_[0] =~ m{/[0-9]\w*$} : $_[0] !~ /PG_VERSION$/);
			});

		$node->start;
		$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
		  or die 'timed out waiting for the end of recovery';
		my $log = slurp_file($node->logfile);
		is(scalar(() = $log =~ /$PASSED_OVER/g),
			2, "$name: two databases are passed over, each told once");
		is($node->safe_psql('keep', $SUM),
			$sum, "$name: rows of the other are right");
		$node->safe_psql('postgres', 'DROP DATABASE skip');
		$node->safe_psql('postgres', 'DROP DATABASE skip_elsewhere');
		$node->safe_psql('postgres', 'CHECKPOINT');
		$node->stop;
	}
}

# Files of a database that is used are missed, as ever
{
	my $node =
	  restored('damaged', 'zeroes', sub { $_[0] =~ /\Q$kept_file\E$/ });

	$node->start(fail_ok => 1);
	$node->wait_for_log(
		qr/PANIC: .*WAL contains references to invalid pages/);
	unlike(slurp_file($node->logfile),
		$PASSED_OVER, 'a table without pages is no database to pass over');
	$node->stop('immediate', fail_ok => 1);
}

done_testing();
