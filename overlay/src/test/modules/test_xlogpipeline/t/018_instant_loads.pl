
# Copyright (c) 2025, PostgreSQL Global Development Group

# Redo page by page of loads as users have them: the server crashes under each,
# and leaves the same files as after redo in the order of WAL.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use XLogPipeline;

xlp_require_injection_points();

my $rows = 3000;
my $documents = 300;

# Ten rows anywhere
my $random = join('', map { "\\set r$_ random(1, $rows)\n" } (1 .. 10));
my $chosen = join(', ', map { ":r$_" } (1 .. 10));

# Arguments of pgbench or a script for it, how many transactions, and records that
# are to be among what they write.
my @loads = (
	{
		name => 'tpcb',
		arguments => '--builtin=tpcb-like',
		transactions => 1000,
		records => [ 'Heap/UPDATE', 'Heap/HOT_UPDATE', 'Heap/INSERT' ],
	},
	{
		name => 'simple_update',
		arguments => '--builtin=simple-update',
		transactions => 1000,
		records => [ 'Heap/UPDATE', 'Heap/INSERT' ],
	},
	{
		name => 'bulk_insert',
		transactions => 100,
		records => [ 'Heap/INSERT', 'Heap/INSERT+INIT', 'Btree/INSERT_LEAF' ],
		script => q{
INSERT INTO bulk (k, pad) SELECT hashint4(i), '' FROM generate_series(1, 100) i;
},
	},
	# neighbouring rows, and some that go and come
	{
		name => 'range_update',
		transactions => 100,
		records => [ 'Heap/UPDATE', 'Heap/DELETE', 'Btree/INSERT_LEAF' ],
		script => qq{
\\set low random(1, $rows - 100)
\\set gone random(1, $rows)
BEGIN;
UPDATE ranges SET k = k + 1 WHERE id BETWEEN :low AND :low + 99;
DELETE FROM ranges WHERE id BETWEEN :gone AND :gone + 4;
INSERT INTO ranges SELECT :gone + i, i, '' FROM generate_series(0, 4) i
	ON CONFLICT DO NOTHING;
COMMIT;
},
	},
	{
		name => 'hot_update',
		transactions => 400,
		records => [ 'Heap/HOT_UPDATE', 'Heap2/PRUNE_ON_ACCESS' ],
		script => "$random UPDATE hot SET k = k + 1 WHERE id IN ($chosen);\n",
	},
	{
		name => 'non_hot_update',
		transactions => 400,
		records => [ 'Heap/UPDATE', 'Btree/INSERT_LEAF' ],
		script =>
		  "$random UPDATE cold SET k = k + 1 WHERE id IN ($chosen);\n",
	},
	# bodies are stored out of line
	{
		name => 'documents',
		transactions => 100,
		records => [
			'Heap/INSERT', 'Btree/INSERT_LEAF',
			'Gin/UPDATE_META_PAGE', 'Hash/INSERT'
		],
		script => qq{
\\set new random(1, 2000000000)
\\set old random(1, $documents)
BEGIN;
INSERT INTO documents SELECT * FROM document(:new) ON CONFLICT DO NOTHING;
UPDATE documents SET words = d.words, body = d.body
	FROM document(:new + 1) d WHERE documents.key = md5((:old)::text)::uuid;
COMMIT;
},
	},
	# many pages have been written home, or staged, after some of their records
	{
		name => 'small_buffers',
		conf => 'shared_buffers = 1MB',
		arguments => '--builtin=tpcb-like',
		transactions => 1000,
		records => [ 'Heap/HOT_UPDATE', 'Heap/INSERT' ],
	});

my $primary = xlp_primary('primary');
$primary->append_conf(
	'postgresql.conf', q{
deadlock_timeout = 10ms
wal_keep_size = 0
});
$primary->pgbench('--initialize --quiet',
	0, [qr/^$/], [qr/done in/], 'pgbench has its tables');
$primary->safe_psql(
	'postgres', qq{
	CREATE TABLE bulk (id bigserial PRIMARY KEY, k int, pad char(84));
	CREATE TABLE ranges (id bigint PRIMARY KEY, k int, pad char(84));
	CREATE TABLE hot (LIKE ranges INCLUDING ALL) WITH (fillfactor = 60);
	CREATE TABLE cold (LIKE ranges INCLUDING ALL);
	CREATE INDEX ON cold (k);
	INSERT INTO ranges
		SELECT i, hashint4(i), '' FROM generate_series(1, $rows) i;
	INSERT INTO hot SELECT * FROM ranges;
	INSERT INTO cold SELECT * FROM ranges;

	CREATE TABLE documents (key uuid PRIMARY KEY, owner int, made timestamptz,
		words int[], body text);
	CREATE INDEX ON documents USING gin (words);
	CREATE INDEX ON documents USING hash (owner);
	CREATE INDEX ON documents USING brin (made);
	CREATE FUNCTION document(i int) RETURNS documents AS
	\$\$SELECT md5(i::text)::uuid, i % 5000,
		timestamptz '2026-06-01' + i % 100000 * interval '1 second',
		ARRAY(SELECT hashint4(i + j) & 4095 FROM generate_series(1, 20) j),
		(SELECT string_agg(md5((i + j)::text), '')
			FROM generate_series(1, 120) j)\$\$
	LANGUAGE sql;
	INSERT INTO documents SELECT d.*
		FROM generate_series(1, $documents) i, document(i) d;
});
$primary->safe_psql('postgres', 'VACUUM');
$primary->stop;

# Run a load up to the crash; returns where redo is to begin.
sub run_load
{
	my ($load) = @_;
	my $name = $load->{name};

	$primary->append_conf('postgresql.conf', $load->{conf} // '');
	$primary->start;
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my $redo_lsn = $primary->safe_psql('postgres',
		'SELECT redo_lsn FROM pg_control_checkpoint()');

	# rows are locked in any order, so there may be deadlocks
	$primary->pgbench(
		join(' ',
			'--no-vacuum --protocol=prepared --random-seed=1 --max-tries=10',
			'--client=2 --transactions=' . $load->{transactions} / 2,
			$load->{arguments} // ''),
		0,
		[qr/number of failed transactions: 0 /],
		[qr/^pgbench: setting random seed to 1$/],
		"$name: load",
		$load->{script} ? { $name => $load->{script} } : undef);
	xlp_crash($primary, $name);
	return $redo_lsn;
}

foreach my $load (@loads)
{
	my $name = $load->{name};
	my $redo_lsn = run_load($load);

	my ($statistics) = run_command(
		[
			'pg_waldump', '--stats=record', "--start=$redo_lsn",
			'--path=' . $primary->backup_dir . "/$name/pg_wal"
		]);
	foreach my $record (@{ $load->{records} })
	{
		like($statistics, qr/^\Q$record\E +\d{2}/m, "... writes $record");
	}

	my ($serial, $expected) = xlp_recover($primary, $name, "${name}_serial",
		"instant_recovery = off\nrecovery_workers = 0");
	ok(!xlp_pending($serial), '... is recovered before clients get in');

	my ($instant, $digest) = xlp_recover($primary, $name, "${name}_instant",
		"instant_recovery = on\nrecovery_workers = 2");
	my ($pages, $records) = xlp_pending($instant);

	cmp_ok($pages   // 0, '>', 50, '... or opens with pages that wait');
	cmp_ok($records // 0, '>', 2 * ($pages // 0), '... for several records');
	is(xlp_redone($instant), $pages, '... and is redone page by page');
	is(xlp_differences($expected, $digest), '', "$name: same files");
	unlike(slurp_file($instant->logfile),
		qr/PANIC|ERROR/, '... without complaints');

	$_->clean_node foreach ($serial, $instant);
}

done_testing();
