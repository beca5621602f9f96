
# Copyright (c) 2026, PostgreSQL Global Development Group

# What is learnt from crash recoveries whose durations are made up: one odd recovery
# spoils no prediction after it, and storage that has changed is known after two.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use DoubleWrite::Node;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

dw_require_injection_points();

my $node = dw_new_node('main');
$node->start;
dw_extensions($node);

# Predictions for recoveries given as [amount, milliseconds]
sub predictions
{
	my ($part, $busy, @recoveries) = @_;
	my $amounts = join ',', map { $_->[0] } @recoveries;
	my $milliseconds = join ',', map { $_->[1] } @recoveries;

	return split /,/, $node->safe_psql(
		'postgres', qq{
		SELECT string_agg(round(ms)::text, ',' ORDER BY n)
		  FROM unnest(dw_predictions('$part', '{$amounts}', '{$milliseconds}', $busy))
			   WITH ORDINALITY AS predicted(ms, n)
	});
}

# Are the predictions from one on all within a quarter of these times?
sub right_from
{
	my ($what, $from, $predicted, @expected) = @_;
	my @off = grep {
		$predicted->[$_] < 0.75 * $expected[$_]
		  || $predicted->[$_] > 1.25 * $expected[$_]
	} $from .. $#expected;

	is("@off", '', "$what: " . join(' ', @$predicted));
	return;
}

# So many of each, at 1000 ms, but for the odd one.  In the order of blocks read
# twice as many do not take twice as long, so all are as many.
my %amounts = (
	log => 50_000,
	restore => 5_000,
	wal => 50_000,
	reads => 4_096,
	checkpoint => 5_000,
	start => 0);

foreach my $part (sort keys %amounts)
{
	my $amount = $amounts{$part};

	foreach my $odd (100, 4_000, 1_000_000)
	{
		foreach my $place (1, 2, 6)
		{
			my @took = (1_000) x 9;
			my @expected = @took;

			$took[$place] = $odd;
			my @predicted = predictions($part, 'false', map { [ $amount, $_ ] } @took);
			# Of two starts the shorter one is believed.
			my $first = $part eq 'start' && $place == 1 && $odd < 1_000 ? 3 : 1;
			right_from("$part: $odd ms once, as recovery $place", $first, \@predicted, @expected);
		}
	}
	foreach my $new (100, 4_000, 60_000)
	{
		foreach my $place (1, 5)
		{
			my @took = ((1_000) x $place, ($new) x 6);
			my @predicted = predictions($part, 'false', map { [ $amount, $_ ] } @took);
			my $known = $place + ($part eq 'start' ? 3 : 2);

			right_from("$part: $new ms from recovery $place on",
				$known, \@predicted, @took);
		}
	}
}

# After the very first one nothing else is known, odd or not.
foreach my $first (100, 60_000)
{
	my @took = ($first, (1_000) x 5);
	my @predicted = predictions('reads', 'false', map { [ 4_096, $_ ] } @took);

	right_from("reads: $first ms at first", 3, \@predicted, @took);
}

# Recoveries that tell nothing do not count: few blocks, which take the time of
# beginning.
{
	my @recoveries = ([ 4_096, 1_000 ], [ 4_096, 1_000 ], [ 4_096, 30_000 ], [ 10, 500 ],
		[ 10, 500 ], [ 4_096, 1_000 ], [ 10, 500 ], [ 4_096, 1_000 ]);
	my @predicted = predictions('reads', 'false', @recoveries);

	right_from('reads: few in between', 0,
		[ @predicted[ 1, 2, 5, 7 ] ], (1_000) x 4);
}

# Redo that computes all the time says only what reads cost at most.
{
	my @predicted = predictions('reads', 'true',
		map { [ 4_096, $_ ] } 10_000, 1_000, 1_000, 1_000, 10_000, 10_000);

	cmp_ok($predicted[1], '>=', 1_250, "reads: a default below what was computed stays");
	right_from('reads: computing', 3, \@predicted, (1_000) x 6);
}

# The power comes from all that are not odd: four times as many blocks take twice as
# long here, whatever one of them has taken.
{
	my @sizes = (2_048, 8_192, 4_096, 16_384, 2_048, 16_384, 8_192, 2_048, 16_384,
		2_048, 16_384, 2_048);
	my @took = map { int(1_000 * sqrt($_ / 4_096)) } @sizes;
	my @expected = @took;

	$took[8] *= 10;
	my @predicted = predictions('reads', 'false', map { [ $sizes[$_], $took[$_] ] } 0 .. $#sizes);

	right_from('reads: an odd one among the largest', 6, \@predicted, @expected);
}

$node->stop;

done_testing();
