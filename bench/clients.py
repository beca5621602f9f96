"""pgbench and sysbench, and how their output is read."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.base import DevError, run, server_user

from . import stats
from .server import Server

# Clients per processor: enough to keep storage and processors busy, and to
# let commits share WAL syncs, as in the published measurements.
CLIENTS_PER_CPU = 8

# The same sequence of choices in each run.
SEED = 18


@dataclass(frozen=True)
class Outcome:
    """What a client program measured.

    `series` has transactions a second, for each second; `latency` is
    {"p50": milliseconds, ...}.
    """

    tps: float
    transactions: int
    failed: int
    series: list
    latency: dict = field(default_factory=dict)


def clients() -> int:
    """Return how many clients to run on this machine."""
    return CLIENTS_PER_CPU * os.cpu_count()


def pgbench(server: Server, arguments: Any, seconds: float, raw: Path, number: int | None = None,
            label: str = "", count: Callable[..., Any] | None = None) -> Outcome:
    """Run pgbench; its output and its transaction log pass through `raw`, under a label.

    `count` is called with the lines of a log and the {milliseconds: count} to add them to.
    """
    text = _pgbench(server, arguments, seconds, raw, number, label)
    latencies: Counter[float] = Counter()
    for path in raw.glob(f"transactions{label}.*"):
        with open(path) as lines:
            (count or count_latencies)(lines, latencies)
        path.unlink()
    return parse_pgbench(text, latencies)


def pgbench_log(server: Server, arguments: Any, seconds: float, raw: Path,
                number: int) -> list[tuple[float, float]]:
    """Run pgbench; returns (when it ended, milliseconds) of each transaction that did not fail."""
    _pgbench(server, arguments, seconds, raw, number)
    ended = []
    for path in raw.glob("transactions.*"):
        ended += parse_transactions(path.read_text())
        path.unlink()
    return ended


def _pgbench(server, arguments, seconds, raw, number, label=""):
    """Run pgbench with a transaction log; returns its output."""
    number = number or clients()
    threads = min(number, os.cpu_count())
    prefix = raw / f"transactions{label}"
    return _client(server, raw / f"pgbench{label}.txt",
                   [server.bindir / "pgbench", "--no-vacuum", "--protocol=prepared",
                    f"--client={number}", f"--jobs={threads}", f"--time={seconds}",
                    "--progress=1", f"--random-seed={SEED}", "--log",
                    f"--log-prefix={prefix}", *arguments], raw)


def sysbench(server: Server, script: str, options: Mapping[str, Any], seconds: float, raw: Path,
             number: int) -> Outcome:
    """Run a sysbench script against the tables that `options` describe."""
    text = _client(server, raw / f"{script}-{number}.txt",
                   ["sysbench", script, *sysbench_options(server, options),
                    f"--threads={number}", f"--time={seconds}", "--report-interval=1",
                    "--histogram=on", f"--rand-seed={SEED}", "run"], raw)
    return parse_sysbench(text)


def sysbench_prepare(server: Server, options: Any) -> None:
    """Create and fill sysbench's tables."""
    run(["sysbench", "oltp_common", *sysbench_options(server, options),
         f"--threads={os.cpu_count()}", "prepare"],
        cwd="/", env=server.environment(), user=server_user(), capture=True)


def sysbench_options(server: Server, options: Mapping[str, Any]) -> list[str]:
    """Return what each call of sysbench needs."""
    env = server.environment()
    return ["--db-driver=pgsql", f"--pgsql-host={env['PGHOST']}",
            f"--pgsql-port={env['PGPORT']}", f"--pgsql-user={env['PGUSER']}",
            f"--pgsql-db={env['PGDATABASE']}",
            *(f"--{name}={value}" for name, value in options.items())]


def _client(server, path, command, directory):
    """Run a client program, keep its output in `path` and return it."""
    command = [str(part) for part in command]
    with open(path, "w") as target:
        # The progress of pgbench goes to its standard error.
        done = run(["sh", "-c", 'exec "$@" 2>&1', "sh", *command], cwd=directory,
                   env=server.environment(), user=server_user(), capture=True, check=False)
        target.write(done.stdout.decode(errors="replace"))
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        tail = "\n".join(text.splitlines()[-10:])
        raise DevError(f"{command[0]} failed:\n{tail}\nend of the server log:\n"
                       + server.log_tail())
    return text


# Reading output --------------------------------------------------------------


def count_latencies(lines: Sequence[str], latencies: Counter) -> None:
    """Add the transactions of a pgbench log to {milliseconds: count}."""
    for line in lines:
        elapsed = line.split(" ", 3)[2]
        # Failed and skipped transactions have a word instead.
        if elapsed.isdigit():
            latencies[stats.round_significant(int(elapsed) / 1000)] += 1


def parse_transactions(text: str) -> list[tuple[float, float]]:
    """Return (when it ended, milliseconds) of each transaction in a pgbench log."""
    lines = (line.split() for line in text.splitlines())
    return [(int(words[4]) + int(words[5]) / 1e6, int(words[2]) / 1000)
            for words in lines if words[2].isdigit()]


def parse_pgbench(text: str, latencies: Counter[float]) -> Outcome:
    """Return the Outcome of a pgbench run from its output and its log."""
    tps = re.search(r"^tps = ([\d.]+) \(without", text, re.MULTILINE)
    done = re.search(r"^number of transactions actually processed: (\d+)", text, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: (\d+)", text, re.MULTILINE)
    if not tps or not done:
        raise DevError("cannot find the result in pgbench's output:\n" + text[-500:])
    series = re.findall(r"^progress: [\d.]+ s, ([\d.]+) tps", text, re.MULTILINE)
    return Outcome(float(tps[1]), int(done[1]), int(failed[1]) if failed else 0,
                   [float(value) for value in series], stats.percentiles(latencies))


def parse_sysbench(text: str) -> Outcome:
    """Return the Outcome of a sysbench run from its output."""
    done = re.search(r"transactions:\s+(\d+)\s+\(([\d.]+) per sec", text)
    if not done:
        raise DevError("cannot find the result in sysbench's output:\n" + text[-500:])
    failed = re.search(r"ignored errors:\s+(\d+)", text)
    series = re.findall(r"^\[ \d+s \] thds: \d+ tps: ([\d.]+)", text, re.MULTILINE)
    bars = re.findall(r"^\s*([\d.]+) \|\**\s*(\d+)$", text, re.MULTILINE)
    latencies = {float(value): int(count) for value, count in bars}
    return Outcome(float(done[2]), int(done[1]), int(failed[1]) if failed else 0,
                   [float(value) for value in series], stats.percentiles(latencies))
