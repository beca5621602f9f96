#!/bin/bash
# Archive with basic_archive to a device on which writes fail that the kernel has put
# off: does the server live on, as stock does?
#
#	archive_on_bad_device.sh BINDIR SCRATCH USER
#
# Run it as root, as it makes a loop device; the server is run as USER.  SCRATCH is a
# directory to make.  The device's file is sparse, on a tmpfs that has no room for it.
# The last line says what was seen; exit code 0 means nothing wrong, 1 a failure, 2 that
# no server could be started.

set -u

if [ $# != 3 ] || [ "$(id -u)" != 0 ]; then
	echo "usage, as root: ${0##*/} BINDIR SCRATCH USER" >&2
	exit 2
fi
bin=$1 scratch=$2 user=$3
data=$scratch/data log=$scratch/log device=$scratch/device archive=$scratch/archive

as_user() {
	runuser -u "$user" -- env LC_ALL=C "$bin/$1" "${@:2}"
}

sql() {
	as_user psql -h "$scratch" -U postgres -XAtq -d postgres "$@"
}

finish() {
	as_user pg_ctl -D "$data" -m immediate stop >/dev/null 2>&1
	umount "$archive"
	umount "$device" && rm -rf --one-file-system "$scratch"
}

# what is there is not ours to remove
mkdir "$scratch" || exit 2
trap finish EXIT
mkdir "$device" "$archive"
chown "$user" "$scratch"
mount -t tmpfs -o size=40M none "$device" &&
	truncate -s 400M "$device/image" &&
	mkfs.ext4 -q -F -O ^has_journal -E nodiscard,lazy_itable_init=1 "$device/image" &&
	mount -o loop "$device/image" "$archive" || exit 2
chown "$user" "$archive"

as_user initdb -D "$data" -U postgres -A trust -N >/dev/null || exit 2
cat >>"$data/postgresql.conf" <<EOF
listen_addresses = ''
unix_socket_directories = '$scratch'
archive_mode = on
archive_library = 'basic_archive'
basic_archive.archive_directory = '$archive'
EOF
as_user pg_ctl -D "$data" -l "$log" start >/dev/null || exit 2

# more than there is room for, until the archiver says so
for ((round = 0; round < 60; round++)); do
	sql -c "CREATE TABLE t$round AS SELECT repeat('x', 1000) FROM generate_series(1, 14000)" \
		-c 'SELECT pg_switch_wal()' >/dev/null
	grep -qE 'ERROR:  could not (fsync|write|close)|PANIC' "$log" && break
	sleep 1
done
panics=$(grep -c PANIC "$log")
echo "$panics PANICs; $(sql -c "SELECT failed_count || ' failures of the archiver' FROM pg_stat_archiver")"
grep -qE 'ERROR:  could not (fsync|write|close)' "$log" && [ "$panics" = 0 ]
