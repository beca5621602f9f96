
# Copyright (c) 2025, PostgreSQL Global Development Group

# Switch between all pairs of modes at run time, under load, with a crash at
# each step: no page may be unprotected at any moment (R10).

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
use PostgreSQL::Test::Watchdog seconds => 900;
use Test::More;

dw_require_injection_points();

my $MARKER = 'backup_label';
my $SETTING = 'io_torn_pages_protection';

# Steps of each switch, as
#	from, to	modes
#	point		where to crash; without one, the server is stopped at once
#				when the switch is over
#	checkpoint	crash in a checkpoint after the switch
#	settled		condition that says that the switch is over
#	marker		whether the marker must be there after the crash
#	all			whether any page changed since the checkpoint before the
#				switch may be torn, not only those in the log
my $armed = 'SELECT armed FROM dw_state()';
my $disarmed = 'SELECT NOT armed FROM dw_state()';
my $disarming = "SELECT disarm_after <> '0/0' FROM dw_state()";

my @steps = (
	{
		from => 'full_pages',
		to => 'double_writes',
		point => 'before-low-water',
		marker => 0,
		all => 1
	},
	{
		from => 'full_pages',
		to => 'double_writes',
		point => 'armed',
		marker => 1,
		all => 1
	},
	{
		from => 'full_pages',
		to => 'double_writes',
		point => 'before-images-off',
		marker => 1,
		all => 1
	},
	{
		from => 'full_pages',
		to => 'double_writes',
		settled => $armed,
		marker => 1,
		all => 1,
		images => 0
	},
	{
		from => 'double_writes',
		to => 'full_pages',
		settled => $disarming,
		marker => 1,
		all => 1
	},
	{
		from => 'double_writes',
		to => 'full_pages',
		point => 'checkpoint-drained',
		checkpoint => 1,
		settled => $disarming,
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'full_pages',
		point => 'checkpoint-marked',
		checkpoint => 1,
		settled => $disarming,
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'full_pages',
		point => 'disarmed',
		checkpoint => 1,
		settled => $disarming,
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'full_pages',
		checkpoint => 1,
		settled => $disarming,
		finished => $disarmed,
		marker => 0,
		images => 1
	},
	{
		from => 'double_writes',
		to => 'off',
		point => 'sync-cycle-synced',
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'off',
		point => 'before-low-water',
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'off',
		point => 'disarmed',
		marker => 1
	},
	{
		from => 'double_writes',
		to => 'off',
		settled => $disarmed,
		marker => 0,
		images => 0
	},
	{
		from => 'off',
		to => 'double_writes',
		point => 'armed',
		marker => 1
	},
	{
		from => 'off',
		to => 'double_writes',
		settled => $armed,
		marker => 1,
		images => 0
	},
	{
		from => 'full_pages',
		to => 'atomic_writes',
		point => 'before-images-off',
		marker => 1,
		all => 1
	},
	{
		from => 'double_writes',
		to => 'atomic_writes',
		settled => "SELECT dw_setting() = 'atomic_writes'",
		marker => 1,
		images => 0
	},
	{
		from => 'atomic_writes',
		to => 'double_writes',
		settled => "SELECT dw_setting() = 'double_writes'",
		marker => 1,
		images => 0
	},
	{
		from => 'atomic_writes',
		to => 'full_pages',
		point => 'checkpoint-drained',
		checkpoint => 1,
		settled => $disarming,
		marker => 1
	},
	{
		from => 'atomic_writes',
		to => 'off',
		point => 'disarmed',
		marker => 1
	},
	{
		from => 'off',
		to => 'atomic_writes',
		settled => $armed,
		marker => 1,
		images => 0
	},
	{ from => 'off', to => 'full_pages', marker => 0, images => 1 },
	{ from => 'full_pages', to => 'off', marker => 0, images => 0 });

# Steps with atomic writes, where pretending makes them happen: between them and
# double writes, and each step that these have.  A page that was written atomically
# has no copy, so pages may be torn only where WAL still has images of all.
my @steps_atomic =
  grep { "$_->{from} $_->{to}" =~ /double.*atomic|atomic.*double/ } @steps;

foreach my $step (@steps)
{
	next
	  if "$step->{from} $step->{to}" !~ /double/
	  || "$step->{from} $step->{to}" =~ /atomic/;
	my %copy = %$step;

	s/double_writes/atomic_writes/ foreach @copy{qw(from to)};
	$copy{all} = $step->{from} eq 'full_pages' && defined $step->{point};
	push @steps_atomic, \%copy;
}

# a selection for wal_level = minimal, which logs no change of images itself
my @steps_minimal = grep {
	my $point = $_->{point} // '';

	$point eq 'before-images-off'
	  || $point eq 'disarmed'
	  || ($point eq '' && $_->{from} eq 'double_writes')
} @steps;

# Wait until WAL carries images, or none, as a checkpoint says.
sub wait_for_images
{
	my ($node, $expected) = @_;

	$node->poll_query_until(
		'postgres',
		'CHECKPOINT; SELECT full_page_writes::int FROM pg_control_checkpoint()',
		$expected) or die 'timed out waiting for a change of images';
	return;
}

# Wait until each client has committed twice more.
sub wait_for_commits
{
	my ($node) = @_;
	my $last =
	  "SELECT client, max(n) AS n FROM history WHERE run = $node->{dw_run} GROUP BY client";
	my @before = map { '(' . join(', ', split(/\|/)) . ')' }
	  split(/\n/, $node->safe_psql('postgres', $last));

	return unless @before;
	$node->poll_query_until('postgres',
			'SELECT bool_and(now.n >= before.n + 2) FROM (VALUES '
		  . join(', ', @before)
		  . ") before(client, n) JOIN ($last) now USING (client)");
	return;
}

sub check_images
{
	my ($node, $step) = @_;
	my $from = $node->lsn('insert');

	# Only the first change of a page after a redo pointer carries an image,
	# and the load may have changed all its pages by the end of a checkpoint.
	# WAL before the redo pointer may be gone then.
	if ($step->{images})
	{
		$node->safe_psql('postgres', 'CHECKPOINT');
		$from = $node->safe_psql('postgres',
			'SELECT redo_lsn FROM pg_control_checkpoint()');
	}
	else
	{
		# a record that was being made at the switch may carry one still
		wait_for_commits($node);
		$from = $node->lsn('insert');
	}
	dw_wait_for_pages($node, 200);
	my $n = dw_images_between($node, $from, $node->lsn('flush'));

	if ($step->{images})
	{
		cmp_ok($n, '>', 0, "WAL carries images in $step->{to}");
	}
	else
	{
		is($n, 0, "WAL carries no images in $step->{to}");
	}
	return;
}

sub switch_under_load
{
	my ($node, $step) = @_;
	my $offset = -s $node->logfile;

	$node->adjust_conf('postgresql.conf', $SETTING, $step->{to});
	$node->psql('postgres',
		"SELECT points_crash_at('doublewrite-$step->{point}')")
	  if defined $step->{point} && !$step->{checkpoint};
	$node->reload;

	if (defined $step->{settled})
	{
		$node->poll_query_until('postgres', $step->{settled})
		  or die 'timed out waiting for the switch';
	}
	elsif (!defined $step->{point})
	{
		wait_for_images($node, $step->{images});
	}

	if ($step->{checkpoint})
	{
		ok( -f $node->data_dir . "/$MARKER",
			'still armed before the checkpoint');
		$node->psql('postgres',
			"SELECT points_crash_at('doublewrite-$step->{point}')")
		  if defined $step->{point};
		$node->psql('postgres', 'CHECKPOINT');
	}
	if (defined $step->{finished})
	{
		$node->poll_query_until('postgres', $step->{finished})
		  or die 'timed out waiting for the end of the switch';
	}

	if (defined $step->{point})
	{
		dw_wait_for_crash($node, $offset);
	}
	else
	{
		if (defined $step->{images})
		{
			check_images($node, $step);
		}
		else
		{
			dw_wait_for_pages($node, 200);
		}
		$node->stop('immediate');
	}
	return;
}

sub test_step
{
	my ($node, $step, $pretending) = @_;
	my $torn;

	note "$step->{from} to $step->{to}, "
	  . (
		  defined $step->{point} ? "crash at $step->{point}"
		: $step->{checkpoint}    ? 'after the checkpoint'
		:                          'completed');

	$node->adjust_conf('postgresql.conf', $SETTING, $step->{from});
	$node->start;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $old = dw_snapshot($node);
	dw_workload_start($node);
	dw_wait_for_pages($node, 200);
	switch_under_load($node, $step);
	cmp_ok(dw_workload_finish($node),
		'>', 0, 'transactions were acknowledged');

	is(-f $node->data_dir . "/$MARKER" ? 1 : 0,
		$step->{marker}, 'marker is there while the log is in use');

	# What was written atomically is lost, as a whole, except what a checkpoint
	# has synced.
	dw_lose($node, $old, qr/^base/)
	  if $pretending
	  && !$step->{all}
	  && (!$step->{checkpoint}
		|| ($step->{point} // '') eq 'checkpoint-drained');

	# Free space maps may be torn in full_pages, as in stock: a map is not
	# redone from WAL, and what is found to be invalid is set up anew.
	$torn = dw_tear(
		$node, $old,
		unlogged_too => $step->{all},
		only => $step->{all} ? qr/^(?!.*_fsm)/ : undef);
	cmp_ok($torn->{logged} + $torn->{unlogged}, '>', 0, 'pages were torn')
	  if $step->{all};
	dw_start_after_crash($node, $torn);
	dw_check($node);
	return;
}

# ---------------------------------------------------------------------
# Every pair, with a crash at each step
# ---------------------------------------------------------------------

for my $wal_level ('replica', 'minimal')
{
	# a log so large that no sync cycle frees any of it
	my $node = dw_new_node(
		"switch_$wal_level",
		mode => 'full_pages',
		conf => "wal_level = $wal_level\n"
		  . "double_write_buffer_size = 1GB\n");

	$node->start;
	dw_workload_setup($node);
	$node->stop;
	test_step($node, $_)
	  for ($wal_level eq 'minimal' ? @steps_minimal : @steps);

	# the same again with pages that never pass through the log
	next if $wal_level eq 'minimal';
	$node->append_conf('postgresql.conf',
		"test_doublewrite.pretend_atomic = on\n");
	test_step($node, $_, 1) for @steps_atomic;
}

# ---------------------------------------------------------------------
# A checkpoint that began before images were back is not enough
# ---------------------------------------------------------------------

my $node = dw_new_node('checkpoint',
	conf =>
	  "checkpoint_completion_target = 0.9\nshared_buffers = 16MB\nbgwriter_lru_maxpages = 0\n"
);

$node->start;
dw_workload_setup($node, accounts => 20000);
$node->safe_psql('postgres', 'UPDATE accounts SET filler = filler');

# The slow checkpoint of a backup that waits for nothing but its schedule: a tenth of a
# second for each buffer.
my $offset = -s $node->logfile;
my $backup = $node->background_psql('postgres');
$backup->query_until(qr/started/,
	"\\echo started\nSELECT pg_backup_start('slow', false);\n");
$node->wait_for_log(qr/checkpoint starting/, $offset);

$node->adjust_conf('postgresql.conf', $SETTING, 'full_pages');
$node->reload;
$node->poll_query_until('postgres', $disarming)
  or die 'timed out waiting for the switch';
unlike(
	slurp_file($node->logfile, $offset),
	qr/checkpoint complete/,
	'the checkpoint is still under way');
$node->adjust_conf('postgresql.conf', 'checkpoint_completion_target', '0');
$node->reload;
$node->wait_for_log(qr/checkpoint complete/, $offset);
$backup->query_safe('SELECT 1');
ok(-f $node->data_dir . "/$MARKER", 'still armed when it is complete');
is($node->safe_psql('postgres', $armed), 't', 'still armed');
$backup->quit;

# and back, which needs nothing but a change of mind
$node->adjust_conf('postgresql.conf', $SETTING, 'double_writes');
$node->reload;
$node->poll_query_until('postgres',
	"SELECT armed AND disarm_after = '0/0' FROM dw_state()")
  or die 'timed out waiting for the switch';
$node->safe_psql('postgres', 'CHECKPOINT');
is($node->safe_psql('postgres', $armed), 't', 'armed after switching back');

$node->adjust_conf('postgresql.conf', $SETTING, 'full_pages');
$node->reload;
$node->poll_query_until('postgres', $disarming)
  or die 'timed out waiting for the switch';
$offset = -s $node->logfile;
$node->safe_psql('postgres', 'CHECKPOINT');
$node->wait_for_log(qr/torn page protection has switched to full-page images/,
	$offset);
ok(!-e $node->data_dir . "/$MARKER", 'the next checkpoint disarms');
$node->stop;

done_testing();
