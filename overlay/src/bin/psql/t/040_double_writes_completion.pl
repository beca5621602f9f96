
# Copyright (c) 2025, PostgreSQL Global Development Group

# Tab completion of the settings of double writes.  psql asks the server for
# names and values, so nothing in it knows them.

use strict;
use warnings FATAL => 'all';

use Data::Dumper;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PostgreSQL::Test::Watchdog;
use Test::More;

if (!defined($ENV{with_readline}) || $ENV{with_readline} ne 'yes')
{
	plan skip_all => 'readline is not supported by this build';
}
if (defined($ENV{SKIP_READLINE_TESTS}))
{
	plan skip_all => 'SKIP_READLINE_TESTS is set';
}
eval { require IO::Pty; };
if ($@)
{
	plan skip_all => 'IO::Pty is needed to run this test';
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;

my $h = $node->interactive_psql('postgres',
	history_file =>
	  "${PostgreSQL::Test::Utils::log_path}/040_psql_history.txt");

# Type something and see if psql responds as expected; then start over.
sub check_completion
{
	my ($send, $pattern, $annotation) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$h->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	my $out = $h->query_until($pattern, $send);
	my $okay = ($out =~ $pattern && !$h->{timeout}->is_expired);
	ok($okay, $annotation);
	local $Data::Dumper::Terse = 1;
	local $Data::Dumper::Useqq = 1;
	diag 'Actual output was ' . Dumper($out) . "Did not match \"$pattern\"\n"
	  if !$okay;
	$h->query_until(qr/Query buffer reset.*postgres=# /s, "\\r\n");
	return;
}

check_completion(
	"ALTER SYSTEM SET io_t\t",
	qr/io_torn_pages_protection /,
	'ALTER SYSTEM SET, name');
check_completion(
	"ALTER SYSTEM SET io_torn_pages_protection TO dou\t",
	qr/double_writes /,
	'ALTER SYSTEM SET, value');
check_completion(
	"ALTER SYSTEM SET io_torn_pages_protection = f\t",
	qr/full_pages /,
	'ALTER SYSTEM SET, value after =');
check_completion(
	"ALTER SYSTEM SET io_torn_pages_protection TO \t\t",
	qr/DEFAULT\s+atomic_writes\s+double_writes\s+full_pages\s+off/,
	'ALTER SYSTEM SET, all values');
check_completion("SET io_torn_pages_protection TO o\t",
	qr/off /, 'SET, value');
check_completion(
	"ALTER SYSTEM SET double_write_b\t",
	qr/double_write_buffer_size /,
	'size of the log');
check_completion(
	"ALTER SYSTEM SET double_write_s\t",
	qr/double_write_stage_size /,
	'size of the stage');
check_completion(
	"ALTER SYSTEM RESET io_t\t",
	qr/io_torn_pages_protection /,
	'ALTER SYSTEM RESET');
check_completion("SHOW double_write_b\t",
	qr/double_write_buffer_size /, 'SHOW');

$h->quit or die "psql returned $?";
$node->stop;
done_testing();
