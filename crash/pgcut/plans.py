"""Reading a table by every plan that there is: all must say the same."""

from collections.abc import Iterator
from typing import Any

_ROWS = "SELECT count(*), coalesce(sum(oracle.digest(id, v, body)), 0) FROM {table}"

# By name: the kind of scan that oracle.force() leaves, and a query.  The others let the
# index forget rows that are dead, which the first alone would return.
PLANS = {
    "index-only": ("indexonlyscan", "SELECT count(*), NULL FROM"
                                    " (SELECT id FROM {table} WHERE id > 0 ORDER BY id) t"),
    "sequential": ("seqscan", _ROWS),
    "index": ("indexscan", _ROWS + " WHERE id > 0"),
    "bitmap": ("bitmapscan", _ROWS + " WHERE id > 0"),
    "backward": ("indexscan", "SELECT count(*), coalesce(sum(oracle.digest(id, v, body)), 0) FROM"
                              " (SELECT * FROM {table} WHERE id > 0 ORDER BY id DESC) t"),
}

# Transfers make and lose nothing.
_ACCOUNTS = ("SELECT count(*) = oracle.accounts()"
             " AND sum(balance) = count(*) * oracle.initial_balance(), count(*), sum(balance)"
             " FROM load.accounts WHERE id > 0")


def disagreements_of_accounts(cursor: Any) -> Iterator[str]:
    """Yield what a plan says of all accounts if they do not hold what they must.

    The caller is in a transaction.
    """
    for scan in ("seqscan", "indexscan", "bitmapscan"):
        cursor.execute("SELECT oracle.force(%s)", (scan,))
        cursor.execute(_ACCOUNTS)
        right, count, total = cursor.fetchone()
        if not right:
            yield f"{count} accounts hold {total}, by {scan}"


def disagreements(cursor: Any, table: Any, rows: Any, total: int) -> Iterator[str]:
    """Yield what a plan says of a table if it is not so many rows with this sum of digests.

    The caller is in a transaction, from which oracle.force() does not get out.
    """
    for plan, (scan, query) in PLANS.items():
        cursor.execute("SELECT oracle.force(%s)", (scan,))
        cursor.execute(query.format(table=table))
        said = cursor.fetchone()
        if said[0] != rows or said[1] is not None and said[1] != total:
            yield f"by a scan that is {plan}: {said[0]} rows with sum {said[1]}, " \
                f"not {rows} with {total}"
