
# Copyright (c) 2025, PostgreSQL Global Development Group

# Replication beyond one primary and one standby (see 103_standby): cascades,
# synchronous and delayed standbys, and standbys whose primary switches from
# one mode to another.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Check;
use DoubleWrite::Crash;
use DoubleWrite::Damage;
use DoubleWrite::Node;
use DoubleWrite::Pages;
use DoubleWrite::Workload;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';
my $SETTING = 'io_torn_pages_protection';
my $SAYS_SO =
  qr/LOG:  using double writes because the WAL being replayed lacks full-page images\n.*HINT:/;

# A log so large that no sync cycle frees any of it, so that whatever has been
# written since the last restartpoint may be torn.
my $CONF = "wal_log_hints = off\n" . "double_write_buffer_size = 1GB\n";

# Free space maps are not redone from WAL, and only safe in double_writes.
my $NO_FSM = qr/^(?!.*_fsm)/;

sub new_primary
{
	my ($name, $mode, $conf) = @_;
	my $primary = dw_new_node(
		$name,
		mode => $mode,
		init => { allows_streaming => 1, has_archiving => 1 },
		conf => $CONF . "wal_keep_size = 1GB\n" . ($conf // ''));

	$primary->start;
	dw_workload_setup($primary);
	$primary->backup('base', backup_options => [ '--checkpoint' => 'fast' ]);
	return $primary;
}

# A standby made of the primary's backup that follows $source.
sub new_standby
{
	my ($primary, $source, $name, $mode) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$standby->init_from_backup($primary, 'base');
	$standby->append_conf('postgresql.conf', "archive_mode = off\n");
	$standby->adjust_conf('postgresql.conf', $SETTING, $mode);
	if (defined $source)
	{
		$standby->enable_streaming($source);
	}
	else
	{
		$standby->enable_restoring($primary, 1);
	}
	$standby->{dw_checksums} = 1;
	$standby->start;
	return $standby;
}

sub same_as
{
	my ($source, $standby, $test_name) = @_;

	dw_wait_for_replay($source->lsn('flush'), $standby);
	is(dw_contents($standby), dw_contents($source), "$test_name: same data");
	return;
}

# Make restartpoints, and remember the files of each standby as they are then.
sub restartpoints
{
	my ($source, @standbys) = @_;

	$source->safe_psql('postgres', 'CHECKPOINT');
	dw_wait_for_replay($source->lsn('flush'), @standbys);
	return map {
		$_->safe_psql('postgres', 'CHECKPOINT');
		dw_snapshot($_);
	} @standbys;
}

# Tear whatever may be torn since the snapshot, and start.  Restore syncs what it
# restores, so the next crash needs a new snapshot, which is returned.
sub tear_and_start
{
	my ($node, $old) = @_;
	my $torn = dw_tear(
		$node, $old,
		unlogged_too => 1,
		only => $NO_FSM);

	cmp_ok($torn->{logged} + $torn->{unlogged},
		'>', 0, $node->name . ': pages were torn');
	dw_start_after_crash($node, $torn);
	return dw_snapshot($node);
}

sub marker_is
{
	my ($node, $expected, $test_name) = @_;

	is(-f $node->data_dir . "/$MARKER" ? 1 : 0, $expected, $test_name);
	return;
}

# What a promoted standby has to know of the load of its old primary.
sub inherit_load
{
	my ($node, $from) = @_;

	$node->{$_} = $from->{$_} for qw(dw_script dw_run);
	$node->{dw_acked} = { %{ $from->{dw_acked} } };
	return;
}

# ---------------------------------------------------------------------
# Cascade: primary -> first -> second
# ---------------------------------------------------------------------

# Both standbys crash under load; then the first is promoted, and the second
# follows it in whatever mode that is in.
sub test_cascade
{
	my ($mode, $first_mode, $second_mode) = @_;
	my $name = "${mode}_${first_mode}_${second_mode}";

	note "cascade: $mode, $first_mode, $second_mode";
	my $primary = new_primary("p_$name", $mode);
	my $first = new_standby($primary, $primary, "f_$name", $first_mode);
	my $second = new_standby($primary, $first, "s_$name", $second_mode);
	my ($old_first, $old_second) = restartpoints($primary, $first, $second);

	dw_workload_start($primary);
	dw_wait_for_pages($_, 100) foreach ($first, $second);
	$second->stop('immediate');
	tear_and_start($second, $old_second);
	$first->stop('immediate');
	tear_and_start($first, $old_first);
	dw_wait_for_pages($second, 50);
	dw_workload_stop($primary);
	same_as($primary, $first, 'first standby');
	same_as($primary, $second, 'second standby');

	$primary->stop;
	is($first->safe_psql('postgres', 'SELECT pg_promote()'),
		't', 'promotion of the first');
	inherit_load($first, $primary);
	($old_second) = restartpoints($first, $second);
	dw_workload_start($first);
	dw_wait_for_pages($second, 100);
	$second->stop('immediate');
	tear_and_start($second, $old_second);
	dw_workload_stop($first);
	same_as($first, $second, 'second standby follows the first');

	my $lacks_images = $mode ne 'full_pages' || $first_mode ne 'full_pages';
	is( slurp_file($second->logfile) =~ $SAYS_SO      ? 1 : 0,
		$second_mode eq 'full_pages' && $lacks_images ? 1 : 0,
		'the second says so if it uses double writes by itself');

	$second->stop;
	dw_check($first);
	$_->clean_node foreach ($primary, $first, $second);
	return;
}

test_cascade('double_writes', 'full_pages', 'full_pages');
test_cascade('full_pages', 'double_writes', 'full_pages');
test_cascade('off', 'double_writes', 'double_writes');

# ---------------------------------------------------------------------
# Synchronous standby: what was acknowledged survives a crash of both
# ---------------------------------------------------------------------

sub test_synchronous
{
	my ($level, $standby_mode) = @_;
	my $primary = new_primary("sync_$level", 'double_writes');
	my $standby =
	  new_standby($primary, $primary, "sync_${level}_standby", $standby_mode);

	note "synchronous_commit = $level, standby in $standby_mode";
	$primary->append_conf('postgresql.conf',
			"synchronous_standby_names = '*'\n"
		  . "synchronous_commit = $level\n");
	$primary->reload;
	$primary->poll_query_until('postgres',
		"SELECT sync_state = 'sync' FROM pg_stat_replication")
	  or die 'timed out waiting for a synchronous standby';
	my ($old) = restartpoints($primary, $standby);

	dw_workload_start($primary);
	dw_wait_for_pages($standby, 100);
	$standby->stop('immediate');
	tear_and_start($standby, $old);

	# commits go on
	($old) = restartpoints($primary, $standby);
	dw_wait_for_pages($standby, 100);

	$primary->stop('immediate');
	$standby->stop('immediate');
	cmp_ok(dw_workload_finish($primary),
		'>', 0, 'transactions were acknowledged');
	tear_and_start($standby, $old);
	$standby->promote;
	inherit_load($standby, $primary);
	dw_check($standby);
	$_->clean_node foreach ($primary, $standby);
	return;
}

test_synchronous('on', 'double_writes');
test_synchronous('remote_apply', 'full_pages');

# ---------------------------------------------------------------------
# Delayed standby, fed by the archive, meets two switches of the primary
# ---------------------------------------------------------------------

my $primary = new_primary('delayed', 'double_writes');
my $standby = new_standby($primary, undef, 'delayed_standby', 'full_pages');

sub switch_primary
{
	my ($mode) = @_;

	$primary->adjust_conf('postgresql.conf', $SETTING, $mode);
	$primary->reload;

	# to full_pages it takes a checkpoint that began after images were back
	my $armed = $mode eq 'double_writes' ? 't' : 'f';
	$primary->poll_query_until('postgres',
		'CHECKPOINT; SELECT armed FROM dw_state()', $armed)
	  or die "timed out waiting for a switch to $mode";
	return;
}

sub archived_lsn
{
	my $lsn = $primary->lsn('write');

	$primary->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(false, 'test', 'filler')});
	my $file = $primary->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_switch_wal())');
	$primary->poll_query_until('postgres',
		"SELECT last_archived_wal >= '$file' FROM pg_stat_archiver")
	  or die 'timed out waiting for the archive';
	return $lsn;
}

sub delay
{
	my ($value) = @_;

	$standby->append_conf('postgresql.conf',
		"recovery_min_apply_delay = $value\n");
	$standby->reload;
	return;
}

$primary->safe_psql('postgres', 'CHECKPOINT');
dw_wait_for_replay(archived_lsn(), $standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
my $old = dw_snapshot($standby);
my $before = dw_contents($standby);
delay("'1h'");

dw_workload_start($primary, transactions => 100);
dw_workload_finish($primary);
switch_primary('full_pages');
dw_workload_start($primary, transactions => 100);
dw_workload_finish($primary);
switch_primary('double_writes');
dw_workload_start($primary, transactions => 100);
dw_workload_finish($primary);
my $lsn = archived_lsn();

my $waiting =
  q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'RecoveryApplyDelay'};
$standby->poll_query_until('postgres', $waiting)
  or die 'timed out waiting for the delay';
is(dw_contents($standby), $before, 'delayed standby: nothing committed yet');

$standby->stop('immediate');
dw_start_after_crash($standby, dw_tear($standby, $old));
$old = dw_snapshot($standby);
$standby->poll_query_until('postgres', $waiting)
  or die 'timed out waiting for the delay';
is(dw_contents($standby), $before, 'delayed standby: nor after a crash');

my $offset = -s $standby->logfile;
$standby->psql('postgres',
	q{SELECT points_crash_at('doublewrite-home-written')});
delay('0');

# It crashes while it replays; or in the restartpoint asked for then, if shared
# buffers have held it all.  Refused, psql must not be fed a statement.
my @ask = ('psql', '-XAt', '-d', $standby->connstr('postgres'), '-c');
my ($replayed, $refused) = ('', '');
while ($replayed ne 't' && $refused eq '')
{
	($replayed, $refused) =
	  run_command([ @ask, "SELECT pg_last_wal_replay_lsn() >= '$lsn'" ]);
}
run_command([ @ask, 'CHECKPOINT' ]);
dw_wait_for_crash($standby, $offset);

# The first batch that went home may be a few pages of which no half has changed.
dw_start_after_crash($standby,
	dw_tear($standby, $old, unlogged_too => 1, only => $NO_FSM));
dw_wait_for_replay($lsn, $standby);
is(dw_contents($standby), dw_contents($primary),
	'delayed standby: all is there');
like(slurp_file($standby->logfile), $SAYS_SO, 'delayed standby: says so');
dw_check_amcheck($standby);
$standby->stop;
$_->clean_node foreach ($primary, $standby);

# ---------------------------------------------------------------------
# Switches of the primary, seen by a standby set to full_pages
# ---------------------------------------------------------------------

$primary = new_primary('switch', 'full_pages');
$standby = new_standby($primary, $primary, 'switch_standby', 'full_pages');

sub says_so
{
	my ($expected, $test_name) = @_;
	my $text = slurp_file($standby->logfile, $offset);

	is($text =~ $SAYS_SO ? 1 : 0, $expected, "$test_name: in the server log");
	return;
}

$offset = -s $standby->logfile;
($old) = restartpoints($primary, $standby);
dw_workload_start($primary);
dw_wait_for_pages($standby, 100);
marker_is($standby, 0, 'images from the primary: no log');
says_so(0, 'images from the primary');

# crash where it notices that there will be no more images
$standby->psql('postgres', q{SELECT points_crash_at('doublewrite-armed')});
switch_primary('double_writes');
dw_wait_for_crash($standby, $offset);
marker_is($standby, 1, 'no images from the primary: log in use');
says_so(1, 'no images from the primary');
$old = tear_and_start($standby, $old);
dw_wait_for_pages($standby, 100);
$standby->stop('immediate');
tear_and_start($standby, $old);
dw_workload_stop($primary);
same_as($primary, $standby, 'no images from the primary');

# images are back: the log is given up at the next start
switch_primary('full_pages');
restartpoints($primary, $standby);
$standby->stop;
marker_is($standby, 0, 'clean stop');
$offset = -s $standby->logfile;
$standby->start;
($old) = restartpoints($primary, $standby);
dw_workload_start($primary);
dw_wait_for_pages($standby, 100);
$standby->stop('immediate');
marker_is($standby, 0, 'images are back: no log');
says_so(0, 'images are back');
$old = tear_and_start($standby, $old);

# off looks like double_writes from here
$primary->adjust_conf('postgresql.conf', $SETTING, 'off');
$primary->reload;
$standby->wait_for_log($SAYS_SO, $offset);
dw_wait_for_pages($standby, 100);
$standby->stop('immediate');
marker_is($standby, 1, 'primary without protection: log in use');
tear_and_start($standby, $old);
dw_workload_stop($primary);
same_as($primary, $standby, 'primary without protection');
dw_check_amcheck($standby);
dw_check_history($primary);
$_->stop foreach ($standby, $primary);

done_testing();
