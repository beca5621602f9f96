"""Is what pg_doublewrite_advise predicts what comes?

Of each load: a stock server under it is watched; then this build's server is started on
the same cluster as it was before, switches to double_writes, and carries the same load.
Not on what the first run has left: loads change their tables, and so what WAL they need.
The tool watches a second time beside itself, without a program to read WAL with.
Then the server is stopped as by a crash, and started with nothing in the kernel's cache, on
storage that is held to what the tool reckons with.
What was predicted and what came are kept in packaging/advise/checked.json, of which a
table is generated.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import restart, runner, storage, suites
from bench.clients import SEED
from bench.server import DATABASE, Server
from common import postgres
from common.base import (
    SYSTEM_PYTHON,
    DevError,
    Paths,
    give_to_user,
    identity,
    own,
    require_reachable,
    say,
    server_user,
)
from common.postgres import ServerError

CHECKED = "packaging/advise/checked.json"

# Transactions a second of each load of `./dev bench restart`: some WAL, little CPU time.
RATES = {"tpcb-like": 100, "simple-update": 120, "bulk inserts": 15, "range updates": 20,
         "HOT updates": 40, "non-HOT updates": 40, "documents": 15}

CLIENTS = 4

# The load begins before the tool, and ends when that has ended.
MARGIN_SECONDS = 3

# Checkpoints by time, as often as stock can have them, so that some are watched, and as often
# before the switch as after it.
SETTINGS = {"checkpoint_timeout": "30s", "max_wal_size": "1GB", "shared_buffers": "64MB",
            "max_connections": 50}

# The bars: how far off WAL may be, and the share of one core that watching may take.
OFF, CORE = 0.1, 0.01

# Where restarts are measured, and what the tool is told of it.
STORAGE = "rented"
LIMIT = storage.LIMITS[STORAGE]


def check(paths: Paths, stock: Path, ours: Path, factor: float, seconds: float) -> list[str]:
    """Try each load; returns the names of those whose bars were missed."""
    scratch = Path(tempfile.mkdtemp(prefix="advise-", dir=paths.root))
    scratch.chmod(0o755)
    give_to_user(scratch)
    require_reachable(scratch)
    held = _can_hold()
    former = {one["load"]: one.get("restarts", {})
              for one in json.loads((paths.repo / CHECKED).read_text())["loads"]}
    found = []
    try:
        for case in suites.cases("restart", factor):
            if case.name in RATES:
                say(f"{case.name}: watching stock, then switching")
                found.append(_one(paths, stock, ours, scratch, case, seconds, held))
                # What cannot be measured here stays as it was measured elsewhere.
                found[-1]["restarts"] = found[-1]["restarts"] or former.get(case.name, {})
                say(f"{case.name}: WAL off by {found[-1]['off']:+.1%}, "
                    f"{found[-1]['core']:.2%} of a core")
                for instant, one in found[-1]["restarts"].items():
                    say(f"{case.name}: restart with instant_recovery = {instant}: {_in_words(one)}")
    finally:
        shutil.rmtree(scratch)
    (paths.repo / CHECKED).write_text(json.dumps(
        {"factor": factor, "seconds": seconds, "loads": found}, indent=1) + "\n")
    return [one["load"] for one in found if abs(one["off"]) > OFF or one["core"] > CORE]


def _can_hold():
    """Return whether a device can be held to LIMIT here; if not, say why."""
    try:
        storage.require(STORAGE)
    except DevError as error:
        say(f"restarts are not measured: {error}")
        return False
    return True


def _one(paths, stock, ours, scratch, case, seconds, held):
    """Watch, switch and compare under one load; if storage can be held, crash and restart."""
    template = runner.prepared(paths, scratch, stock, "stock", case.dataset)
    server = Server(paths, stock, scratch / "cluster")
    runner.copy(template, server.data)
    server.configure(SETTINGS)
    with server, _Load(server, case.load.arguments, RATES[case.name]) as load:
        time.sleep(MARGIN_SECONDS)
        with _Counting(paths, server, stock, scratch, seconds) as counting:
            commits, begun = load.commits(), time.monotonic()
            result, core = _advise(paths, server, stock, scratch, seconds)
            rate = (load.commits() - commits) / (time.monotonic() - begun)
    shutil.rmtree(server.data)
    ours_server = Server(paths, ours, server.data)
    runner.copy(template, server.data)
    ours_server.configure(SETTINGS)
    with ours_server:
        ours_server.sql("ALTER SYSTEM SET io_torn_pages_protection = 'double_writes'")
        ours_server.sql("SELECT pg_reload_conf(); CREATE EXTENSION pg_doublewrite_stats")
        # A reload is under way when the function returns.
        _until(lambda: ours_server.sql("SELECT in_force FROM pg_double_write_mode")
               == "double_writes")
        with _Load(ours_server, case.load.arguments, RATES[case.name]) as load:
            time.sleep(MARGIN_SECONDS)
            lsn, copies, commits = load.lsn(), load.copies(), load.commits()
            time.sleep(seconds)
            came, copied = load.since(lsn), load.copies() - copies
            commits = load.commits() - commits
            if held:
                _write_most_wal(ours_server, result)
        if held:
            ours_server.stop("immediate")
        came /= commits
        copied /= commits
    restarts = _restarts(paths, ours, server.data, result["recovery"]) if held else {}
    shutil.rmtree(server.data)
    # The load's own beginning, right after a checkpoint, was not watched.
    watched, per_day = rate * result["seconds"], rate * 86400
    predicted = result["wal_bytes_after"] / watched
    rough = (counting.result and
             counting.result["wal_bytes_after"] / rate / counting.result["seconds"])
    return {"load": case.name, "before": round(result["wal_bytes"] / watched),
            "predicted": round(predicted),
            "came": round(came), "off": round(predicted / came - 1, 4),
            "off_by_counters": rough and round(rough / came - 1, 4),
            "copies_predicted": [round(one / per_day, 3) for one in result["log"]["pages"]],
            "copies_came": round(copied, 3), "core": core, "verdict": result["verdict"],
            "restarts": restarts}


def _until(holds):
    """Wait until something holds."""
    deadline = time.monotonic() + postgres.END_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise ServerError("the server did not switch to double writes")
        time.sleep(0.05)


def _write_most_wal(server, result):
    """Wait until as much WAL follows the last checkpoint as the prediction says can follow one."""
    server.sql("ALTER SYSTEM SET checkpoint_timeout = '1d'")
    server.sql("SELECT pg_reload_conf(); CHECKPOINT")
    time.sleep(result["recovery"]["then"]["wal"] / result["wal_bytes_after"] * result["seconds"])


def _restarts(paths, ours, crashed, predicted):
    """Start copies of a crashed cluster; returns {instant_recovery: what was predicted and came}."""
    megabytes = sum(path.stat().st_size for path in crashed.rglob("*") if path.is_file()) >> 20
    size = 2 * megabytes + 1024
    if storage.room(STORAGE) < size:
        say(f"the restart is not measured: it needs {size} MB of {storage.MEMORY}")
        return {}
    # It tells copies of files, which is what is started.
    (crashed / "pg_doublewrite" / "owner").unlink()
    found = {}
    for instant, span in (("off", predicted["then"]["seconds"]), ("on", predicted["instant"])):
        whole, came = _restart(paths, ours, crashed, instant, size)
        found[instant] = judged(span, came, whole)
    return found


def _restart(paths, ours, crashed, instant, size):
    """Start a copy of a crashed cluster; returns seconds until the first query is answered.

    Those from the start of the server on, and those from the start of redo on.
    """
    with storage.volume(STORAGE, storage.default_work_directory(), size) as volume:
        server = Server(paths, ours, volume.data / "cluster")
        runner.copy(crashed, server.data)
        server.configure({"instant_recovery": instant, "log_line_prefix": "%n [%p] "})
        volume.cool()
        volume.hold()
        begun = time.time()
        try:
            server.start(wait=False)
            text = server.until_ready(0, restart.SAMPLE_SECONDS)
            server.sql("SELECT 1")
            answered = time.time()
        finally:
            volume.release()
            server.stop("immediate")
    return answered - begun, answered - restart.parse_marks(text, begun, answered)["look"]


def judged(span: Sequence[float], came: float, whole: float) -> dict[str, Any]:
    """Return what is kept of a restart, all in seconds: "missed" is how far it is out of the span."""
    low, high = (round(one, 2) for one in span)
    came = round(came, 2)
    return {"predicted": [low, high], "came": came,
            "missed": round(came - min(max(came, low), high), 2), "whole": round(whole, 2)}


def _in_words(one: Mapping[str, Any]) -> str:
    """Return what is said of a restart."""
    low, high = one["predicted"]
    return (f"{one['came']} s, predicted {low} to {high} s"
            + (f", missed by {one['missed']:+} s" if one["missed"] else ""))


class _Load:
    """A load of so many transactions a second, if the machine has time for them."""

    def __init__(self, server: Server, arguments: Any, rate: float) -> None:
        self.server = server
        self.command = [server.bindir / "pgbench", "--no-vacuum", "--protocol=prepared",
                        f"--client={CLIENTS}", f"--random-seed={SEED}", f"--rate={rate}",
                        "--time=3600", "--max-tries=10", *arguments]

    def __enter__(self) -> "_Load":
        self.server.sql("CHECKPOINT")
        self.process = subprocess.Popen(
            [str(part) for part in self.command], cwd="/", env=self.server.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **identity(server_user()))
        return self

    def __exit__(self, kind: str, error: BaseException | None, trace: Any) -> None:
        self.process.send_signal(signal.SIGALRM)        # as if its time were over
        text, _ = self.process.communicate()
        if self.process.returncode:
            raise ServerError(f"pgbench failed: {text[-500:]}")

    def commits(self) -> int:
        """Return how many transactions have been committed, all but the last second's."""
        return int(self.server.sql("SELECT xact_commit FROM pg_stat_database"
                                   " WHERE datname = current_database()"))

    def lsn(self) -> str:
        """Return where WAL ends now."""
        return self.server.sql("SELECT pg_current_wal_insert_lsn()")

    def since(self, lsn: str) -> float:
        """Return the bytes of WAL from there on."""
        return float(self.server.sql(f"SELECT pg_current_wal_insert_lsn() - '{lsn}'"))

    def copies(self) -> int:
        """Return how many pages the server has copied to the log."""
        return int(self.server.sql("SELECT pages_logged FROM pg_stat_double_writes"))


def _start(paths, server, bindir, scratch, seconds, *options):
    """Start the tool as the server's user; returns the process."""
    program = scratch / "pg_doublewrite_advise.py"
    shutil.copyfile(paths.repo / "packaging" / "advise" / program.name, program)
    environment = {**server.environment(), "PATH": f"{bindir}:{server.env['PATH']}"}
    own(program)
    return subprocess.Popen(
        [SYSTEM_PYTHON, str(program), "--dbname", DATABASE, "--seconds", str(seconds),
         "--iops", str(LIMIT.iops), "--mbps", str(LIMIT.mbps), "--json", *options],
        env=environment, cwd=scratch, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **identity(server_user()))


def _advise(paths, server, bindir, scratch, seconds):
    """Run the tool; returns (its result, its share of a core)."""
    used = os.times()
    done = _start(paths, server, bindir, scratch, seconds, "--save", scratch / "sample.json")
    backend = 0
    try:
        text, errors = done.communicate(timeout=seconds * 0.9)
    except subprocess.TimeoutExpired:
        backend = _backend_seconds(server)
        text, errors = done.communicate()
    if done.returncode:
        raise DevError(f"pg_doublewrite_advise failed: {errors}")
    now = os.times()
    spent = (now.children_user - used.children_user + now.children_system - used.children_system)
    # pgbench has not ended yet, so it does not count.  The psql that finds the backend does.
    return json.loads(text), round((spent + backend) / seconds, 5)


class _Counting:
    """The tool beside itself, with nothing to read WAL with; `result` is None if it cannot say."""

    def __init__(self, *arguments: Any) -> None:
        self.process = _start(*arguments, "--bindir", "/nonexistent")

    def __enter__(self) -> "_Counting":
        return self

    def __exit__(self, kind: str, error: BaseException | None, trace: Any) -> None:
        text, errors = self.process.communicate()
        if self.process.returncode and "do not tell" not in errors:
            raise DevError(f"pg_doublewrite_advise failed: {errors}")
        self.result = None if self.process.returncode else json.loads(text)


def _backend_seconds(server):
    """Return the CPU time of the backend that serves the tool, the later of two."""
    pid = int(server.sql("SELECT pid FROM pg_stat_activity"
                         " WHERE application_name = 'pg_doublewrite_advise'"
                         " ORDER BY backend_start DESC LIMIT 1"))
    user, system = postgres.stat_fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
