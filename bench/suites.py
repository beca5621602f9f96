"""The cases: which data, which settings, which load.

Sizes are those of a factor of 1, as published; `Scale` makes them fit the
machine.  A suite is a function of the Scale that returns its Cases; to add
one, write it and put `@suite` above it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base import DevError

from . import clients, machine
from .latency import OpenLoop, Stream
from .loads import (
    Beside,
    Checkpoints,
    Pgbench,
    Point,
    Program,
    Replication,
    Session,
    Step,
    Steps,
    Sysbench,
)
from .recovery import PROGRESS, Replay, Workload
from .restart import FirstSeconds, Restart
from .server import Server
from .standby import CatchUp, Promotion, ReplayLag, StandbyCrash

SCRIPTS = Path(__file__).resolve().parent / "tpcc"
REDO_SCRIPTS = Path(__file__).resolve().parent / "redo"
RESTART_SCRIPTS = Path(__file__).resolve().parent / "restart"
TRAP_SCRIPTS = Path(__file__).resolve().parent / "traps"

# What TPC-C prescribes of each transaction, in percent.
TPCC_MIX = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}

# In force in every case, unless it says otherwise.
COMMON = {
    "max_connections": 300,
    "log_checkpoints": "on",
    "track_io_timing": "on",
    "track_wal_io_timing": "on",
    "checkpoint_timeout": "5min",
}

# The least max_wal_size that the server accepts, with segments of 16 MB.
MIN_WAL_MB = 32
MIN_BUFFERS_MB = 8

# Of the size of a row of sysbench's tables, indexes included.
SYSBENCH_ROW_BYTES = 260
PGBENCH_MB = 16
TPCC_MB = 13
TRAP_ROW_BYTES = 160

# The same with an index, in a file to COPY from, and in a dump.
PART_ROW_BYTES = 420
REDO_ROW_BYTES = 190
DOCUMENT_BYTES = 7000
DOCUMENTS = 60_000

# Of each of many tables, which has MANY_ROWS rows: heap, index, and what vacuum adds.
MANY_TABLE_BYTES = 14 * 8192
MANY_ROWS = 50

FILES_OF_A_NEW_CLUSTER = 1200

# Of a table without indexes: a prepared cluster has been vacuumed.
FORKS = 3

SUITES = {}

# Of suites that say which; of others all that fit.
ARMS_OF = {}


def suite(function: Callable[..., Any] | None = None,
          arms: Sequence[str] = ()) -> Callable[..., Any]:
    """Register a suite under the name of its function, with the arms to run unless told otherwise."""
    if function is None:
        return lambda found: suite(found, arms)
    SUITES[function.__name__] = function
    ARMS_OF[function.__name__] = arms
    return function


@dataclass(frozen=True)
class Scale:
    """Makes published sizes fit the machine by one factor."""

    factor: float

    def count(self, number: int, least: int = 1) -> int:
        """Return a number of rows, warehouses or the like."""
        return max(least, round(number * self.factor))

    def wal(self, megabytes: int) -> str:
        """Return a max_wal_size; it cannot be less than two segments."""
        return f"{max(MIN_WAL_MB, round(megabytes * self.factor))}MB"

    def buffers(self, megabytes: int) -> str:
        """Return a shared_buffers."""
        return f"{max(MIN_BUFFERS_MB, round(megabytes * self.factor))}MB"


@dataclass(frozen=True)
class Dataset:
    """What a prepared cluster holds; `fill` is called with a Server."""

    name: str
    megabytes: int
    fill: Callable[[Server], object]


@dataclass(frozen=True)
class Case:
    """One server life to measure, the same in each arm.

    `ours_only`: stock refuses the settings; `settings_of_ours` are for this build, beside those
    for both.  With a `workload`, its WAL is replayed on the data.  Each write to a relation file
    takes `slow_writes` microseconds more, each sync `slow_syncs`.  `only_arm`: it is run in this
    one, asked for or not.  `paced_by` names the case before it whose transactions a second are
    those that its load has a share of.  The volume needs `room` megabytes more; with `if_room`
    the case is left out where it has not as many as it needs.
    """

    name: str
    dataset: Dataset
    load: Callable[[Session], list[Point]]
    settings: dict = field(default_factory=dict)
    settings_of_ours: dict = field(default_factory=dict)
    own_wal_device: bool = False
    file_system: str = "ext4"
    standby: bool = False
    ours_only: bool = False
    workload: Workload | None = None
    slow_writes: int = 0
    slow_syncs: int = 0
    only_arm: str | None = None
    paced_by: str | None = None
    room: int = 0
    if_room: bool = False

    def all_settings(self) -> dict[str, Any]:
        """Return the settings with the common ones below them."""
        settings = {**COMMON, **self.settings}
        ready = min(megabytes(settings["max_wal_size"]), WAL_READY_MB)
        return {"min_wal_size": f"{ready}MB", **settings}

    def described(self) -> dict[str, Any]:
        """Return what a report says of data and settings."""
        slow = {"microseconds more each write": self.slow_writes,
                "microseconds more each sync": self.slow_syncs}
        return {"data": self.dataset.name, **{name: time for name, time in slow.items() if time},
                **self.all_settings(), **self.settings_of_ours}

    def megabytes(self) -> int:
        """Return what the volume has to hold: data as it grows, WAL, log."""
        copies = 2 if self.standby else 1
        wal = min(megabytes(self.all_settings()["max_wal_size"]), MAX_WAL_ON_VOLUME_MB)
        return copies * (3 * self.dataset.megabytes + 2 * wal + 1536) + self.room


# Segments that are there when a load begins, as in a server that has run for some checkpoints, and
# that it keeps: one that is not there is filled with zeroes, for which all commits wait.
WAL_READY_MB = 2048

# No case here writes more WAL between two checkpoints than this, whatever
# max_wal_size says, unless it runs for hours.
MAX_WAL_ON_VOLUME_MB = 4096


def megabytes(text: Any) -> int:
    """Return a size in MB or GB as a number of MB."""
    return int(text[:-2]) * {"MB": 1, "GB": 1024}[text[-2:]]


def cases(name: str, factor: float) -> list[Case]:
    """Return the Cases of a suite at a factor."""
    if name not in SUITES:
        raise DevError(f"no such suite: {name}", "one of " + ", ".join(SUITES))
    return SUITES[name](Scale(factor))


# Data -------------------------------------------------------------------------


def pgbench_data(scale: Scale, number: int, fillfactor: int = 100) -> Dataset:
    """Return pgbench's own tables."""
    size = scale.count(number)
    name = f"pgbench-{size}" if fillfactor == 100 else f"pgbench-{size}-filled-{fillfactor}"

    def fill(server):
        server.call("pgbench", "--initialize", "--quiet", f"--scale={size}",
                    f"--fillfactor={fillfactor}", env=server.environment(), capture=True)

    return Dataset(name, size * PGBENCH_MB * 100 // fillfactor, fill)


def sysbench_options(scale: Scale, tables: int, rows: int) -> dict[str, int]:
    """Return sysbench's options that describe its tables."""
    return {"tables": tables, "table_size": scale.count(rows, 100)}


def sysbench_data(options: Any) -> Dataset:
    """Return sysbench's tables."""
    rows = options["tables"] * options["table_size"]
    return Dataset(f"sysbench-{options['tables']}x{options['table_size']}",
                   rows * SYSBENCH_ROW_BYTES >> 20,
                   lambda server: clients.sysbench_prepare(server, options))


def tpcc_data(scale: Scale, number: int) -> Dataset:
    """Return the tables of the TPC-C-like mix."""
    warehouses = scale.count(number, 2)
    schema = (SCRIPTS / "schema.sql").read_text()
    return Dataset(f"tpcc-{warehouses}", warehouses * TPCC_MB, lambda server: server.sql(
        f"\\set warehouses {warehouses}\n{schema}"))


def trap_data(scale: Scale, number: int) -> Dataset:
    """Return one table to copy, and the same as a file to COPY from."""
    rows = scale.count(number, 1000)
    return Dataset(f"traps-{rows}", rows * TRAP_ROW_BYTES >> 20, lambda server: server.sql(f"""
CREATE TABLE src (id int, k int, pad text);
INSERT INTO src SELECT i, hashint4(i), repeat(md5(i::text), 3) FROM generate_series(1, {rows}) i;
COPY src TO '{server.data}/src.copy';"""))


def parts_data(scale: Scale, number: int) -> Dataset:
    """Return a table for each session, as a file to COPY from, and all as a dump."""
    rows = scale.count(number, 1000)
    schema = (TRAP_SCRIPTS / "parts.sql").read_text()

    def fill(server):
        server.sql(f"\\set rows {rows}\n\\set parts {SESSIONS}\n{schema}")
        server.call("pg_dump", "--format=directory", "--compress=none", "--table=part*",
                    f"--file={server.data}/dump", env=server.environment(), capture=True)

    return Dataset(f"parts-{rows}", rows * PART_ROW_BYTES >> 20, fill)


def redo_data(scale: Scale, number: int) -> Dataset:
    """Return a table for each of our own workloads of recovery."""
    rows = scale.count(number, 1000)
    schema = (REDO_SCRIPTS / "schema.sql").read_text()
    return Dataset(f"redo-{rows}", 4 * rows * REDO_ROW_BYTES >> 20, lambda server: server.sql(
        f"\\set rows {rows}\n{schema}"))


def document_data(scale: Scale, number: int) -> Dataset:
    """Return documents with an index of each kind, and bodies out of line."""
    rows = scale.count(number, 1000)
    schema = (RESTART_SCRIPTS / "schema.sql").read_text()
    return Dataset(f"documents-{rows}", rows * DOCUMENT_BYTES >> 20, lambda server: server.sql(
        f"\\set rows {rows}\n{schema}"))


def files_data(scale: Scale, number: int) -> Dataset:
    """Return pgbench's smallest tables beside many of one row, about `number` files in all."""
    tables = scale.count((number - FILES_OF_A_NEW_CLUSTER) // FORKS, 100)

    def fill(server):
        server.call("pgbench", "--initialize", "--quiet", env=server.environment(), capture=True)
        server.sql(f"""
DO $$BEGIN
  FOR i IN 1..{tables} LOOP
    EXECUTE format('CREATE TABLE t%s AS SELECT 1 AS a', i);
    COMMIT;
  END LOOP;
END$$;""")

    return Dataset(f"files-{tables}", 200, fill)


def many_tables_data(scale: Scale, number: int) -> Dataset:
    """Return many tables of some pages each, with room for new versions in each page."""
    tables = scale.count(number, 100)
    size = tables * MANY_TABLE_BYTES >> 20
    return Dataset(f"many-{tables}x{MANY_ROWS}", size, lambda server: server.sql(f"""
DO $$BEGIN
  FOR i IN 1..{tables} LOOP
    EXECUTE format('CREATE TABLE many%s (id int PRIMARY KEY, k int, pad char(800))'
                   ' WITH (fillfactor = 80)', i);
    EXECUTE format('INSERT INTO many%s SELECT r, 0, '''' FROM generate_series(1, {MANY_ROWS}) r',
                   i);
    COMMIT;
  END LOOP;
END$$;"""))


def many_tables_load(scale: Scale, number: int) -> Pgbench:
    """Return updates of single rows anywhere in these."""
    # Not prepared: the number of the table is part of its name.
    return Pgbench(("--protocol=simple", f"--file={TRAP_SCRIPTS / 'many_tables.sql'}",
                    f"--define=rows={MANY_ROWS}", f"--define=tables={scale.count(number, 100)}"),
                   prewarm=False)


def wide_updates(scale: Scale, number: int) -> tuple[str, ...]:
    """Return the arguments for updates of 100 rows on as many pages of pgbench's tables."""
    rows = scale.count(number) * 100_000
    return (f"--file={RESTART_SCRIPTS / 'wide.sql'}", f"--define=rows={rows}")


def tpcc_load(scale: Scale, number: int) -> Pgbench:
    """Return the TPC-C-like mix."""
    scripts = (f"--file={SCRIPTS / name}.sql@{share}" for name, share in TPCC_MIX.items())
    return Pgbench((*scripts, f"--define=warehouses={scale.count(number, 2)}", "--max-tries=10"))


def document_changes(scale: Scale, number: int) -> tuple[str, ...]:
    """Return the arguments for new documents, and new bodies of others."""
    return (f"--file={RESTART_SCRIPTS / 'documents.sql'}",
            f"--define=rows={scale.count(number, 1000)}")


TPCB = Pgbench(("--builtin=tpcb-like",))
TPCB_COLD = Pgbench(("--builtin=tpcb-like",), prewarm=False)


# Suites -------------------------------------------------------------------------


@suite
def pgbench(scale: Scale) -> list[Case]:
    """(a) TPC-B: scale 100 and 10, rare and frequent checkpoints."""
    return [Case(f"scale {number}, max_wal_size {wal} MB", pgbench_data(scale, number), TPCB,
                 {"shared_buffers": scale.buffers(1024), "max_wal_size": scale.wal(wal)})
            for number, wal in ((100, 10240), (100, 64), (10, 10240), (10, 64))]


@suite
def sysbench(scale: Scale) -> list[Case]:
    """(b) sysbench with max_wal_size 32 MB; lz4 is one of the arms."""
    options = sysbench_options(scale, 10, 1_000_000)
    settings = {"shared_buffers": scale.buffers(1024), "max_wal_size": f"{MIN_WAL_MB}MB"}
    return [Case(script, sysbench_data(options), Sysbench(script, options), settings)
            for script in ("oltp_write_only", "oltp_update_non_index", "oltp_read_write")]


@suite
def sysbench_io(scale: Scale) -> list[Case]:
    """(b) sysbench, I/O-bound, checkpoints every 30 s, rising clients."""
    options: dict[str, Any] = {**sysbench_options(scale, 10, 10_000_000), "rand-type": "uniform"}
    settings = {"shared_buffers": scale.buffers(4096), "checkpoint_timeout": "30s",
                "max_wal_size": scale.wal(10240)}
    return [Case(script, sysbench_data(options),
                 Sysbench(script, options, per_cpu=(2, 4, 8), prewarm=False), settings)
            for script in ("oltp_read_write", "oltp_write_only")]


@suite
def practice(scale: Scale) -> list[Case]:
    """(c) best practice; a TPC-C-like mix with much and little memory."""
    quarter = round(machine.total_memory_mb() / 4 / 1024) * 1024 or 256
    best = {"shared_buffers": scale.buffers(quarter), "max_wal_size": scale.wal(10240),
            "checkpoint_timeout": "15min"}
    small = {**best, "shared_buffers": scale.buffers(128)}
    mix, data = tpcc_load(scale, 50), tpcc_data(scale, 50)
    return [Case("best practice, TPC-B", pgbench_data(scale, 100), TPCB, best),
            Case("best practice, TPC-C-like", data, mix, best),
            Case("best practice, TPC-C-like, WAL device", data, mix, best, own_wal_device=True),
            Case("small buffers, TPC-C-like", data, mix, small),
            Case("small buffers, TPC-C-like, WAL device", data, mix, small, own_wal_device=True)]


@suite
def traps(scale: Scale) -> list[Case]:
    """(d) loads that known ways of protection make slow."""
    data, wal = trap_data(scale, 4_000_000), {"max_wal_size": scale.wal(10240)}
    settings = {**wal, "autovacuum": "off"}
    small = [Case(f"small buffers {size} MB, TPC-B", pgbench_data(scale, 100), TPCB_COLD,
                  {**wal, "shared_buffers": scale.buffers(size)}) for size in (16, 128)]
    bulk = [Case(f"bulk, {size} MB", data, Steps(BULK), {
        **settings, "shared_buffers": scale.buffers(size)}) for size in (16, 128)]
    spaces = Case("tablespaces", data, Steps((TABLESPACES,)),
                  {**settings, "shared_buffers": scale.buffers(128),
                   "allow_in_place_tablespaces": "on"})
    many = [Case(f"small buffers 16 MB, {number:,} tables", many_tables_data(scale, number),
                 many_tables_load(scale, number), {
                     **wal, "shared_buffers": "16MB", "max_locks_per_transaction": "256"})
            for number in (10_000,)]
    return [*small, *bulk, spaces, *many]


BULK = (
    Step("COPY into new table", "CREATE TABLE fresh (LIKE src);",
         "COPY fresh FROM '{data}/src.copy';"),
    Step("first SELECT, unhinted", "", "SELECT count(*) FROM fresh WHERE k IS NULL;"),
    Step("VACUUM FREEZE", "", "VACUUM FREEZE fresh;"),
    Step("COPY into existing table",
         "CREATE TABLE old AS SELECT * FROM src WHERE id % 2 = 0; CREATE INDEX ON old (id);",
         "COPY old FROM '{data}/src.copy';"),
    Step("CREATE TABLE AS", "DROP TABLE old;", "CREATE TABLE made AS SELECT * FROM src;"),
    Step("CREATE INDEX", "", "CREATE INDEX ON made (k);"),
    Step("VACUUM", "DELETE FROM made WHERE id % 10 = 0;", "VACUUM made;"),
    Step("large UPDATE", "DROP TABLE fresh;", "UPDATE src SET k = k + 1;"),
)

TABLESPACE_COUNT = 100
TABLESPACES = Step(
    "UPDATE in many tablespaces", f"""
SELECT format('CREATE TABLESPACE ts%s LOCATION %L', i, ''),
       format('CREATE TABLE spread%s TABLESPACE ts%s AS SELECT * FROM src WHERE id %% {{n}} = %s',
              i, i, i)
FROM generate_series(0, {TABLESPACE_COUNT} - 1) i \\gexec
""".replace("{n}", str(TABLESPACE_COUNT)),
    "\n".join(f"UPDATE spread{number} SET k = k + 1;" for number in range(TABLESPACE_COUNT)))


@suite
def parallel(scale: Scale) -> list[Case]:
    """(k) what many processes write at once: evictions, bulk loads, removals."""
    data, wal = parts_data(scale, 2_000_000), {"max_wal_size": scale.wal(10240)}
    bulk: dict[str, Any] = {**wal, "autovacuum": "off", "shared_buffers": scale.buffers(128)}
    least = {**bulk, "shared_buffers": f"{MIN_BUFFERS_MB}MB"}
    workers = {**bulk, "max_parallel_maintenance_workers": SESSIONS,
               "max_worker_processes": 2 * SESSIONS}
    return [
        _evictions(wal),
        Case(f"COPY by {SESSIONS} sessions", data, Steps((PARALLEL_COPY,)), bulk),
        Case(f"UPDATE by {SESSIONS} sessions", data, Steps((PARALLEL_UPDATE,)), least),
        Case("CREATE INDEX in parallel", data, Steps((PARALLEL_INDEX,)), workers),
        Case(f"pg_restore -j{SESSIONS}", data, Steps((PARALLEL_RESTORE,)), bulk),
        Case("DROP and TRUNCATE beside TPC-B", pgbench_data(scale, 100), BESIDE_TPCB,
             {**wal, "shared_buffers": scale.buffers(128)}),
    ]


# Of bulk loads, and parts of their data.
SESSIONS = 8

# So many clients want more pages written than one process can write, one after the
# other, a millisecond each.  None of this depends on the factor: a smaller table would fit
# into shared_buffers.
EVICTING_CLIENTS = 64
EVICTING_ROWS = 600_000
EVICTING_BUFFERS = "13MB"
SLOW_WRITE_MICROSECONDS = 1000


def _evictions(wal):
    """Return the case in which nearly each transaction has to get rid of a dirty page."""
    load = Pgbench((f"--file={TRAP_SCRIPTS / 'evictions.sql'}", f"--define=rows={EVICTING_ROWS}"),
                   prewarm=False, number=EVICTING_CLIENTS)
    return Case("evictions", redo_data(Scale(1), EVICTING_ROWS), load,
                {**wal, "autovacuum": "off", "shared_buffers": EVICTING_BUFFERS,
                 "synchronous_commit": "off"}, slow_writes=SLOW_WRITE_MICROSECONDS)


PARALLEL_COPY = Step("COPY", "CREATE TABLE loaded (LIKE part0 INCLUDING INDEXES);",
                     "COPY loaded FROM '{data}/part{number}.copy';", SESSIONS)
PARALLEL_UPDATE = Step("UPDATE", "", "UPDATE part{number} SET k = k + 1;", SESSIONS)

# The workers are the first to read these rows, so they set hint bits in each page.  How
# many there are would else depend on the size of the table.
PARALLEL_INDEX = Step("CREATE INDEX", f"""
CREATE TABLE loaded (LIKE part0) WITH (parallel_workers = {SESSIONS});
SELECT format('COPY loaded FROM %L', '{{data}}/part' || i || '.copy')
FROM generate_series(0, {SESSIONS} - 1) i \\gexec
""", "CREATE INDEX ON loaded (k);")
PARALLEL_RESTORE = Program("pg_restore", "CREATE DATABASE restored;",
                           f"pg_restore --jobs={SESSIONS} --dbname=restored {{data}}/dump")

# Pages of a small table: dirty in shared buffers, or on their way home.
FILL_SMALL = "INSERT INTO small SELECT i, repeat('x', 500) FROM generate_series(1, 200) i;"
BESIDE_TPCB = Beside(("--builtin=tpcb-like",), prewarm=False, steps=(
    Step("TRUNCATE", f"CREATE TABLE small (id int PRIMARY KEY, pad text); {FILL_SMALL}",
         "TRUNCATE small;"),
    Step("DROP TABLE", FILL_SMALL, "DROP TABLE small;")))


@suite
def atomic(scale: Scale) -> list[Case]:
    """(j) what reads after direct writes cost: tables in shared buffers, the kernel's cache, neither."""
    data, wal = pgbench_data(scale, 30), {"max_wal_size": scale.wal(64)}
    return [Case("in shared buffers, TPC-B", data, TPCB,
                 {**wal, "shared_buffers": scale.buffers(1024)}, file_system="xfs"),
            Case("in the kernel's cache, TPC-B", data, TPCB,
                 {**wal, "shared_buffers": scale.buffers(64)}, file_system="xfs"),
            Case("on the device, TPC-B", data, TPCB_COLD,
                 {**wal, "shared_buffers": scale.buffers(64)}, file_system="xfs")]


@suite
def checkpoints(scale: Scale) -> list[Case]:
    """(e) checkpoints by pattern and size of writes; jitter by frequency."""
    combine = [Case(f"combine {pages}", trap_data(scale, 1_500_000), CHECKPOINTS,
                    {"shared_buffers": scale.buffers(2048), "autovacuum": "off",
                     "max_wal_size": scale.wal(10240),
                     "io_max_combine_limit": pages, "io_combine_limit": pages})
               for pages in (8, 16, 32, 128)]
    jitter = [Case(f"jitter, checkpoint_timeout {timeout}", pgbench_data(scale, 100), TPCB,
                   {"shared_buffers": scale.buffers(1024), "checkpoint_timeout": timeout,
                    "max_wal_size": scale.wal(10240)}, ours_only=timeout in ("1s", "10s"))
              for timeout in ("1s", "10s", "30s", "5min")]
    return [*combine, *jitter]


# Room in each page keeps an UPDATE within it, so that it dirties the pages in
# order.  New pages are apart, since they need no double write.  The first time the log
# has to grow; a server that has run for a while meets the second.  k is a hash, so
# every 500th row is on about one page in eight, at random.  INSERT, not CREATE
# TABLE AS: that would write through a small ring and leave nothing to the
# checkpoint; for the same reason the table is less than a quarter of
# shared_buffers.
CHECKPOINTS = Checkpoints({
    "sequential, new pages": """CREATE TABLE seq (LIKE src) WITH (fillfactor = 45);
INSERT INTO seq SELECT * FROM src;""",
    "sequential": "UPDATE seq SET k = k + 1;",
    "sequential, again": "UPDATE seq SET k = k + 1;",
    "random": "UPDATE src SET k = k + 1 WHERE k % 500 = 0;",
})


@suite
def replication(scale: Scale) -> list[Case]:
    """(f) streaming replication: bytes sent, replay lag under load."""
    return [Case(f"max_wal_size {wal} MB", pgbench_data(scale, 100),
                 Replication(("--builtin=tpcb-like",)),
                 {"shared_buffers": scale.buffers(1024), "max_wal_size": scale.wal(wal),
                  "wal_keep_size": "512MB"}, standby=True)
            for wal in (10240, 64)]


@suite(arms=("stock-off", "stock-full_pages", "stock-full_pages+lz4", "stock-full_pages+zstd",
             "double_writes"))
def standby(scale: Scale) -> list[Case]:
    """(l) how long a standby takes to catch up, to be promoted and to restart; lag, remote_apply."""
    transactions, tpcb = scale.count(40_000, 100), ("--builtin=tpcb-like",)
    documents = CatchUp(scale.count(16_000, 100), document_changes(scale, DOCUMENTS),
                        query="SELECT owner FROM documents WHERE key = md5('1')::uuid")
    # No row that many transactions change: one that waits for the standby would hold it.
    steady = OpenLoop((Stream("commits", ("--builtin=simple-update",), 1, STEADY_TRANSACTIONS_A_SECOND),),
                      (ReplayLag(),))
    settings = {"shared_buffers": scale.buffers(256), "max_wal_size": scale.wal(1536),
                "wal_keep_size": scale.wal(1536), "autovacuum": "off"}

    def case(name, load, data=None, **more):
        return Case(name, data or pgbench_data(scale, 30), load, {**settings, **more}, standby=True)

    promotions = [case(f"promotion, {seconds} s of WAL",
                       Promotion(scale.count(seconds * TRANSACTIONS_A_SECOND, 0), tpcb))
                  for seconds in (0, 10, 60)]
    return [case("tpcb-like", CatchUp(transactions, tpcb)),
            case("tpcb-like, readers", CatchUp(transactions, tpcb, READERS)),
            case("tpcb-like, warm", CatchUp(transactions, tpcb, warm=True)),
            case("documents", documents, document_data(scale, DOCUMENTS)), *promotions,
            case("crash of the standby", StandbyCrash(transactions, tpcb)),
            case("steady, asynchronous", steady, checkpoint_timeout="30s"),
            case("steady, remote_apply", steady, checkpoint_timeout="30s",
                 synchronous_standby_names="*", synchronous_commit="remote_apply")]


READERS = 4

# Of a primary whose standby is promoted: the same number in each arm, and what the slowest one
# bears on rented storage.
TRANSACTIONS_A_SECOND = 400

# Of a primary whose standby follows on the same device, unless `--rate` says otherwise.
STEADY_TRANSACTIONS_A_SECOND = 300


@suite
def recovery(scale: Scale) -> list[Case]:
    """(g) replay of saved WAL after a crash, with and without images in it."""
    rows = 2_500_000
    own, tables = redo_data(scale, rows), pgbench_data(scale, 150)
    workloads = [
        (own, "bulk inserts", _redo_script(scale, "bulk_insert", rows), 100_000),
        (own, "range updates", _redo_script(scale, "range_update", rows), 80_000),
        (own, "HOT updates", _redo_script(scale, "hot_update", rows), 200_000),
        (own, "non-HOT updates", _redo_script(scale, "non_hot_update", rows), 200_000),
        (tables, "simple-update", ("--builtin=simple-update",), 300_000),
        (tables, "tpcb-like", ("--builtin=tpcb-like",), 300_000),
    ]
    return [_replay(scale, *workload) for workload in workloads]


def _redo_script(scale, name, rows):
    """Return the arguments of pgbench for one of our own workloads."""
    return (f"--file={REDO_SCRIPTS / name}.sql", f"--define=rows={scale.count(rows, 1000)}")


def _replay(scale, dataset, name, arguments, number):
    """Return the case that replays a workload."""
    transactions = scale.count(number, 100)
    return Case(name, dataset, Replay(transactions),
                {"shared_buffers": scale.buffers(512), "max_wal_size": scale.wal(2048),
                 "log_line_prefix": "%n [%p] ", "log_startup_progress_interval": PROGRESS},
                workload=Workload(name, arguments, transactions))


# Parts of a start are split at lines that come this often.
RESTART_PROGRESS = "50ms"


@suite
def restart(scale: Scale) -> list[Case]:
    """(h) from a crash to the first query, with a cold cache."""
    loads = _restart_loads(scale)
    cases = [_restart(scale, *load) for load in loads]
    # A tenth of the data.
    small = _restart(scale, "tpcb-like, small buffers", *loads[0][1:], buffers=48, prewarm=False)
    # Nearly every page that is read comes from the device, and has been written in the load.
    long = _restart(scale, "tpcb-like, 30 s, 64 MB", *loads[0][1:], buffers=64, prewarm=False,
                    seconds=30, max_wal_size=scale.wal(1024))
    many = [_restart(scale, f"10,000 files, {method}", files_data(scale, 10_000),
                     ("--builtin=tpcb-like",), 1_000, prewarm=False,
                     recovery_init_sync_method=method) for method in ("fsync", "syncfs")]
    drops = _restart(scale, "tpcb-like, 100 drops", *loads[0][1:], statements=DROPS)
    index = _restart(scale, "CREATE INDEX of 1 GB", pgbench_data(scale, 100),
                     ("--builtin=tpcb-like",), 1_000, prewarm=False, statements=LARGE_INDEX,
                     unheld=True, max_wal_size=scale.wal(4096))
    first = _restart(scale, "tpcb-like, 14 s, first seconds", *loads[0][1:], prewarm=False, seconds=14,
                     kind=FirstSeconds, checkpoint_timeout="30s")
    return [*cases, small, long, *many, drops, index, _live_log(scale), first]


DROPS = """
DO $$BEGIN
  FOR i IN 1..100 LOOP
    CREATE TABLE dropped AS SELECT * FROM pgbench_branches;
    COMMIT;
    DROP TABLE dropped;
    COMMIT;
  END LOOP;
END$$;"""
LARGE_INDEX = "CREATE INDEX ON pgbench_accounts (aid, filler);"


def _live_log(scale):
    """Return the case with 1 GB of copies in the log, of as many pages, and little WAL."""
    case = _restart(scale, "1 GB of live log", pgbench_data(scale, 100), wide_updates(scale, 100),
                    3_000, buffers=64, prewarm=False, unheld=True, max_wal_size=scale.wal(4096),
                    checkpoint_timeout="1d")
    return replace(case, settings_of_ours={"double_write_buffer_size": scale.wal(2048),
                                           "double_write_compression": "off"})


def _restart_loads(scale: Scale) -> list[tuple[str, Dataset, tuple[str, ...], int]]:
    """Return (name, data, arguments of pgbench, transactions) of each load."""
    rows = 600_000
    own, tables = redo_data(scale, rows), pgbench_data(scale, 30)
    return [
        ("tpcb-like", tables, ("--builtin=tpcb-like",), 15_000),
        ("simple-update", tables, ("--builtin=simple-update",), 15_000),
        ("bulk inserts", own, _redo_script(scale, "bulk_insert", rows), 3_000),
        ("range updates", own, _redo_script(scale, "range_update", rows), 3_000),
        ("HOT updates", own, _redo_script(scale, "hot_update", rows), 5_000),
        ("non-HOT updates", own, _redo_script(scale, "non_hot_update", rows), 5_000),
        ("documents", document_data(scale, DOCUMENTS), document_changes(scale, DOCUMENTS), 6_000),
    ]


def _restart(scale, name, dataset, arguments, number, buffers=1024, prewarm=True, seconds=0,
             statements="", unheld=False, kind=Restart, **settings):
    """Return the case that crashes after a number of transactions, or of seconds."""
    load = kind(scale.count(number, 100), arguments, prewarm, seconds, statements, unheld)
    return Case(name, dataset, load,
                {"shared_buffers": scale.buffers(buffers), "max_wal_size": scale.wal(64),
                 "autovacuum": "off", "log_line_prefix": "%n [%p] ",
                 "log_startup_progress_interval": RESTART_PROGRESS, **settings})
