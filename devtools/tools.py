"""Tools that people trust, tried on a cluster in double_writes: `./dev tools`.

What each goes through is in trial.py; what makes no backups, a pooler or servers that share
partitions, goes through the same crash.
"""

import contextlib
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from common.base import DevError, Paths, own, require_reachable, say

from . import backups, deps, doors, worktree
from .trial import Trial
from .upgrade import Upgrade

TRIED = "packaging/tools.json"

# What is tried besides what servers are made of.
ALSO_OF = "packaging/monitoring"


class Control(Trial):
    """The same crash, but the log is thrown away: does a trial notice?"""

    def run(self) -> None:
        self.make()
        with self.load():
            pass
        self.crash()
        self.server.stop()
        self.verify(self.server, self.acknowledged)

    def tear_what_was_copied(self, data: Path) -> int:
        number = super().tear_what_was_copied(data)
        (data / "backup_label").unlink()
        for file in (data / "pg_doublewrite").iterdir():
            file.unlink()
        return number


TRIALS = {
    "barman": backups.Barman, "barman-rsync": backups.BarmanRsync,
    "basebackup": backups.BaseBackup, "logical": doors.Logical, "pgbackrest": backups.PgBackRest,
    "pgbackrest-database": backups.PgBackRestDatabase,
    "pgbackrest-standby": backups.PgBackRestStandby, "pgbouncer": doors.PgBouncer,
    "prometheus": doors.Prometheus, "rsync": backups.Rsync, "shards": doors.Shards,
    "snapshot": backups.Snapshot, "upgrade": Upgrade}


def check(paths: Paths, names: Iterable[str], build_kind: Callable[[str], Path]) -> None:
    """Try the tools; their rows of the table are kept in packaging/tools.json, with the commit.

    `build_kind` brings a build up to date, and returns its directory of programs.
    """
    unknown = set(names) - set(TRIALS)
    if unknown:
        raise DevError(f"no such tool: {', '.join(sorted(unknown))}",
                       "one of " + ", ".join(TRIALS))

    @functools.cache
    def built(kind: str) -> tuple[Path, str]:
        # What is built is of this commit, whatever is edited or committed during the trials.
        commit = worktree.stamp(paths, ALSO_OF)
        return build_kind(kind), commit

    _check_that_loss_is_noticed(paths, built("test")[0])
    file = paths.repo / TRIED
    rows = json.loads(file.read_text()) if file.exists() else {}
    for name in names or TRIALS:
        deps.ensure(paths, TRIALS[name].packages)
        (bindir, commit), *_ = [built(kind) for kind in TRIALS[name].kinds]
        rows[name] = {**_one(paths, bindir, name), "commit": commit}
        file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


@contextlib.contextmanager
def _directory(paths):
    """Give a directory for a trial; what has failed stays there."""
    place = Path(tempfile.mkdtemp(prefix="tools-", dir=paths.root))
    place.chmod(0o755)
    own(place)
    require_reachable(place)
    yield place
    shutil.rmtree(place)


def _check_that_loss_is_noticed(paths, bindir):
    """Try a crash after which the log is thrown away; raises DevError if that passes."""
    say("control: a crash whose log is thrown away")
    with _directory(paths) as place:
        control = Control(paths, bindir, place)
        try:
            control.run()
        except DevError as exc:
            # Not by anything else that may go wrong.  What a client was told is in the server log.
            if not re.search("pg_checksums|pg_amcheck|invalid page|are lost|not agree",
                             f"{exc}{control.server.log_text()}"):
                raise
            say(f"noticed: {exc}")
        else:
            raise DevError("a crash whose log was thrown away went unnoticed")
        finally:
            control.dispose()


def _one(paths, bindir, name):
    """Try one tool; returns its row."""
    say(f"trying {TRIALS[name].tool}")
    with _directory(paths) as place:
        return _tried(TRIALS[name](paths, bindir, place))


def _tried(trial):
    """Run a trial; returns its row of the table."""
    try:
        trial.run()
        row = {"tool": trial.tool, "version": trial.version(), "done": trial.done,
               "transactions": trial.transactions, "torn_at_crash": trial.torn["crash"],
               "torn_when_read": trial.torn["read"], "caveat": trial.caveat}
    finally:
        trial.dispose()
    say(f"{trial.tool}: {row['transactions']} transactions, nothing lost")
    return row
