"""What a recovered cluster must say, given the acks of a run and a moment.

expectation() and orphans_allowed() look at acks only; verify_single() and
verify_connected() ask a cluster, and return complaints, none if all is well.
"""

import functools
import json
import math
import re
import subprocess
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.base import identity, server_user

from .server import environment
from .states import SPACES

# Settings for the verifier's own run.  They make it quick, and change nothing
# that recovery has to do right.
SINGLE_OPTIONS = {
    "fsync": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "exit_on_error": "off",
    "log_checkpoints": "off",
}

# What is said of files that are read past the server.
_OF_FILES = re.compile("is not a page|fork has .* could be read"
                       "|file .* (differs in block|has .* bytes, not)")

# A hanging recovery is a finding, not a reason to wait for ever.
TIMEOUT = 600


def expectation(acks: Any, moment: float) -> dict:
    """Return what must hold if the power was cut at `moment` (monotonic ns).

    {"clients": {client: {"acked", "issued"}}, "prepared": {gid: ...},
     "databases": {...}, "tablespaces": {...}, "copies": [...],
     "complaints": [...]};
    oracle.sql says what each of them means.
    """
    # Until the first run had begun, nothing was done since the base was made.
    first = next((event for event in acks if event["what"] == "resumed"), {"clients": {}})
    clients = {client: {"acked": n, "issued": n} for client, n in first["clients"].items()}
    complaints = [event["text"] for event in acks
                  if event["what"] == "complaint" and event["t"] <= moment]
    prepared = {}
    objects = {"database": {}, "tablespace": {}}
    touched = set()
    for event in acks:
        if event["t"] > moment:
            continue
        what = event["what"]
        if what in ("issue", "ack", "fail") and "n" in event:
            client = clients.setdefault(event["client"], {"acked": 0, "issued": 0})
            _number(client, what, event)
        elif what in ("prepare", "prepared", "decide", "finished"):
            _phase(prepared, what, event)
        elif what == "effect":
            known = objects[event["object"]]
            # Under way, or failed half-way: both outcomes are right.
            known[event["name"]] = event["present"] if event["done"] else None
        elif what == "touch":
            touched.add(event["name"])
        elif what == "resumed":
            clients = {client: {"acked": _acked(clients, client) if event.get("lazy") else n,
                                "issued": n}
                       for client, n in event["clients"].items()}
            prepared = {gid: {"client": "", "n": 0, "fate": "there"} for gid in event["prepared"]}
            for kind, known in objects.items():
                for name in known:
                    known[name] = name in event[kind + "s"]
    return {
        "clients": clients,
        "prepared": prepared,
        "databases": objects["database"],
        "tablespaces": objects["tablespace"],
        "copies": sorted(name for name, present in objects["database"].items()
                         if present and name not in touched),
        "complaints": complaints,
    }


def _acked(clients, client):
    """Return what a client has been promised so far."""
    return clients[client]["acked"] if client in clients else 0


def _number(client, what, event):
    """Enter an event with a transaction number."""
    n = event["n"]
    if what == "ack":
        client["issued"] = max(client["issued"], n)
        if not event.get("lazy"):
            client["acked"] = max(client["acked"], n)
    elif what == "issue":
        client["issued"] = max(client["issued"], n)
    elif not event.get("unknown"):
        # The server said that it is rolled back, thus it must stay so.
        client["issued"] = min(client["issued"], max(client["acked"], n - 1))


def _phase(prepared, what, event):
    """Enter a phase of a prepared transaction."""
    gid = event["gid"]
    if what == "finished" and not event.get("unknown"):
        prepared.pop(gid, None)
        return
    fate = {"prepare": "may", "prepared": "there", "finished": "may",
            "decide": "decided" if event.get("commit") else "may"}[what]
    prepared[gid] = {"client": event["client"], "n": event["n"], "fate": fate}


def lagging(expected: Any) -> dict:
    """Return what must hold on a standby or a backup, which may be behind.

    How far it has come is not known, hence nothing that depends on it; what
    the journal there says must hold nevertheless.
    """
    return {**{key: value for key, value in expected.items()
               if key not in ("prepared", "databases", "tablespaces", "copies")},
            "clients": {client: {**known, "acked": 0}
                        for client, known in expected["clients"].items()}}


def orphans_allowed(acks: Any, moment: float, ops: Any) -> list:
    """Return the files and directories that may belong to nothing, as in stock PostgreSQL.

    `ops` are (time_ns, operation, path relative to the data directory) of the
    recording.  A path counts if it was

    * "create"d while a command was under way that had not succeeded at
      `moment`: no catalog names the file after the crash;
    * "unlink"ed: pass this only for those whose directory was not synced since,
      as they may come back; and for those that were truncated to nothing and not
      synced since, which is how a drop leaves them until the next checkpoint has
      ended;
    * "drop"ped, that is removed in this way, after `moment`, while a command was
      still under way that had begun before.  Files go after the commit; if a
      checkpoint begins and completes in between, no recovery knows of them.

    Paths are returned without fork and segment.
    """
    failed, open_spans = _unsuccessful(acks, moment)
    spans = _merged((begun["t"], end) for begun, end in failed)
    allowed = {path for begun, _ in failed for path in begun.get("paths", ())}
    last_end = _last_end(acks, moment, open_spans)
    for when, operation, path in ops:
        if (operation == "drop" and moment < when <= last_end
                or when <= moment and (operation == "unlink"
                                       or operation == "create" and _within(spans, when))):
            allowed.add(file_name(path))
    return sorted(allowed)


def _unsuccessful(acks, moment):
    """Return [(event that began it, end)] of the commands without success at `moment`.

    Also, of those that were still under way then, {(client, number): event that began it}.
    """
    found, open_spans = [], {}
    for event in acks:
        if event["t"] > moment:
            break
        key = event["client"], event.get("effect")
        if event["what"] == "begin":
            open_spans[key] = event
        elif event["what"] == "end":
            begun = open_spans.pop(key)
            if event.get("failed"):
                found.append((begun, event["t"]))
        elif event["what"] == "resumed":
            found += [(begun, event["t"]) for begun in open_spans.values()]
            open_spans.clear()
    found += [(begun, moment) for begun in open_spans.values()]
    return found, open_spans


def _last_end(acks, moment, open_spans):
    """Return when the last of the commands ended that were under way at `moment`."""
    missing = set(open_spans)
    last = moment
    for event in acks:
        if not missing:
            return last
        if event["t"] <= moment:
            continue
        last = event["t"]
        if event["what"] == "resumed":
            return last
        if event["what"] == "end":
            missing.discard((event["client"], event.get("effect")))
    return math.inf if missing else last


def _merged(spans):
    """Return spans of time, sorted, with those that overlap as one."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _within(spans, when):
    """Say whether a moment is in one of the merged spans."""
    at = bisect_right(spans, (when, math.inf)) - 1
    return at >= 0 and when <= spans[at][1]


@functools.cache
def file_name(path: str) -> str:
    """Return the name under which verify() complains of a path: without fork and segment."""
    path = re.sub(f"^{SPACES}/", "pg_tblspc/", path.removeprefix("./"))
    return re.sub(r"(_(fsm|vm|init))?(\.\d+)?$", "", path)


def verify_connected(connect: Callable[..., Any], expected: Any, quick: bool = False,
                     checkpoint: bool = True) -> list:
    """Return the complaints of a running server.

    The check of files needs them current: hence a checkpoint.  If the caller
    objects, or the server is a standby, what it says does not count.  A standby must have
    nothing left to replay, as checks and replay would stand in each other's way.
    """
    connection = connect("postgres")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_is_in_recovery()")
            current = checkpoint and not cursor.fetchone()[0]
            if current:
                cursor.execute("CHECKPOINT")
            cursor.execute("SELECT * FROM oracle.verify(%s, %s)", (json.dumps(expected), quick))
            return [complaint for (complaint,) in cursor.fetchall()
                    if current or not _OF_FILES.search(complaint)]
    finally:
        connection.close()


def verify_single(bindir: str, datadir: Any, expected: Any, options: Any = None,
                  quick: bool = False, timeout: float = TIMEOUT) -> tuple:
    """Recover a cluster in single-user mode, and return (complaints, server log).

    `options` are settings for the server.  A server that does not come to a
    verdict is a complaint, with the last lines of its log.
    """
    command = [str(Path(bindir) / "postgres"), "--single", "-D", str(datadir)]
    for name, value in {**SINGLE_OPTIONS, **(options or {})}.items():
        command += ["-c", f"{name}={value}"]
    literal = json.dumps(expected).replace("'", "''")
    sql = f"SELECT * FROM oracle.verdict('{literal}', {str(bool(quick)).lower()})\n"
    try:
        done = subprocess.run([*command, "postgres"], input=sql, capture_output=True,
                              text=True, errors="replace", timeout=timeout, cwd="/",
                              env=environment(), **identity(server_user()))
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace")
        return [f"no verdict within {timeout} s"], log
    return read_verdict(done.stdout, done.stderr, done.returncode), done.stderr


def read_verdict(output: Any, log: str, status: int) -> list[str]:
    """Return the complaints in the output of single-user mode."""
    complaints = [bytes.fromhex(digits).decode(errors="replace")
                  for digits in re.findall(r'"pgcut-complaint:([0-9a-f]*)"', output)]
    count = re.search(r'"pgcut-complaints:(\d+)"', output)
    if count is None or int(count[1]) != len(complaints):
        lines = log.strip().splitlines()
        telling = [line for line in lines if re.search("TRAP|PANIC|FATAL|ERROR", line)]
        complaints.append(f"no verdict, exit status {status}: "
                          + " / ".join(telling[-4:] or lines[-4:]))
    elif status != 0:
        complaints.append(f"exit status {status} after the verdict")
    return complaints
