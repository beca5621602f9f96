"""Trials of tools that make backups: with the server, from Debian, from Python's package index."""

import platform
from pathlib import Path
from typing import Any

from bench.server import DATABASE, PORT, Server
from common import postgres
from common.base import as_user, own, run, say, server_user
from common.postgres import ServerError

from . import apt, deps
from .trial import Trial, until_none


class BaseBackup(Trial):
    """The backup tools that come with the server."""

    tool = "pg_basebackup, pg_combinebackup"
    done = "full and incremental backup, combined"
    caveat = "none; with `summarize_wal = on`, summaries go on after the crash"

    def full(self) -> None:
        self.call(self.bindir / "pg_basebackup", "-D", self.place / "full", "-c", "fast")

    def incremental(self) -> None:
        self.call(self.bindir / "pg_basebackup", "-D", self.place / "more", "-c", "fast",
                  "-i", self.place / "full" / "backup_manifest")

    def restore(self) -> Path:
        self.call(self.bindir / "pg_combinebackup", self.place / "full", self.place / "more",
                  "-o", self.place / "restored")
        return self.place / "restored"


class Rsync(Trial):
    """Files copied between pg_backup_start() and pg_backup_stop(), as many tools do."""

    tool = "rsync between pg_backup_start() and pg_backup_stop()"
    done = "full copy, then again onto it (what has changed), WAL by `restore_command`"
    caveat = ("leave out `pg_doublewrite/*` and `backup_label` of the running server; the label is "
              "the one that `pg_backup_stop()` returns")
    packages = ("rsync",)
    LEFT_OUT = ("/backup_label", "/pg_doublewrite/*", "/pg_wal/*", "/postmaster.*")

    def version(self) -> str:
        return self.version_of("rsync")

    def full(self) -> None:
        copy = self.place / "restored"
        leave_out = " ".join(f"'--exclude={name}'" for name in self.LEFT_OUT)
        # 24: files have vanished meanwhile, as those of tables do.
        self.server.sql(f"""
SELECT pg_backup_start('rsync', fast => true);
\\! rsync -a --checksum --delete {leave_out} {self.server.data}/ {copy}/ || test $? = 24
\\if :SHELL_ERROR
	DO 'BEGIN RAISE $$rsync failed$$; END';
\\endif
\\o {copy}/backup_label
SELECT labelfile FROM pg_backup_stop(wait_for_archive => false);""")
        with as_user():
            (copy / "recovery.signal").touch()

    incremental = full

    def restore(self) -> Path:
        copy = self.cluster("restored")
        copy.configure({"restore_command": f"cp {self.server.data}/pg_wal/%f %p"})
        return copy.data


class Barman(Trial):
    """Barman with WAL by streaming, from the Python package index."""

    tool = "Barman"
    done = ("`backup_method = postgres`, WAL by `receive-wal` with a slot; full and incremental "
            "backup, `restore`")
    caveat = "none seen"
    packages = ("python3-psycopg2", "python3-venv", "rsync")
    REQUIREMENT = "barman>=3.14,<4"
    METHOD = "postgres"
    INCREMENTAL: tuple[str, ...] = ("--incremental", "last-full")

    def version(self) -> str:
        return self.version_of(self.program)

    def prepare(self) -> None:
        self.program = deps.from_pip(self.paths, "barman-venv", self.REQUIREMENT,
                                     "--system-site-packages") / "barman"
        home = self.home("barman")
        self.config = home / "barman.conf"
        where = f"host={self.sign(self.server)} user={postgres.SUPERUSER}"
        user = {"barman_user": server_user().pw_name} if server_user() else {}
        self.write_config(self.config, {
            "barman": {"barman_home": home, "barman_lock_directory": home,
                       "log_file": home / "log", **user},
            "main": {"description": "main", "path_prefix": self.bindir,
                     "conninfo": f"{where} dbname=postgres", "streaming_conninfo": where,
                     "backup_method": self.METHOD, "streaming_archiver": "on",
                     "slot_name": "barman", "create_slot": "auto",
                     "immediate_checkpoint": "true",
                     "local_staging_path": self.home("barman/staging")}})
        self._follow()

    def _follow(self):
        """Have WAL received from now on."""
        self._barman("receive-wal", "--create-slot", "main", check=False)
        self.receiver = self.spawn(self.program, "-c", self.config, "receive-wal", "main")
        # Else the switch may come before the first byte that is received.
        until_none(lambda: self.server.sql("SELECT count(*) FROM pg_stat_replication"
                                           " WHERE state = 'streaming'") == "0",
                   "barman receive-wal does not receive WAL")
        self._barman("switch-wal", "--force", "--archive", "main")

    def _barman(self, *command, check=True):
        self.call(self.program, "-c", self.config, *command, check=check)

    def full(self) -> None:
        self._barman("backup", "--wait", "main")

    def crash(self) -> None:
        # The slot keeps what it has not got yet; its own client ends with the server.
        super().crash()
        self.receiver.wait(postgres.END_SECONDS)
        self._follow()

    def incremental(self) -> None:
        self._barman("backup", "--wait", *self.INCREMENTAL, "main")

    def restore(self) -> Path:
        target = self.home("restored")
        self._barman("recover", "main", "latest", target)
        return target


class BarmanRsync(Barman):
    """Barman that copies the files itself."""

    tool = "Barman with rsync"
    done = ("`backup_method = local-rsync`, WAL by `receive-wal` with a slot; full backup, another "
            "with `reuse_backup = link`, `restore`")
    caveat = ("Barman cannot leave `pg_doublewrite/` out; what it copies of the log is discarded "
              "when the backup is started, by the label")
    METHOD = "local-rsync"
    INCREMENTAL = ("--reuse-backup=link",)


class PgBackRest(Trial):
    """pgBackRest of a newer Debian, run with that one's libraries."""

    tool = "pgBackRest"
    done = ("full and incremental backup in blocks, WAL by `archive-push`; full restore, `restore "
            "--delta` onto it")
    caveat = "`exclude=pg_doublewrite/` spares copying the log"

    def version(self) -> str:
        return self.version_of(self.program, "version")

    def prepare(self) -> None:
        root = self.paths.root / "pgbackrest"
        if not root.exists():
            say("unpacking pgBackRest with what it needs")
            apt.unpack(root, "pgbackrest")
        libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
        home = self.home("pgbackrest")
        self.program, self.config = home / "pgbackrest", home / "conf"
        # It calls itself, and the server calls it, so it has to be a program.
        self.program.write_text(
            f"#!/bin/sh\nexport PGBACKREST_CONFIG={self.config} PGBACKREST_STANZA=main\n"
            f"exec {next(libraries.glob('ld-linux*'))} --library-path {libraries} "
            f"--argv0 {self.program} {root}/usr/bin/pgbackrest \"$@\"\n")
        self.program.chmod(0o755)
        self.restored = self.home("restored")
        self.server.stop()
        self.server.configure({"archive_mode": "on",
                               "archive_command": f"{self.program} archive-push %p"})
        self.server.start()
        self.describe()
        self._call("stanza-create")

    def describe(self, **settings: Any) -> None:
        """Write the configuration, with what it says of servers."""
        home = self.config.parent
        self.write_config(self.config, {
            "global": {
                "repo1-path": home / "repo", "repo1-bundle": "y", "repo1-block": "y",
                "repo1-retention-full": 2, "log-path": home, "lock-path": home,
                "spool-path": home, "start-fast": "y", "cmd": self.program,
                "exclude": "pg_doublewrite/", "process-max": 2,
                # It takes segments to have 1 GB, so in those of the test build it finds
                # checksums wrong that are right.
                "checksum-page": "n"},
            "main": {**self.described(1, self.server, "server"), **settings}})

    def described(self, number: int, server: Server, name: str) -> dict:
        """Return the settings that say where a server is."""
        return {f"pg{number}-path": server.data, f"pg{number}-port": PORT,
                f"pg{number}-user": postgres.SUPERUSER,
                f"pg{number}-socket-path": self.sign(server, name)}

    def _call(self, *command):
        self.call(self.program, *command)

    def full(self) -> None:
        self._call("backup", "--type=full")
        self._call("restore", f"--pg1-path={self.restored}")

    def incremental(self) -> None:
        self._call("backup", "--type=incr")

    def restore(self, *options: str) -> Path:
        self._call("restore", "--delta", *options, f"--pg1-path={self.restored}")
        return self.restored


class PgBackRestDatabase(PgBackRest):
    """pgBackRest that restores one of two databases."""

    tool = "pgBackRest, one database"
    done = ("`restore --delta --db-include` of one database of two, both changed after the backup; "
            "the other dropped from what is restored")
    caveat = "the server log says once that the other database has empty files: drop it"
    OTHER = "left_out"

    def fill(self) -> None:
        super().fill()
        self.server.sql(f"CREATE DATABASE {self.OTHER}", database="postgres")
        self.server.sql("CREATE TABLE t AS SELECT i, 0 AS v FROM generate_series(1, 5000) i",
                        database=self.OTHER)

    def incremental(self) -> None:
        super().incremental()
        self.server.sql("UPDATE t SET v = v + 1", database=self.OTHER)

    def restore(self, *options: str) -> Path:
        return super().restore(f"--db-include={DATABASE}", *options)

    def count(self, server: Server, expected: set[int]) -> None:
        super().count(server, expected)
        if server is not self.server:
            if "has empty files" not in server.log_text():
                raise ServerError("nothing was passed over: the trial shows nothing")
            server.sql(f"DROP DATABASE {self.OTHER}", database="postgres")


class PgBackRestStandby(PgBackRest):
    """pgBackRest that copies relation files from a standby."""

    tool = "pgBackRest from a standby"
    done = ("`backup-standby=y`: full and incremental backup with relation files of a standby in "
            "`double_writes`; primary and standby killed and torn, one after the other")
    caveat = "as above"

    def prepare(self) -> None:
        super().prepare()
        self.standby = self.cluster("standby")
        self.call(self.bindir / "pg_basebackup", "--host", self.place / "server", "-c", "fast",
                  "--write-recovery-conf", "-D", self.standby.data)
        self.standby.start()
        self.describe(**self.described(2, self.standby, "standby-server"),
                      **{"backup-standby": "y"})

    def crash(self) -> None:
        super().crash()
        self.crash_one(self.standby)

    def restore(self, *options: str) -> Path:
        self.standby.stop()
        self.examine_files(self.standby)
        return super().restore(*options)


class Snapshot(Trial):
    """A copy of the block device of one moment."""

    tool = "file-system snapshot"
    done = ("ext4 frozen under load (`fsfreeze`), its image copied, mounted and started; pages of "
            "the log torn in the copy")
    caveat = ("data, WAL and log must be in one snapshot; with the log on another volume, nothing "
              "is guaranteed: the server refuses a log that is newer than WAL or has other redo "
              "pointers, but cannot tell one that is older than the data, with no checkpoint between")
    packages = ("e2fsprogs", "mount", "util-linux")
    IMAGE_MB = 1536

    def data_directory(self) -> Path:
        self.mounted: list[Path] = []
        image = self.place / "image"
        with open(image, "wb") as opened:
            opened.truncate(self.IMAGE_MB << 20)
        run(["mkfs.ext4", "-q", image])
        return self._mount(image) / "primary"

    def _mount(self, image):
        place = self.place / f"{image.name}-mounted"
        place.mkdir()
        run(["mount", "-o", "loop", image, place])
        self.mounted.append(place)
        own(place)
        return place

    def version(self) -> str:
        return "-"

    def incremental(self) -> None:
        place = self.mounted[0]
        run(["fsfreeze", "--freeze", place])
        try:
            run(["cp", "--sparse=always", self.place / "image", self.place / "copy"])
        finally:
            run(["fsfreeze", "--unfreeze", place])

    def restore(self) -> Path:
        data = self._mount(self.place / "copy") / "primary"
        # Of the server that was frozen.
        (data / "postmaster.pid").unlink()
        return data

    def tear_what_was_read(self, data: Path) -> None:
        self.torn["read"] = self.tear_what_was_copied(data)

    def dispose(self) -> None:
        super().dispose()
        for place in self.mounted:
            run(["umount", place], check=False)
