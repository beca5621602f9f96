"""Real power cuts: a load on a user's own storage, and the verdict after the cut.

load() prints each event as a line of JSON at once.  The lines have to be kept on
another machine, as what is on this one when its power fails proves nothing:

    ssh root@victim 'cd repository && ./dev crash load /mnt/disk/cut' > acks.jsonl
    (cut the power, switch on again)
    ./dev crash verify /mnt/disk/cut acks.jsonl

The last lines may be lost on their way.  So what was acknowledged in the file
must be in the cluster; more may be there.
"""

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import alarms, matrix, oracle, pages, server, workload

# Above all numbers of transactions.
_ANY = (1 << 31) - 1

# What the loads need; everything else stays as the user, or initdb, has set it.
_NEEDED = ("max_connections", "max_prepared_transactions", "allow_in_place_tablespaces")


def load(bindir: str, directory: Path, seconds: float, settings: Mapping[str, Any],
         checksums: bool = True) -> int:
    """Run all kinds of load on a cluster in `directory`, which is made if need be.

    `settings` are written to a new cluster.  Returns the exit status.
    """
    data = Path(directory).absolute()
    if not (data / "PG_VERSION").exists():
        _make(bindir, data, settings, checksums)
    instance = server.Server(bindir, data, _log(data))
    try:
        instance.start({"fsync": "on"})
        print(f"load runs for {seconds} s: cut the power", file=sys.stderr, flush=True)
        workload.run(instance.connect, seconds=seconds, seed=random.randrange(1 << 30),
                     sink=lambda event: print(json.dumps(event), flush=True))
        instance.stop(properly=False)       # it may have been cut
    finally:
        instance.close()
    print("the load is over, and the server was stopped: nothing was tested", file=sys.stderr)
    return 0


def _make(bindir, data, settings, checksums):
    """Make a durable cluster that holds what the load starts with."""
    with server.as_user():
        data.mkdir(parents=True, exist_ok=True)
    server.make_cluster(bindir, data, checksums, segment_mb=16)
    server.write_settings(data, {name: matrix.FIXED[name] for name in _NEEDED})
    server.write_settings(data, settings)
    instance = server.Server(bindir, data, _log(data))
    try:
        instance.start()
        workload.prepare(instance.connect, 0, ("",))
        instance.stop()
    finally:
        instance.close()
    subprocess.run(["sync", "--file-system", str(data)], check=True)


def verify(bindir: str, directory: Path, acks: Any) -> int:
    """Recover the cluster, and print what is wrong with it; returns the exit status."""
    data = Path(directory).absolute()
    events = [json.loads(line) for line in Path(acks).read_text().splitlines()
              if line.endswith("}")]
    outcome = oracle.expectation(events, float("inf"))
    known = outcome["clients"]
    if not any(event["what"] == "ack" for event in events):
        print(f"{acks} tells of no transaction that was acknowledged: nothing can be verified")
        return 2
    expected = {**oracle.lagging({"clients": known, "complaints": outcome["complaints"]}),
                "clients": {name: {"acked": client["acked"], "issued": _ANY}
                            for name, client in known.items()}}
    (data / "postmaster.pid").unlink(missing_ok=True)
    log = _log(data)
    before = len(log.read_text(errors="replace"))
    instance = server.Server(bindir, data, log)
    try:
        instance.start({"log_line_prefix": matrix.FIXED["log_line_prefix"]})
        complaints = oracle.verify_connected(instance.connect, expected)
        instance.stop()
    finally:
        instance.close()
    said = log.read_text(errors="replace")[before:]
    complaints += [f"told by the load: {text}" for text in alarms.of_clients(events)]
    complaints += dict.fromkeys(alarms.bad_lines(said) + alarms.of_server(said))
    complaints += pages.future_lsns(data, alarms.left_over(complaints))
    # It is not known which files were left by transactions that did not end.
    complaints = [text for text in complaints if not alarms.left_over([text])]
    print("\n".join(complaints))
    print(f"{sum(client['acked'] for client in known.values())} transactions of {len(known)} "
          f"clients were acknowledged; {len(complaints)} complaints")
    return 1 if complaints else 0


def _log(data):
    """Return the server log, beside the cluster; it is made if need be."""
    log = data.with_name(data.name + ".log")
    log.touch()
    server.own(log)
    return log
