#!/bin/bash
# Rebuild catalogs beside transactions that change their rows: does each index
# have each row once, and is no row lost?
#
#	reindex_catalogs.sh BINDIR SCRATCH [SECONDS [PORT]]
#
# Run it as an ordinary user, best on a build with assertions, which stop a
# server of stock within a minute.  SCRATCH is a directory to make.  The last
# line says what was seen; exit code 0 means nothing wrong, 1 a failure, 2 that
# no server could be started.
#
# Sessions repeat random statements of one kind and don't mind if some fail, as
# they get into each other's way: deadlocks, lock timeouts.

set -u

bin=$1 scratch=$2 seconds=${3:-300} port=${4:-7432}
data=$scratch/data log=$scratch/log tables=12

# Catalogs whose rows DDL changes without a change of indexed columns.
catalogs=(pg_index pg_class pg_constraint pg_statistic_ext pg_trigger pg_attribute)

sql() {
	"$bin/psql" -h "$scratch" -p "$port" -U postgres -XAtq -d postgres "$@"
}

table() {
	echo "t$((RANDOM % tables))"
}

catalog() {
	echo "${catalogs[RANDOM % ${#catalogs[@]}]}"
}

finish() {
	echo "$((RANDOM % 2))" | sed 's/0/COMMIT;/; s/1/ROLLBACK;/'
}

# What is under test, at the end of it with a look at the indexes, and for each row in them.
rebuild() {
	local c=${catalogs[RANDOM % 3]}

	((RANDOM % 2)) && c=$(catalog)
	((RANDOM % 8)) && echo "REINDEX TABLE $c;" || echo "VACUUM FULL $c;"
	echo "SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = '$c'::regclass;"
}

# A chain whose root is old: its transaction rolls back, or a part of it does.
update() {
	local t
	t=$(table)

	echo "BEGIN; SAVEPOINT s;"
	case $((RANDOM % 4)) in
		0) echo "ALTER TABLE $t CLUSTER ON ${t}_pkey; ALTER TABLE $t SET WITHOUT CLUSTER;" ;;
		1) echo "ALTER TABLE $t SET (fillfactor = $((RANDOM % 90 + 10)));" ;;
		2) echo "ALTER STATISTICS ${t}_s SET STATISTICS $((RANDOM % 100));" ;;
		3) echo "ALTER TABLE $t DISABLE TRIGGER ${t}_t;" ;;
	esac
	((RANDOM % 2)) && echo "ROLLBACK TO s;"
	((RANDOM % 2)) && echo "SELECT pg_sleep(0.00$((RANDOM % 10)));"
	finish
}

# A chain whose root is of the same transaction.  If rows of the table have been
# updated in it, CREATE INDEX updates the row that it has made in pg_index.
create() {
	local t
	t=$(table)

	echo "BEGIN; UPDATE $t SET b = b + 1 WHERE a < 5; CREATE INDEX ${t}_b ON $t (b);"
	((RANDOM % 2)) && echo "CREATE TABLE n_$t (a int); ALTER TABLE n_$t SET (fillfactor = 50);"
	((RANDOM % 2)) && echo "SELECT pg_sleep(0.00$((RANDOM % 10)));"
	finish
	echo "DROP INDEX IF EXISTS ${t}_b; DROP TABLE IF EXISTS n_$t;"
}

# Line pointers are freed, and used by new members.
vacuum() {
	echo "VACUUM $(catalog); SELECT pg_sleep(0.05);"
}

# Repeat a kind of statements until the time is over or the server has gone.
session() {
	RANDOM=$2
	while "$1" 2>/dev/null; do
		:
	done | PGOPTIONS="-c lock_timeout=1s -c client_min_messages=error" timeout "$seconds" \
		"$bin/psql" -h "$scratch" -p "$port" -U postgres -XAtq -d postgres >>"$scratch/$1.out" 2>&1
}

mkdir -p "$scratch" && "$bin/initdb" -D "$data" -U postgres -A trust -N >"$scratch/initdb" 2>&1 || exit 2
cat >>"$data/postgresql.conf" <<CONF
port = $port
unix_socket_directories = '$scratch'
listen_addresses = ''
shared_buffers = 2MB
autovacuum = off
fsync = off
max_wal_size = 256MB
deadlock_timeout = 10ms
restart_after_crash = off
CONF
"$bin/pg_ctl" -D "$data" -l "$log" -w start >/dev/null || exit 2
trap '"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1' EXIT
sql -c "CREATE EXTENSION amcheck" -c "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
for ((i = 0; i < tables; i++)); do
	echo "CREATE TABLE t$i (a int PRIMARY KEY, b int) WITH (fillfactor = 50);
		INSERT INTO t$i SELECT g, g FROM generate_series(1, 50) g;
		CREATE STATISTICS t${i}_s ON a, b FROM t$i;
		CREATE TRIGGER t${i}_t AFTER TRUNCATE ON t$i EXECUTE FUNCTION f();"
done | sql

SECONDS=0 seed=0 sessions=()
for kind in rebuild rebuild update update update create create create vacuum; do
	session $kind $((++seed)) &
	sessions+=($!)
done
wait "${sessions[@]}"

if grep -m 1 TRAP "$log"; then
	echo "failed after $SECONDS s: a failed assertion"
	exit 1
fi
lost=$(sql <<SQL
SELECT count(*) FROM generate_series(0, $tables - 1) i WHERE NOT EXISTS (
	SELECT FROM pg_class c JOIN pg_index ON indrelid = c.oid JOIN pg_statistic_ext ON stxrelid = c.oid
	JOIN pg_trigger ON tgrelid = c.oid WHERE relname = 't' || i AND indisprimary);
SQL
)
if grep -hm 1 "item order invariant\|invariant violated\|lacks matching index tuple" "$scratch"/*.out || [ "$lost" != 0 ]; then
	echo "failed after $SECONDS s: entered twice, or lost: ${lost:-the server}"
	exit 1
fi
echo "nothing wrong in $SECONDS s: $(grep -c '^$' "$scratch/rebuild.out") rebuilt indexes checked"
