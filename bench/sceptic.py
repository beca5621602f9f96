"""Suites that a sceptic would ask for: fixed rates, long runs, storage without a cache, other loads.

As those of suites.py, in whose table they are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import machine
from .latency import Capacity, Growth, OpenLoop, Stream, WalVolume
from .loads import Pgbench
from .restart import RestartWal
from .suites import (
    MAX_WAL_ON_VOLUME_MB,
    MIN_WAL_MB,
    RESTART_PROGRESS,
    TPCB,
    Case,
    Dataset,
    Scale,
    pgbench_data,
    suite,
    tpcc_data,
    tpcc_load,
    wide_updates,
)

YCSB_SCRIPTS = Path(__file__).resolve().parent / "ycsb"
YCSB_ROW_BYTES = 1250

STOCK = "stock-full_pages"
STOCK_ARMS = (STOCK, f"{STOCK}+lz4", f"{STOCK}+zstd")
LATENCY_ARMS = (*STOCK_ARMS, "stock-off", "off", "double_writes")

# Of the transactions a second that stock does with full_pages: 0.33 as in "a third".
SHARES = {"a third": 1 / 3, "two thirds": 2 / 3, "nine tenths": 0.9}
CAPACITY = "capacity"
TPCB_SCRIPT = ("--builtin=tpcb-like",)
READ_SCRIPT = ("--builtin=select-only",)


def paced(scale: Scale, loads: Mapping[str, OpenLoop], settings: dict[str, Any]) -> list[Case]:
    """Return the case that finds the rate, and one for each of {name: load}, on pgbench's tables."""
    data = pgbench_data(scale, 100)
    return [Case(CAPACITY, data, Capacity(TPCB_SCRIPT), settings, only_arm=STOCK),
            *(Case(name, data, load, settings, paced_by=CAPACITY) for name, load in loads.items())]


@suite(arms=LATENCY_ARMS)
def latency(scale: Scale) -> list[Case]:
    """(m) what transactions at fixed rates wait for, through checkpoints each 30 s."""
    loads = {f"TPC-B, {name}": OpenLoop((Stream("TPC-B", TPCB_SCRIPT, share),))
             for name, share in SHARES.items()}
    share = SHARES["two thirds"]
    loads["point reads beside TPC-B"] = OpenLoop((Stream("reads", READ_SCRIPT, share),
                                                  Stream("TPC-B", TPCB_SCRIPT, share)))
    return paced(scale, loads, {"shared_buffers": scale.buffers(1024),
                                "max_wal_size": scale.wal(10240), "checkpoint_timeout": "30s"})


def best_practice(scale: Scale) -> dict[str, str]:
    """Return the settings of a server that has a machine to itself."""
    quarter = round(machine.total_memory_mb() / 4 / 1024) * 1024 or 256
    return {"shared_buffers": scale.buffers(quarter), "max_wal_size": scale.wal(10240)}


@suite(arms=LATENCY_ARMS)
def sawtooth(scale: Scale) -> list[Case]:
    """(n) WAL a second and latency through checkpoints each 5 min, best practice: for 30 minutes."""
    loop = OpenLoop((Stream("TPC-B", TPCB_SCRIPT, SHARES["two thirds"]),), (WalVolume(),))
    return paced(scale, {"TPC-B, two thirds": loop}, best_practice(scale))


@suite(arms=("double_writes",))
def soak(scale: Scale) -> list[Case]:
    """(o) memory, descriptors, log and WAL of a server under load, over time: for an hour."""
    loop = OpenLoop((Stream("TPC-B", TPCB_SCRIPT, SHARES["two thirds"]),), (Growth(),))
    return paced(scale, {"TPC-B, two thirds": loop},
                 {"shared_buffers": scale.buffers(1024), "max_wal_size": scale.wal(1024),
                  # What it keeps is what is looked at.
                  "min_wal_size": f"{MIN_WAL_MB}MB", "checkpoint_timeout": "1min"})


@suite(arms=(*STOCK_ARMS, "off", "double_writes", "in_order"))
def restart_wal(scale: Scale) -> list[Case]:
    """(p) from a crash to the first query and to full throughput, by WAL since the checkpoint."""
    updates = wide_updates(scale, 30)
    return [Case(name, pgbench_data(scale, 30, fillfactor=60),
                 RestartWal(0, TPCB_SCRIPT, prewarm=False, unheld=True,
                            megabytes=scale.count(megabytes), updates=updates),
                 {"shared_buffers": scale.buffers(1024), "checkpoint_timeout": "1d",
                  "max_wal_size": scale.wal(3 * megabytes), "autovacuum": "off",
                  "log_line_prefix": "%n [%p] ",
                  "log_startup_progress_interval": RESTART_PROGRESS},
                 # a quarter more than the WAL, with what each case has for it
                 room=max(0, scale.count(megabytes) * 5 // 4 - 2 * MAX_WAL_ON_VOLUME_MB),
                 if_room=megabytes > 1024)
            for name, megabytes in (("50 MB", 50), ("200 MB", 200), ("1 GB", 1024), ("10 GB", 10240))]


@suite(arms=(STOCK, f"{STOCK}+zstd", "stock-off", "off", "double_writes"))
def no_cache(scale: Scale) -> list[Case]:
    """(q) storage without a write cache: each sync takes 1, 5 or 20 ms, of all files alike."""
    settings = {"shared_buffers": scale.buffers(1024), "max_wal_size": scale.wal(64)}
    return [Case(f"{milliseconds} ms, TPC-B", pgbench_data(scale, 100), TPCB, settings,
                 slow_syncs=1000 * milliseconds)
            for milliseconds in (1, 5, 20)]


@suite(arms=(STOCK, f"{STOCK}+zstd", "off", "double_writes"))
def tpcc(scale: Scale) -> list[Case]:
    """(r) a mix like TPC-C on 50 warehouses, checkpoints each 5 min: for an hour."""
    data, load = tpcc_data(scale, 50), tpcc_load(scale, 50)
    # As was published in 2012 of 5 GB of data: buffers for all of it, and for a fifth.
    settings = {"shared_buffers": scale.buffers(650), "max_wal_size": scale.wal(10240)}
    return [Case("buffers for all", data, load, settings),
            Case("buffers for all, WAL device", data, load, settings, own_wal_device=True),
            Case("buffers for all, syncs of 5 ms", data, load, settings, slow_syncs=5000),
            Case("buffers for a fifth", data, load,
                 {**settings, "shared_buffers": scale.buffers(130)})]


# Shares of transactions of YCSB's workloads, in percent.
YCSB = {"A": {"read": 50, "update": 50}, "B": {"read": 95, "update": 5},
        "F": {"read": 50, "read_modify_write": 50}}


@suite(arms=(*STOCK_ARMS, "off", "double_writes"))
def ycsb(scale: Scale) -> list[Case]:
    """(s) YCSB A, B and F, as scripts of pgbench."""
    rows = scale.count(1_000_000, 1000)
    schema = (YCSB_SCRIPTS / "schema.sql").read_text()
    data = Dataset(f"ycsb-{rows}", rows * YCSB_ROW_BYTES >> 20, lambda server: server.sql(
        f"\\set rows {rows}\n{schema}"))
    return [Case(f"workload {name}", data, Pgbench((
        *(f"--file={YCSB_SCRIPTS / script}.sql@{share}" for script, share in shares.items()),
        f"--define=rows={rows}")), {"shared_buffers": scale.buffers(1024),
                                    "max_wal_size": scale.wal(1024)})
            for name, shares in YCSB.items()]
