"""Load for the power-cut explorer: all kinds of it, prepared and run."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import load_files, load_rows, load_server
from .client import Client, Run

SQL = Path(__file__).with_name("oracle.sql")

# The modules whose kinds of load there are.
_MODULES = (load_rows, load_files, load_server)


def _kinds_of(module):
    """Return the kinds of load of a module, in the order in which they are written."""
    return {cls.kind: cls for cls in vars(module).values()
            if isinstance(cls, type) and issubclass(cls, Client) and cls.kind}


KINDS = {kind: cls for module in _MODULES for kind, cls in _kinds_of(module).items()}


def make_clients(run: Run, kinds: Mapping[str, int]) -> list:
    """Return the clients of kinds: names, or a dict of names and numbers of clients."""
    counts = kinds if isinstance(kinds, dict) else {
        kind: KINDS[kind].clients for kind in kinds or KINDS}
    return [KINDS[kind](run, number + 1)
            for kind, count in counts.items() for number in range(count)]


def prepare(connect: Callable[..., Any], seed: int, tablespaces: Any = (),
            kinds: Mapping[str, int] | None = None) -> None:
    """Make the oracle and the tables of all kinds; the cluster is not recorded yet.

    `connect(database)` returns a psycopg2 connection of a superuser.
    `tablespaces` are directories, '' for one inside the data directory.
    """
    connection = connect("postgres")
    connection.autocommit = True
    rng = random.Random(f"{seed}/prepare")
    with connection.cursor() as cursor:
        # One database less to carry along.  Copies are made from template0, to
        # which no client ever connects.
        cursor.execute("ALTER DATABASE template1 IS_TEMPLATE false")
        cursor.execute("DROP DATABASE template1")
        cursor.execute(SQL.read_text())
        cursor.execute("SET allow_in_place_tablespaces = on")
        for number, directory in enumerate(tablespaces):
            cursor.execute(f"CREATE TABLESPACE load_kept_{number} LOCATION %s", (directory,))
    run = Run(connect, rng.randrange(2**32))
    for client in make_clients(run, kinds):
        client.prepare()
        client.connection.close()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    connection.close()


def resume(this: Any) -> bool:
    """Record what is there when a run begins; return whether PREPARE is possible.

    What was in doubt after an earlier run that was cut short is settled by now.  But a commit
    for which its client did not wait can be seen before it is durable; then nothing more is
    promised than before (`lazy`).
    """
    connection = this.connect("postgres")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT client, n FROM oracle.now ORDER BY 1")
            clients = dict(cursor.fetchall())
            cursor.execute("SELECT gid FROM pg_prepared_xacts ORDER BY 1")
            prepared = [gid for (gid,) in cursor]
            cursor.execute("SELECT datname FROM pg_database ORDER BY 1")
            databases = [name for (name,) in cursor]
            cursor.execute("SELECT spcname FROM pg_tablespace ORDER BY 1")
            tablespaces = [name for (name,) in cursor]
            cursor.execute("SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()")
            lazy = cursor.fetchone() == (True,)
            cursor.execute("SHOW max_prepared_transactions")
            possible = cursor.fetchone() != ("0",)
    finally:
        connection.close()
    this.record("", "resumed", clients=clients, prepared=prepared, databases=databases,
                tablespaces=tablespaces, **({"lazy": True} if lazy else {}))
    return possible


def run(connect: Callable[..., Any], kinds: Mapping[str, int] | None = None,
        seconds: float | None = None, transactions: int | None = None, seed: int = 0,
        modes: Sequence[str] = (), sink: Any = None, probe: Any = None) -> Any:
    """Run the load, and return the acks.

    With `seconds`, clients run that long after all have connected, and longer if nothing was
    acknowledged by then; with `transactions`, each does that many steps; whichever ends first.
    The run also ends when the server dies.  `sink` is called with each event, `probe` with each
    client whose session has survived an error.  A bug in a client raises.
    """
    this = Run(connect, seed, seconds=seconds, transactions=transactions, modes=modes,
               sink=sink, probe=probe)
    clients = make_clients(this, kinds)
    if not resume(this):
        clients = [client for client in clients if client.kind != load_server.Prepared.kind]
    if all(client.try_connect() for client in clients):
        this.working = sum(not client.background for client in clients)
        threads = [threading.Thread(target=client.work, name=client.name)
                   for client in clients]
        this.begin()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for client in clients:
        if client.connection is not None:
            client.connection.close()
    if this.errors:
        raise RuntimeError("; ".join(this.errors))
    return this.record.acks
