"""The settings under which the explorer runs servers, drawn at random.

Each setting of ours must be in MATRIX: the gate of the repository checks it.

CYCLE seeds that follow one another have each value of a setting together with each
value of each other one: what two settings break together is met sooner than by chance.
"""

import functools
import random
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from . import server

# How many rows it takes for all pairs of values to be there, and some more.
CYCLE = 36

# Rows that are tried for each one that is taken: the more, the fewer rows there are.
_CANDIDATES = 4

# A value that is named twice is drawn more often where pairs leave the choice.
MATRIX = {
    "io_torn_pages_protection": ("double_writes",) * 3 + ("full_pages", "atomic_writes"),
    "double_write_buffer_size": ("16MB", "16MB", "20MB", "-1"),
    "double_write_stage_size": ("1MB", "2MB", "8MB", "-1"),
    "double_write_compression": ("off", "lz4", "lz4", "zstd"),
    "instant_recovery": ("on", "on", "off"),
    "instant_recovery_memory": ("64kB", "64MB"),
    "recovery_workers": ("-1", "-1", "0", "1", "3"),
    "wal_pipeline": ("on", "off"),
    "wal_pipeline_queue_size": ("64kB", "1MB", "16MB"),
    "shared_buffers": ("512kB", "1MB", "2MB", "16MB"),
    "wal_level": ("minimal", "replica", "replica", "logical"),
    "wal_compression": ("off", "pglz", "lz4", "zstd"),
    "wal_log_hints": ("off", "on"),
    "wal_consistency_checking": ("",) * 5 + ("all",),
    "wal_recycle": ("on", "off"),
    "wal_init_zero": ("on", "off"),
    "wal_sync_method": ("fdatasync", "fdatasync", "fsync", "open_datasync"),
    "io_method": ("sync", "worker", "io_uring"),
    "io_combine_limit": ("8kB", "32kB", "128kB", "256kB"),
    "debug_io_direct": ("", "", "data", "data,wal"),
    "recovery_prefetch": ("try", "off"),
    "checkpoint_timeout": ("1s", "3s", "30s"),
    "max_wal_size": ("2MB", "8MB", "64MB"),
    "checkpoint_completion_target": ("0", "0.9"),
    "checkpoint_flush_after": ("0", "256kB"),
    "backend_flush_after": ("0", "64kB"),
    "bgwriter_delay": ("10ms", "200ms"),
    "bgwriter_lru_maxpages": ("0", "100"),
    "full_page_writes": ("on",),
    "autovacuum": ("off", "on"),
    "data_sync_retry": ("off",),
    "show_recovery_progress": ("off", "local", "on"),
}

# Where the recorder is, nothing is atomic: the test module stands in for the kernel.
PRETENDED = {
    **server.MODULES,
    "test_doublewrite.pretend_atomic": "on",
}

# A page that no backend reads waits for a millisecond more, so that there is time for cuts.
SLOWLY = {
    **server.MODULES,
    "test_points.fail_at": "instant-recovery-slowly:EIO",
}

# What every server of the explorer is run with.
FIXED = {
    "fsync": "on",
    "max_connections": "40",
    "max_prepared_transactions": "10",
    "max_wal_senders": "4",
    "max_worker_processes": "8",
    "min_wal_size": "2MB",
    "wal_buffers": "256kB",
    "temp_buffers": "800kB",
    "jit": "off",
    "log_checkpoints": "on",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %e ",       # as alarms.py reads it
    "allow_in_place_tablespaces": "on",
    "restart_after_crash": "off",
    "autovacuum_naptime": "1s",
    "deadlock_timeout": "100ms",
}


def draw(seed: int, **fixed: Any) -> tuple[dict[str, str], bool]:
    """Return (settings, checksums) drawn for a seed; `fixed` overrides draws."""
    cycle, number = divmod(seed, CYCLE)
    settings = dict(_rows(cycle)[number])
    checksums = settings.pop("checksums")
    settings.update(FIXED)
    settings.update(fixed)
    return sanitised(settings), checksums


@functools.cache
def _rows(cycle):
    """Return CYCLE rows, dicts, in which each pair of values of two parameters occurs."""
    rng = random.Random(f"matrix/{cycle}")
    values = {**MATRIX, "checksums": (False, True)}
    missing = {frozenset(((a, x), (b, y))) for a, b in combinations(values, 2)
               for x in values[a] for y in values[b]}
    rows = []
    while missing:
        candidates = [_row(rng, values, missing) for _ in range(_CANDIDATES)]
        row = max(candidates, key=lambda row: len(missing & _pairs(row)))
        rows.append(row)
        missing -= _pairs(row)
    if len(rows) > CYCLE:
        raise ValueError(f"{len(rows)} rows are needed for all pairs of values: raise CYCLE")
    rows += [{name: rng.choice(values[name]) for name in values}
             for _ in range(CYCLE - len(rows))]
    rng.shuffle(rows)
    return rows


def _row(rng, values, missing):
    """Return a row with one of the missing pairs, and greedily as many others as possible."""
    row = dict(rng.choice(sorted(missing, key=sorted)))
    for name in rng.sample(sorted(values), len(values)):
        if name not in row:
            chances = rng.sample(values[name], len(values[name]))
            row[name] = max(chances, key=lambda value: sum(
                frozenset(((name, value), other)) in missing for other in row.items()))
    return row


def _pairs(row):
    """Return the pairs of values that a row has."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def sanitised(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return `settings` without combinations that PostgreSQL refuses."""
    settings = dict(settings)
    if settings["wal_level"] == "minimal":
        settings["max_wal_senders"] = "0"
    if settings["io_torn_pages_protection"] == "atomic_writes":
        settings.update(PRETENDED)
    if settings["instant_recovery"] == "on" and settings["recovery_workers"] == "1":
        settings.update(SLOWLY)
    return settings


def replicating(settings: Mapping[str, Any]) -> dict:
    """Return `settings` changed such that the server can be a primary."""
    return {**settings, "wal_level": "replica" if settings["wal_level"] == "minimal"
            else settings["wal_level"], "max_wal_senders": FIXED["max_wal_senders"]}
