#!/bin/bash
# Entry point with the contract of the official image of PostgreSQL 18:
#
#	POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB, POSTGRES_INITDB_ARGS,
#	each also as NAME_FILE; POSTGRES_INITDB_WALDIR,
#	POSTGRES_HOST_AUTH_METHOD, PGDATA; /docker-entrypoint-initdb.d
#
# One variable is new: POSTGRES_INITDB_DWDIR, a directory for the double-write
# log, say on a volume of its own.

set -Eeuo pipefail

die() {
	echo "docker-entrypoint.sh: $*" >&2
	exit 1
}

# Take a variable from the file named by NAME_FILE, or the default.
from_file() {
	local name=$1 file=$1_FILE

	[[ -z ${!name:-} || -z ${!file:-} ]] || die "both $name and $file are set"
	if [[ -n ${!file:-} ]]; then
		export "$name"="$(<"${!file}")"
	else
		export "$name"="${!name:-$2}"
	fi
	unset "$file"
}

read_settings() {
	from_file POSTGRES_PASSWORD ''
	from_file POSTGRES_USER postgres
	from_file POSTGRES_DB "$POSTGRES_USER"
	from_file POSTGRES_INITDB_ARGS ''
	: "${POSTGRES_HOST_AUTH_METHOD:=}"
}

# The user that owns files and runs the server, and where its sockets are.
server_user=postgres
socket_directory=/var/run/postgresql

cluster_exists() {
	[[ -s $PGDATA/PG_VERSION ]]
}

# As root: make the directories of a cluster that is to be created.  Those of one
# that exists are only looked at: if the volume of its log is not mounted, an
# empty directory in its place would hide that.
make_directories() {
	local directory

	for directory in "$PGDATA" "$socket_directory"; do
		mkdir -p "$directory"
	done
	chown "$server_user:" "$socket_directory"
	chmod 3777 "$socket_directory"

	if ! cluster_exists; then
		for directory in "$PGDATA" "${POSTGRES_INITDB_WALDIR:-}" "${POSTGRES_INITDB_DWDIR:-}"; do
			[[ -n $directory ]] || continue
			mkdir -p "$directory"
			chown "$server_user:" "$directory"
		done
	fi
	chmod 700 "$PGDATA"

	# Files that were put into the data directory from outside.  Links are not
	# followed, nor what they lead to touched.
	find "$PGDATA" ! -user "$server_user" -exec chown --no-dereference "$server_user:" '{}' +
}

# Go on as the server's user, at home in its own directory.
become_server_user() {
	HOME=$(getent passwd "$server_user" | cut -d: -f6)
	export HOME
	exec setpriv --reuid="$server_user" --regid="$server_user" --init-groups \
		"${BASH_SOURCE[0]}" "$@"
}

# As the server's user: a volume may have been opened to a group when it was mounted
# (fsGroup of Kubernetes), and the server refuses directories that others can write to.
close_directories() {
	chmod 700 "$PGDATA" || :
	[[ ! -d $PGDATA/pg_doublewrite ]] || chmod g-w,o-rwx "$PGDATA/pg_doublewrite/" || :
}

require_password() {
	if [[ -z $POSTGRES_PASSWORD && $POSTGRES_HOST_AUTH_METHOD != trust ]]; then
		die "set POSTGRES_PASSWORD (or POSTGRES_HOST_AUTH_METHOD=trust, which" \
			"lets in everybody who can connect)"
	fi
}

make_cluster() {
	local -a options=(--username="$POSTGRES_USER")

	[[ -z ${POSTGRES_INITDB_WALDIR:-} ]] || options+=(--waldir="$POSTGRES_INITDB_WALDIR")
	[[ -z ${POSTGRES_INITDB_DWDIR:-} ]] ||
		options+=(--double-write-dir="$POSTGRES_INITDB_DWDIR")
	# may hold quoted arguments
	eval "options+=($POSTGRES_INITDB_ARGS)"

	if [[ -n $POSTGRES_PASSWORD ]]; then
		initdb "${options[@]}" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
	else
		initdb "${options[@]}"
	fi

	local method=$POSTGRES_HOST_AUTH_METHOD
	[[ -n $method ]] || method=$(postgres -C password_encryption)
	printf '\nhost all all all %s\n' "$method" >>"$PGDATA/pg_hba.conf"
}

# psql on the temporary server, for start-up scripts, too
docker_process_sql() {
	local -a command=(psql --no-psqlrc --no-password --set=ON_ERROR_STOP=1
		--username="$POSTGRES_USER")

	[[ -z $POSTGRES_DB ]] || command+=(--dbname="$POSTGRES_DB")
	PGHOST='' PGHOSTADDR='' "${command[@]}" "$@"
}

run_script() {
	echo "docker-entrypoint.sh: running $1"
	case $1 in
		*.sh) if [[ -x $1 ]]; then "$1"; else . "$1"; fi ;;
		*.sql) docker_process_sql --file="$1" ;;
		*.sql.gz) gunzip --stdout "$1" | docker_process_sql ;;
		*.sql.xz) xzcat "$1" | docker_process_sql ;;
		*.sql.zst) zstd --decompress --stdout "$1" | docker_process_sql ;;
		*) echo "docker-entrypoint.sh: ignoring $1" ;;
	esac
}

# With a server that only local processes reach: database and scripts.
set_up() {
	local script

	export PGPASSWORD=$POSTGRES_PASSWORD
	pg_ctl --wait --options="-c listen_addresses='' -p ${PGPORT:-5432}" start
	if [[ $POSTGRES_DB != postgres ]]; then
		POSTGRES_DB=postgres docker_process_sql --set=db="$POSTGRES_DB" \
			<<<'CREATE DATABASE :"db"'
	fi
	for script in /docker-entrypoint-initdb.d/*; do
		[[ ! -f $script ]] || run_script "$script"
	done
	pg_ctl --mode=fast --wait stop
	unset PGPASSWORD
}

main() {
	[[ ${1:-} != -* ]] || set -- postgres "$@"
	if [[ ${1:-} != postgres ]]; then
		exec "$@"
	fi

	if [[ $(id -u) == 0 ]]; then
		make_directories
		become_server_user "$@"
	fi

	read_settings
	if cluster_exists; then
		close_directories
	else
		require_password
		make_cluster
		set_up
		echo 'docker-entrypoint.sh: the cluster is ready for start up'
	fi
	exec "$@"
}

# tests source this file
[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
