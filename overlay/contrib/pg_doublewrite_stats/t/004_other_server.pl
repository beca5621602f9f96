
# Copyright (c) 2025, PostgreSQL Global Development Group

# The library may be loaded by a server of another version, as packages replace
# it while the old server runs.  So it asks the server, and knows nothing of how
# the server's memory is laid out.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
my ($file) = glob("$dir/pg_doublewrite_stats.*");
ok(defined $file, 'there is a library') or BAIL_OUT("no library in $dir");

my $library = slurp_file($file);
like($library, qr/\bDoubleWriteTakeSnapshot\b/, 'it asks the server');
my %internal =
  map { $_ => 1 }
  $library =~
  /\b(DWCtl\w*|DWSlots|DWPages|DWStats|dw_\w+|doublewrite_internal\.h)\b/g;
is(join(' ', sort keys %internal), '', 'it uses nothing internal');
done_testing();
