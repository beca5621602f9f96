#!/bin/sh
# Compare the ABI that a stock PostgreSQL server offers to extensions with
# that of this build (R12).
#
#	abi_compare.sh STOCK_POSTGRES OUR_POSTGRES [STOCK_INCLUDE OUR_INCLUDE]
#
# The first two are "postgres" programs with debug information, best from
# builds with the same options.  The last two are the directories of the
# installed server headers ("pg_config --includedir-server"): with them, the
# numbers that headers compile into extensions are compared, too.
#
# Functions and variables may be added.  Exit code 0 means compatible, 1 that
# something else has changed, 2 that the comparison could not be made.

set -u

# Arrays of built-in settings.  They end with an entry of zeroes, and code
# outside of the server has no business with their length.
IGNORED_VARIABLES='^ConfigureNames(Bool|Int|Real|String|Enum)$'

# Headers whose numbers our patches come near.
HEADERS='utils/wait_event_types.h storage/lwlock.h storage/lwlocknames.h
pgstat.h storage/buf_internals.h storage/proc.h storage/smgr.h'

# Structures that extensions look into.
TYPES='BufferDesc BufferTag PGPROC PROC_HDR LWLock SMgrRelationData
PgStat_BktypeIO ControlFileData CheckPoint'

fail() {
	echo "abi_compare: $*" >&2
	exit 2
}

[ $# -eq 2 ] || [ $# -eq 4 ] ||
	fail "usage: abi_compare.sh STOCK_POSTGRES OUR_POSTGRES [STOCK_INCLUDE OUR_INCLUDE]"
command -v abidiff >/dev/null || fail "abidiff is missing (package abigail-tools)"
for file in "$1" "$2"; do
	[ -r "$file" ] || fail "cannot read $file"
done

scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
verdict=0

# Names of all enumerators and numeric macros in a header, one per line.
header_names() {
	sed 's|/\*.*\*/||' "$1" | awk '
		/^typedef enum|^enum / { inside = 1 }
		inside && /^[ \t]+[A-Za-z_][A-Za-z0-9_]*[ \t]*(=[^,]*)?,?[ \t]*$/ {
			sub(/^[ \t]+/, ""); sub(/[^A-Za-z0-9_].*/, ""); print }
		/^}/ { inside = 0 }
		/^#define[ \t]+[A-Z_0-9]+[ \t]+[(0-9]/ { print $2 }'
}

# Print a number for each of the names and types, as a header tree has them.
print_numbers() {
	include=$1
	names=$2
	{
		echo '#include "postgres.h"'
		echo '#include "catalog/pg_control.h"'
		for header in $HEADERS; do
			echo "#include \"$header\""
		done
		echo '#include <stdio.h>'
		echo '#undef printf'
		echo 'static const struct { const char *name; long long value; } numbers[] = {'
		while read -r name; do
			echo "{\"$name\", (long long) ($name)},"
		done <"$names"
		for type in $TYPES; do
			echo "{\"sizeof $type\", (long long) sizeof($type)},"
		done
		echo '};'
		echo 'int main(void) {'
		echo 'for (int i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)'
		printf '%s\n' 'printf("%s %lld\n", numbers[i].name, numbers[i].value);'
		echo 'return 0; }'
	} >"$scratch/numbers.c"

	# optimised, so that inline functions that are never called need no server to link
	${CC:-cc} -w -O1 -I"$include" -o "$scratch/numbers" "$scratch/numbers.c" \
		>"$scratch/cc.log" 2>&1 && "$scratch/numbers"
}

if [ $# -eq 4 ]; then
	for header in $HEADERS; do
		[ -r "$3/$header" ] && header_names "$3/$header"
	done | sort -u >"$scratch/candidates"

	# drop what does not compile by itself, such as macros for code
	cp "$scratch/candidates" "$scratch/names"
	while ! print_numbers "$3" "$scratch/names" >"$scratch/stock.txt"; do
		lines=$(sed -n 's/^[^:]*numbers\.c:\([0-9]*\):.*error.*/\1/p' "$scratch/cc.log" | sort -un)
		[ -n "$lines" ] || { cat "$scratch/cc.log" >&2; fail "cannot compile with $3"; }
		for line in $lines; do
			sed -n "${line}s/^{\"\([A-Za-z0-9_]*\)\",.*/\1/p" "$scratch/numbers.c"
		done >"$scratch/drop"
		[ -s "$scratch/drop" ] || { cat "$scratch/cc.log" >&2; fail "cannot compile with $3"; }
		grep -vxF -f "$scratch/drop" "$scratch/names" >"$scratch/names.new"
		mv "$scratch/names.new" "$scratch/names"
	done
	if ! print_numbers "$4" "$scratch/names" >"$scratch/ours.txt"; then
		cat "$scratch/cc.log" >&2
		echo "FAILED: a name of the stock headers is gone"
		verdict=1
	elif ! diff "$scratch/stock.txt" "$scratch/ours.txt"; then
		echo "FAILED: numbers in headers differ"
		verdict=1
	else
		echo "headers: $(wc -l <"$scratch/stock.txt") numbers and sizes are equal"
	fi
fi

cat >"$scratch/suppressions" <<EOF
[suppress_variable]
	name_regexp = $IGNORED_VARIABLES
EOF
abidiff --no-added-syms --suppressions "$scratch/suppressions" "$1" "$2" \
	>"$scratch/abidiff.txt" 2>&1
code=$?
cat "$scratch/abidiff.txt"

# bit 0: error, bit 1: usage, bit 2: change, bit 3: incompatible change
if [ $((code & 3)) -ne 0 ]; then
	fail "abidiff failed"
elif [ "$code" -ne 0 ]; then
	echo "FAILED: functions or variables have changed"
	verdict=1
fi

if [ $verdict -eq 0 ]; then
	echo "compatible: extensions built for stock can be used"
fi
exit $verdict
