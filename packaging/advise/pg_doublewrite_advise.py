#!/usr/bin/env python3
"""What would double writes save on this server?

Watches an unmodified PostgreSQL 16 to 18 for a while and says on one page what its WAL
is made of, and what would become of it without page images.  Nothing is installed and
nothing is written there: the session is read-only, and WAL is read with the server's own
pg_waldump, or with pg_walinspect if the database has it already.  Where neither can be had,
the counters of pg_stat_wal must do.

Needs Python 3.9, psql, and a role with pg_monitor.  The plots of --html need matplotlib.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import ctypes.util
import glob
import html
import io
import json
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORMAT = 1
MIN_VERSION, MAX_VERSION = 16, 18

MB, GB, DAY = 1 << 20, 1 << 30, 86400

# Share of one core that watching may take, over the whole time: less than the 1 %
# that we promise, as what a step costs is known only afterwards.
BUDGET = 0.006

# Until a slice has been read, what reading is taken to cost.
SECONDS_PER_BYTE = 12e-9
LEAST_SLICE, MOST_SLICE = 256 << 10, 256 * MB

# Often enough to see how images follow a checkpoint; a slice costs two processes.
SLICES = 24

# Pages whose images are compressed to see what that would do.
COMPRESSED_PAGES = 200

# Each WAL page has a header; the first one of a segment has a longer one, which
# is too rare to count.
WAL_PAGE, WAL_PAGE_HEADER = 8192, 24

# A record is padded to eight bytes: more than this on average is the rest of segments
# that were switched before they were full.
MOST_PADDING = 7

# What the header of a block has more if there is an image of it.
IMAGE_HEADER = 5

# Records with images that are data: they stay, as redo has nothing else.  So are those
# of extensions that write generic records.
KEPT = ("XLOG/FPI", "Gin/SPLIT", "Gin/VACUUM_PAGE", "Hash/SPLIT_PAGE")

HINT = "XLOG/FPI_FOR_HINT"

# Of this share of the WAL there is no need to ask the server's counters, which are late by
# some seconds, how much of each kind there was.
NEARLY_ALL = 0.9

# Fewer records without an image than this say little of how long such records are.
ENOUGH_PLAIN = 20

# Of counters alone: how far the number of images must go up and down against that of records,
# from 0 (never) to 1, before it can be told how much of the bytes is theirs.
ENOUGH_COURSE = 0.02

# Neighbours that redo reads, or a checkpoint writes, in one request: 5,800 requests
# for 19,700 pages of pgbench (`./dev bench restart`, tpcb-like).
REQUESTS_PER_PAGE = 0.3

# Pages that share one batch of the log, and so one sync.
BATCH_PAGES = 248

# What a batch costs in requests: it is written, and the device is flushed.
REQUESTS_PER_BATCH = 2

# Instant recovery: what reading a record once costs, and what is read for the first query after
# it, catalogs mostly (docs/instant-restart.md).
ANALYSIS_SECONDS, FIRST_REQUESTS = 0.14e-6, 600

# Prices are those of a month of so many days.
MONTH = 30

LEVELS = {"lz4": "liblz4", "zstd": "libzstd"}


class AdviseError(Exception):
    """Something that the user can do something about."""


# Asking the server ------------------------------------------------------------


class Session:
    """One psql, asked for one JSON value at a time."""

    END = "pg_doublewrite_advise: end of the answer"

    def __init__(self, arguments: Any) -> None:
        options = "-c default_transaction_read_only=on -c statement_timeout=60s"
        given = os.environ.get("PGOPTIONS", "")
        try:
            self.process = subprocess.Popen(
                ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *arguments], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**os.environ, "PGAPPNAME": "pg_doublewrite_advise",
                     "PGOPTIONS": f"{given} {options}".strip()})
        except FileNotFoundError as exc:
            raise AdviseError("there is no psql in PATH") from exc
        self.ask("SELECT 1")

    def ask(self, query: str) -> Any:
        """Return the value that a query gives as JSON."""
        lines = []
        try:
            self.process.stdin.write(f"{query};\n\\echo {self.END}\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.rstrip("\n") == self.END:
                    text = "".join(lines).strip()
                    return json.loads(text) if text else None
                lines.append(line)
        except BrokenPipeError:
            pass
        raise AdviseError(f"psql: {self.process.stderr.read().strip()}")

    def close(self) -> None:
        """End the session, so that what psql has used is counted."""
        self.process.stdin.close()
        self.process.wait()


SETTINGS = ("full_page_writes", "wal_compression", "wal_level", "wal_log_hints", "data_checksums",
            "archive_mode", "archive_timeout", "checkpoint_timeout", "max_wal_size",
            "checkpoint_completion_target", "shared_buffers", "block_size", "wal_segment_size",
            "io_torn_pages_protection")

SERVER = """
SELECT json_build_object(
	'version', current_setting('server_version'),
	'number', current_setting('server_version_num')::int,
	'standby', pg_is_in_recovery(),
	'physical_standbys', (SELECT count(*) FROM pg_stat_replication r WHERE NOT EXISTS (
		SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')),
	'database_bytes', (SELECT sum(pg_database_size(oid)) FROM pg_database
		WHERE has_database_privilege(oid, 'CONNECT')),
	'walinspect', EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_walinspect'),
	'backend', pg_backend_pid(),
	'settings', (SELECT json_object_agg(name, json_build_object('value', setting, 'unit', unit))
		FROM pg_settings WHERE name = ANY ('{""" + ",".join(SETTINGS) + "}')))"

PLACE = "SELECT to_json(current_setting('data_directory'))"

# What the statistics of checkpoints, and of pages written, are called by version.
CHECKPOINTS = {
    16: "SELECT checkpoints_timed AS timed, checkpoints_req AS requested,"
        " extract(epoch FROM stats_reset) AS since FROM pg_stat_bgwriter",
    17: "SELECT num_timed AS timed, num_requested AS requested,"
        " extract(epoch FROM stats_reset) AS since FROM pg_stat_checkpointer"}
CHECKPOINTS[18] = CHECKPOINTS[17]
WRITTEN = {16: ("writes", "extends"), 17: ("writes", "extends"),
           18: ("write_bytes / current_setting('block_size')::int",
                "extend_bytes / current_setting('block_size')::int")}

SNAPSHOT = """
SELECT json_build_object(
	'time', extract(epoch FROM clock_timestamp()),
	'lsn', (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
		ELSE pg_current_wal_insert_lsn() END) - '0/0'::pg_lsn,
	'timeline', (SELECT timeline_id FROM pg_control_checkpoint()),
	'wal', (SELECT row_to_json(w) FROM (SELECT wal_records AS records, wal_fpi AS images,
		wal_bytes AS bytes, extract(epoch FROM stats_reset) AS since FROM pg_stat_wal) w),
	'checkpoints', (SELECT row_to_json(c) FROM ({checkpoints}) c),
	'pages', (SELECT json_build_object(
		'written', sum({writes}) FILTER (WHERE context <> 'bulkwrite'),
		'bulk', sum({writes}) FILTER (WHERE context = 'bulkwrite'),
		'extended', sum({extends}) FILTER (WHERE context <> 'bulkwrite'))
		FROM pg_stat_io WHERE object = 'relation'))"""

FLUSHED = """
SELECT json_build_object('lsn', (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
	ELSE pg_current_wal_flush_lsn() END) - '0/0'::pg_lsn,
	'time', extract(epoch FROM clock_timestamp()))"""

COUNTED = """
SELECT json_build_object('time', extract(epoch FROM clock_timestamp()),
	'lsn', pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
	'records', wal_records, 'images', wal_fpi, 'bytes', wal_bytes) FROM pg_stat_wal"""

# The same figures as pg_waldump's.
INSPECT = """
SELECT coalesce(json_object_agg(type, figures), '{{}}') FROM (
	SELECT resource_manager || '/' || record_type AS type, json_build_array(
		count(*) FILTER (WHERE fpi_length = 0),
		coalesce(sum(record_length) FILTER (WHERE fpi_length = 0), 0),
		count(*) FILTER (WHERE fpi_length > 0),
		coalesce(sum(record_length - fpi_length) FILTER (WHERE fpi_length > 0), 0),
		sum(fpi_length)) AS figures
	FROM pg_get_wal_records_info('{0}', '{1}') GROUP BY 1) r"""
INSPECT_PAGES = """
SELECT coalesce(json_agg(translate(encode(block_fpi_data, 'base64'), E'\\n', '')), '[]') FROM (
	SELECT block_fpi_data FROM pg_get_wal_block_info('{0}', '{1}')
	WHERE block_fpi_data IS NOT NULL LIMIT {2}) p"""


def lsn_text(number: int | None) -> str:
    """Return an LSN as PostgreSQL writes it."""
    number = int(number)
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return an LSN as a number of bytes."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


# Reading WAL ------------------------------------------------------------------


class Waldump:
    """Reads WAL with pg_waldump, from files that we may read."""

    name = "pg_waldump"

    def __init__(self, program: str, directory: str) -> None:
        self.program, self.directory = program, directory

    def records(self, begin: int, end: int, timeline: int) -> tuple:
        """Return ({type: figures}, bytes of WAL) of a range; see `decode_stats`."""
        every, span = self._stats(begin, end, timeline)
        with_image, _ = self._stats(begin, end, timeline, "--fullpage")
        figures = {}
        for kind, (count, length, image) in every.items():
            some = with_image.get(kind, (0, 0, 0))
            figures[kind] = [count - some[0], length - some[1], some[0], some[1], image]
        return figures, span

    def pages(self, begin: int, end: int, timeline: int, number: int | None) -> list[bytes]:
        """Return some pages of which WAL has images."""
        with tempfile.TemporaryDirectory(prefix="pg_doublewrite_advise-") as scratch:
            place = os.path.join(scratch, "pages")
            self._run(begin, end, timeline, "--fullpage", f"--save-fullpage={place}",
                      f"--limit={number}", "--quiet")
            found = []
            for name in sorted(glob.glob(os.path.join(place, "*"))):
                with open(name, "rb") as page:
                    found.append(page.read())
            return found

    def _stats(self, begin, end, timeline, *options):
        return decode_stats(self._run(begin, end, timeline, "--stats=record", *options))

    def _run(self, begin, end, timeline, *options):
        """Run it; that WAL ends within a record is no error, as its end moves."""
        done = subprocess.run(
            [self.program, f"--path={self.directory}", f"--timeline={timeline}",
             f"--start={lsn_text(begin)}", f"--end={lsn_text(end)}", *options],
            capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        if done.returncode and "error in WAL record" not in done.stderr:
            raise AdviseError(done.stderr.strip() or f"{self.program} failed")
        return done.stdout


class Walinspect:
    """Reads WAL with the functions of pg_walinspect."""

    name = "pg_walinspect"

    def __init__(self, session: Session) -> None:
        self.session = session

    def records(self, begin: int, end: int, timeline: int) -> tuple:
        """Return ({type: figures}, bytes of WAL) of a range."""
        query = INSPECT.format(lsn_text(begin), lsn_text(end))
        return self.session.ask(query), int(end - begin)

    def pages(self, begin: int, end: int, timeline: int, number: int | None) -> list[bytes]:
        """Return some pages of which WAL has images."""
        end = min(end, begin + 4 * MB)
        query = INSPECT_PAGES.format(lsn_text(begin), lsn_text(end), number)
        return [base64.b64decode(one) for one in self.session.ask(query)]


class Counters:
    """Reads no WAL, as it cannot be had."""

    name = "pg_stat_wal"

    def __init__(self, why: str) -> None:
        self.why = why


def decode_stats(text: str) -> tuple[dict[str, tuple[int, int, int]], int]:
    """Return ({type: (records, bytes without images, bytes of images)}, bytes of WAL)."""
    span = re.search(r"^WAL statistics between (\S+) and (\S+):$", text, re.MULTILINE)
    if not span:
        return {}, 0
    rows = re.findall(r"^(\w+/.*?)\s+(\d+) \([^)]*\)\s+(\d+) \([^)]*\)\s+(\d+) \(",
                      text, re.MULTILINE)
    return ({kind: (int(count), int(length), int(image)) for kind, count, length, image in rows},
            lsn_number(span[2]) - lsn_number(span[1]))


def find_reader(session: Session, server: Mapping[str, Any], given_directory: str | None,
                given_bindir: str | None) -> Counters | Walinspect | Waldump:
    """Return what reads the server's WAL."""
    major = server["number"] // 10000
    directory = given_directory
    if directory is None:
        place = session.ask(PLACE)
        directory = os.path.join(place, "pg_wal")
    program = find_waldump(major, given_bindir)
    reason = f"there is no pg_waldump of PostgreSQL {major} (--bindir)"
    if program:
        if glob.glob(os.path.join(directory, "0000*")):
            return Waldump(program, directory)
        reason = (f"the WAL in {directory} cannot be read from here (run as the server's user, "
                  "or name a directory where its WAL arrives, such as that of pg_receivewal, "
                  "with --wal-directory)")
    if server["walinspect"]:
        return Walinspect(session)
    database = session.ask("SELECT to_json(current_database())")
    reason += f', and database "{database}" does not have pg_walinspect'
    if server["standby"]:       # what it replays is not counted
        raise AdviseError(reason)
    return Counters(reason)


def find_waldump(major: int, given: str | None) -> str | None:
    """Return a pg_waldump of a major version, None if there is none."""
    places = [given] if given else [
        *os.environ.get("PATH", "").split(os.pathsep), f"/usr/lib/postgresql/{major}/bin",
        f"/usr/pgsql-{major}/bin", "/usr/local/pgsql/bin"]
    for place in places:
        program = os.path.join(place, "pg_waldump")
        if os.access(program, os.X_OK):
            said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"\b{major}(\.|\D|$)", said):
                return program
    return None


# Compression ------------------------------------------------------------------


def without_hole(page: bytes) -> bytes:
    """Return what an image of a page keeps: all but the free space in the middle."""
    lower, upper = struct.unpack_from("<HH", page, 12)
    if 24 <= lower < upper <= len(page):
        return page[:lower] + page[upper:]
    return page


def compressors() -> dict[str, Callable[..., Any]]:
    """Return {method: function of bytes} of the libraries here, called as the server does."""
    found = {}
    lz4, zstd = (ctypes.util.find_library(name) for name in LEVELS)
    if lz4:
        call = ctypes.CDLL(lz4).LZ4_compress_default

        def with_lz4(data):
            room = ctypes.create_string_buffer(2 * WAL_PAGE)
            return call(data, room, len(data), len(room))
        found["lz4"] = with_lz4
    if zstd:
        library = ctypes.CDLL(zstd)
        library.ZSTD_compress.restype = ctypes.c_size_t

        def with_zstd(data):
            room = ctypes.create_string_buffer(2 * WAL_PAGE)
            return library.ZSTD_compress(room, ctypes.c_size_t(len(room)), data,
                                         ctypes.c_size_t(len(data)), 3)
        found["zstd"] = with_zstd
    return found


def compress(pages: Sequence[bytes],
             methods: Mapping[str, Callable[..., Any]]) -> dict[str, int]:
    """Return the bytes of images of pages: as they are, and by method."""
    bodies = [without_hole(page) for page in pages]
    sums = {"pages": len(pages), "off": sum(map(len, bodies))}
    for name, method in methods.items():
        # What does not become shorter is left as it is.
        sums[name] = sum(min(len(body), method(body) or len(body)) for body in bodies)
    return sums


# Watching ---------------------------------------------------------------------


def used_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2])
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Watch:
    """Watches the server for a while, within the budget."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.session = Session(psql_arguments(arguments))
        self.server = self.session.ask(SERVER)
        major = self.server["number"] // 10000
        if not MIN_VERSION <= major <= MAX_VERSION:
            raise AdviseError(f"this is PostgreSQL {self.server['version']}; the statistics of "
                              f"{MIN_VERSION} to {MAX_VERSION} are known")
        self.reader = find_reader(self.session, self.server, arguments.wal_directory,
                                  arguments.bindir)
        writes, extends = WRITTEN[major]
        self.query = SNAPSHOT.format(checkpoints=CHECKPOINTS[major], writes=writes,
                                     extends=extends)
        self.records, self.slices, self.counts = {}, [], []
        self.compression = {"pages": 0, "off": 0}
        self.methods = compressors()
        self.slice_cost, self.slice_bytes, self.misses = 0.0, 0, 0

    def sample(self) -> dict:
        """Return the sample."""
        first = self.session.ask(self.query)
        started, spent = time.monotonic(), used_seconds()
        pause = max(self.arguments.seconds / SLICES, 1)
        self.done_to, self.timeline = int(first["lsn"]), first["timeline"]
        try:
            while time.monotonic() < started + self.arguments.seconds:
                time.sleep(max(0, min(pause, started + self.arguments.seconds - time.monotonic())))
                if isinstance(self.reader, Counters):
                    self.counts.append(self.session.ask(COUNTED))
                else:
                    self._slice(BUDGET * (time.monotonic() - started) - (used_seconds() - spent))
        except KeyboardInterrupt:
            print("interrupted: what has been seen so far counts", file=sys.stderr)
        last = self.session.ask(self.query)
        self.session.close()
        if isinstance(self.reader, Counters):
            self.records, self.slices = from_counters(self.counts)
        seconds = time.monotonic() - started
        return {"format": FORMAT, "server": self.server, "reader": self.reader.name,
                "why": getattr(self.reader, "why", None),
                "taken": time.strftime("%Y-%m-%d %H:%M:%S %z"), "seconds": round(seconds, 1),
                "cpu_share": round((used_seconds() - spent) / seconds, 5),
                "first": first, "last": last, "records": self.records, "slices": self.slices,
                "compression": self.compression, "misses": self.misses}

    def _slice(self, allowance):
        """Read the newest WAL, as much of it as there is CPU time for."""
        now = self.session.ask(FLUSHED)
        end = int(now["lsn"])
        cost = (self.slice_cost / self.slice_bytes if self.slice_bytes else SECONDS_PER_BYTE)
        size = min(allowance / cost, MOST_SLICE)
        if size < LEAST_SLICE or end <= self.done_to:
            return
        begin = max(self.done_to, end - int(size))
        before = used_seconds()
        waited = time.monotonic()
        try:
            figures, span = self.reader.records(begin, end, self.timeline)
        except AdviseError as exc:
            # The segment may be gone, or not be there yet; but not each time.
            self.misses += 1
            if self.misses > 5 and not self.slices:
                raise AdviseError(f"WAL cannot be read: {exc}") from exc
            return
        if not span:
            return
        self.done_to = end
        self._compress(begin, end)
        for kind, numbers in figures.items():
            kept = self.records.setdefault(kind, [0] * 5)
            self.records[kind] = [one + other for one, other in zip(kept, numbers)]
        self.slices.append({"time": now["time"], "bytes": span, **sums_of(figures)})
        # What the server did for us is not in our own times; it took no longer than we waited.
        self.slice_cost += (time.monotonic() - waited if self.reader.name == "pg_walinspect"
                            else used_seconds() - before)
        self.slice_bytes += span

    def _compress(self, begin, end):
        """Compress some images: a quarter of what is wanted from each of four slices."""
        if self.compression["pages"] >= COMPRESSED_PAGES or not self.methods:
            return
        if len(self.slices) % (SLICES // 4):
            return
        pages = self.reader.pages(begin, end, self.timeline, COMPRESSED_PAGES // 4)
        for name, size in compress(pages, self.methods).items():
            self.compression[name] = self.compression.get(name, 0) + size


def sums_of(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over types of records."""
    plain, plain_bytes, with_image, image_record_bytes, image_bytes = (
        map(sum, zip(*records.values())) if records else [0] * 5)
    return {"plain": plain, "plain_bytes": plain_bytes, "with_image": with_image,
            "image_record_bytes": image_record_bytes, "image_bytes": image_bytes}


def from_counters(counts: Sequence[dict[str, int]]) -> tuple[dict[str, list], list[dict]]:
    """Return records and slices that would have made what was counted again and again.

    An image is taken to come with a record of its own.
    """
    steps = [{name: float(later[name]) - float(earlier[name]) for name in earlier}
             for earlier, later in zip(counts, counts[1:])]
    record, image = lengths(steps)
    slices = []
    for step, later in zip(steps, counts[1:]):
        plain = max(step["records"] - step["images"], 0)
        slices.append({"time": later["time"], "bytes": step["lsn"], "plain": plain,
                       "plain_bytes": record * plain, "with_image": step["images"],
                       "image_record_bytes": record * step["images"],
                       "image_bytes": image * step["images"]})
    figures = ("plain", "plain_bytes", "with_image", "image_record_bytes", "image_bytes")
    return {"all": [sum(one[name] for one in slices) for name in figures]}, slices


def lengths(steps: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Return what a record, and an image in it, have added to WAL: the best fit to all steps.

    Images are many after a checkpoint and few before the next, records are not.
    """
    def product(one, other):
        return sum(step[one] * step[other] for step in steps)

    records, images, both = (product(*pair) for pair in (
        ("records", "records"), ("images", "images"), ("records", "images")))
    if not records:
        raise AdviseError("no WAL was written while we watched; watch at another time")
    if not images:
        return product("records", "bytes") / records, 0.0
    spread = records * images - both * both
    if spread > ENOUGH_COURSE * records * images:
        by_record, by_image = product("records", "bytes"), product("images", "bytes")
        record = (by_record * images - by_image * both) / spread
        image = (by_image * records - by_record * both) / spread
        if record > 0 and 0 < image <= WAL_PAGE:
            return record, image
    raise AdviseError("WAL cannot be read, and its counters do not tell what images are of it; "
                      "watch for several times checkpoint_timeout")


def psql_arguments(arguments: Any) -> list[str]:
    """Return the options of psql that say where to connect."""
    pairs = (("-h", arguments.host), ("-p", arguments.port), ("-U", arguments.username))
    given = [part for option, value in pairs if value for part in (option, value)]
    return ["-w", *given, "-d", arguments.dbname]


# What it means ----------------------------------------------------------------


def is_kept(kind: str) -> bool:
    """Say whether images in this type of record stay."""
    return kind in KEPT or kind.startswith("Generic/")


def length_without(numbers: Sequence[float]) -> float:
    """Return the bytes that records with images would have without them.

    An image takes the place of the data for its block.  How long that is, records of
    the same type that have no image show.
    """
    plain, plain_bytes, with_image, record_bytes, _ = numbers
    if plain >= ENOUGH_PLAIN:
        return with_image * plain_bytes / plain
    return record_bytes - IMAGE_HEADER * with_image


def strata(records: Mapping[str, list[int]], counters: Mapping[str, float]) -> tuple[float, float]:
    """Return by how much to multiply records without and with images, to get what was written.

    Slices are not all of the WAL, and may have met more or fewer images.  The server
    has counted records and bytes: two equations.
    """
    sums = sums_of(records)
    image_total = sums["image_record_bytes"] + sums["image_bytes"]
    determinant = sums["plain"] * image_total - sums["with_image"] * sums["plain_bytes"]
    if determinant and counters["bytes"] > 0:
        plain = (counters["records"] * image_total
                 - sums["with_image"] * counters["bytes"]) / determinant
        images = (sums["plain"] * counters["bytes"]
                  - counters["records"] * sums["plain_bytes"]) / determinant
        if plain > 0 and images > 0:
            return plain, images
    return 1.0, 1.0


def difference(sample: dict, group: str) -> dict[str, float]:
    """Return what the counters of a group have risen by while we watched."""
    first, last = sample["first"][group], sample["last"][group]
    return {name: float(last[name] or 0) - float(first[name] or 0) for name in last}


def setting(sample: dict, name: str, default: int | None = None) -> Any:
    """Return a setting, in bytes or seconds if it has a unit."""
    found = sample["server"]["settings"].get(name)
    if found is None:
        return default
    units = {"8kB": 8192, "kB": 1024, "MB": MB, "B": 1, "ms": 0.001, "s": 1, "min": 60}
    if found["unit"] in units:
        return float(found["value"]) * units[found["unit"]]
    return found["value"]


def analyse(sample: dict, iops: int, mbps: int,
            prices: Mapping[str, float] | None = None) -> dict:
    """Return all that the page says, as a dictionary; `prices` as `prices_of` returns them."""
    records = sample["records"]
    if not sample["slices"]:
        raise AdviseError("no WAL was written, or could be read, while we watched; "
                          "watch for longer, or at another time")
    seconds = sample["last"]["time"] - sample["first"]["time"]
    written = float(sample["last"]["lsn"]) - float(sample["first"]["lsn"])
    read = sum(one["bytes"] for one in sample["slices"])
    by_plain, by_image = 1.0, 1.0
    if read < NEARLY_ALL * written:
        by_plain, by_image = strata(records, difference(sample, "wal"))
    parts = {"records": 0.0, "displaced": 0.0, "kept": 0.0, "images": 0.0, "count": 0.0,
             "with_image": 0.0}
    kinds = {}
    for kind, numbers in records.items():
        plain, plain_bytes, with_image, record_bytes, image_bytes = numbers
        now = by_plain * plain_bytes + by_image * record_bytes
        parts["records"] += now
        parts["count"] += by_plain * plain + by_image * with_image
        kinds[kind] = {"records": now, "images": by_image * image_bytes, "kept": is_kept(kind)}
        if is_kept(kind):
            parts["kept"] += by_image * image_bytes
        else:
            parts["images"] += by_image * image_bytes
            parts["with_image"] += by_image * with_image
            parts["displaced"] += by_image * (length_without(numbers) - record_bytes)
    # Padding of records, headers of pages, and what is left empty of segments.
    body = read * (WAL_PAGE - WAL_PAGE_HEADER) / WAL_PAGE
    sums = sums_of(records)
    lengths = sums["plain_bytes"] + sums["image_record_bytes"] + sums["image_bytes"]
    count = sums["plain"] + sums["with_image"]
    padding = min(max((body - lengths) / max(count, 1), 0), MOST_PADDING) * parts["count"]
    total = parts["records"] + parts["kept"] + parts["images"] + padding
    scale = written * (WAL_PAGE - WAL_PAGE_HEADER) / WAL_PAGE / total
    switched = max(body - lengths - MOST_PADDING * count, 0) > 0.02 * body
    if switched:
        scale = 1.0

    def on_disk(length):
        return length * scale * WAL_PAGE / (WAL_PAGE - WAL_PAGE_HEADER)

    after = on_disk(total - parts["images"] + parts["displaced"])
    now = on_disk(total)
    counters = difference(sample, "wal")
    result = {
        "seconds": seconds, "wal_bytes": now, "wal_bytes_after": after,
        "image_share": on_disk(parts["images"]) / now, "kept_share": on_disk(parts["kept"]) / now,
        "images": counters["images"] or parts["with_image"], "records": parts["count"] * scale,
        "read_share": min(1.0, read / written) if written else 0,
        "day": {"now": now * DAY / seconds, "double_writes": after * DAY / seconds},
        "switched": switched,
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1]["images"]
                             - item[1]["records"])[:8]),
    }
    result["compression"] = compression(sample, now, on_disk(parts["images"]), seconds)
    result["history"] = history(sample, result)
    result["log"] = log_writes(sample, seconds, on_disk(parts["images"]) / now, result["images"])
    result["recovery"] = recovery(sample, result, seconds, iops, mbps)
    result["money"] = money(sample, result, prices) if prices else None
    result["verdict"], result["reasons"] = verdict(sample, result)
    return result


def compression(sample: dict, now: float, images: bool, seconds: float) -> dict[str, float]:
    """Return {method: WAL a day with it} of wal_compression; empty if that cannot be said."""
    measured, current = sample["compression"], setting(sample, "wal_compression")
    current = {"on": "pglz"}.get(current, current)
    if not measured["pages"] or current not in measured or not images:
        return {}
    return {method: (now - images + images * measured[method] / measured[current]) * DAY / seconds
            for method in measured if method not in ("pages", "off")}


def history(sample: dict, result: dict) -> dict[str, float] | None:
    """Return what the server's counters say of the time before, None if they say little."""
    counters = sample["last"]["wal"]
    since = float(counters["since"] or 0)
    seconds = sample["last"]["time"] - since
    if not counters["bytes"] or seconds < 10 * result["seconds"] or not result["images"]:
        return None
    saved = (result["wal_bytes"] - result["wal_bytes_after"]) / result["images"]
    wal = float(counters["bytes"])
    after = max(wal - float(counters["images"]) * saved, wal * 0.02)
    return {"since": since, "now": wal * DAY / seconds, "double_writes": after * DAY / seconds}


def log_writes(sample: dict, seconds: float, share: float, images: bool) -> dict[str, list[float]]:
    """Return between what the copies of a day, their bytes and syncs, are.

    A page is copied when it is written back, unless it is new or the log has a copy
    from the same epoch.  So at most once for each write; and about as often as it has an
    image now, if it is written back between two checkpoints.
    """
    pages = difference(sample, "pages")
    most = pages["written"]
    least = min(max(most - pages["extended"], 0), images if share else most)
    per_day = DAY / seconds
    page = int(setting(sample, "block_size"))
    return {"pages": [least * per_day, most * per_day],
            "bytes": [least * page * per_day, most * page * per_day],
            "syncs": [least / BATCH_PAGES * per_day, most / 16 * per_day]}


def recovery(sample: dict, result: dict, seconds: float, iops: int, mbps: int) -> dict[str, Any]:
    """Return seconds of a crash recovery, from redo to the first client, at the worst moment.

    By a model: what has to be read and written, over requests and bytes a second.
    """
    rate = {"now": result["wal_bytes"] / seconds, "then": result["wal_bytes_after"] / seconds}
    target = float(setting(sample, "checkpoint_completion_target"))
    timeout, room = setting(sample, "checkpoint_timeout"), setting(sample, "max_wal_size")
    answer: dict[str, Any] = {"iops": iops, "mbps": mbps}
    for name, wal_rate in rate.items():
        interval = min(timeout, room / (1 + target) / max(wal_rate, 1))
        wal = wal_rate * interval * (1 + target)
        # A page has one image in each checkpoint's time.
        pages = min(result["images"] / seconds * interval * (1 + target),
                    sample["server"]["database_bytes"] / 8192)
        requests = pages * REQUESTS_PER_PAGE
        wal_seconds = wal / mbps / 1e6
        one_pass = requests / iops
        if name == "now":
            # The checkpoint before clients get in; and redo looks ahead also for
            # blocks that it then has images of.
            span = [wal_seconds + one_pass, wal_seconds + 2 * one_pass]
        else:
            # Blocks are read, at best in the order of files; the checkpoint comes later.
            span = [wal_seconds + one_pass, wal_seconds + pages / iops]
        answer[name] = {"interval": interval, "wal": wal, "pages": pages, "seconds": span}
    # WAL is read once before clients get in; their pages are redone when they ask for them.
    then = answer["then"]
    analysis = (then["wal"] / mbps / 1e6 + ANALYSIS_SECONDS * result["records"] / seconds
                * then["interval"] * (1 + target))
    answer["instant"] = [analysis, analysis + FIRST_REQUESTS / iops]
    return answer


def prices_of(arguments: Any) -> dict[str, float] | None:
    """Return the prices that were given, None if none was."""
    prices = {"storage": arguments.price_storage, "iops": arguments.price_iops,
              "mbps": arguments.price_mbps, "transfer": arguments.price_transfer}
    return {**prices, "days": arguments.archive_days} if any(prices.values()) else None


def of_wal(gigabytes: float, prices: Mapping[str, float]) -> dict[str, float]:
    """Return what a month costs of so much WAL a day: kept in the archive, sent once."""
    return {"archive": gigabytes * prices["days"] * prices["storage"],
            "transfer": gigabytes * MONTH * prices["transfer"]}


def money(sample: dict, result: dict,
          prices: Mapping[str, float]) -> dict[str, list]:
    """Return what a month costs: {what: [now, then]}, where "then" is [at least, at most].

    WAL is kept in the archive for some days, and sent there and to each standby.  Its own
    requests stay as many, as commits wait for them in all modes; those of the log are added.
    """
    archived = setting(sample, "archive_mode") != "off"
    copies = archived + sample["server"]["physical_standbys"]

    now, then = (of_wal(result["day"][name] / 1e9, prices) for name in ("now", "double_writes"))
    answer = {name: [times * now[name], [times * then[name]] * 2]
              for name, times in (("archive", archived), ("transfer", copies))}
    answer["requests"] = [0.0, [syncs * REQUESTS_PER_BATCH / DAY * prices["iops"]
                                for syncs in result["log"]["syncs"]]]
    answer["throughput"] = [0.0, [written / DAY / 1e6 * prices["mbps"]
                                  for written in result["log"]["bytes"]]]
    answer["sum"] = [sum(one[0] for one in answer.values()),
                     [sum(one[1][end] for one in answer.values()) for end in (0, 1)]]
    return answer


def verdict(sample: dict, result: dict) -> tuple[str, list[str]]:
    """Return ("yes", "perhaps" or "not for you", [reason])."""
    day, share = result["day"], result["image_share"]
    reasons = []
    mode = setting(sample, "io_torn_pages_protection")
    if mode in ("double_writes", "atomic_writes"):
        return "not for you", [f"This server runs with {mode} already."]
    if setting(sample, "full_page_writes") == "off":
        return "perhaps", ["full_page_writes is off: there are no images to save.  If storage can "
                           "tear a page of 8 kB, nothing protects you now; double writes would, "
                           "for the writes shown."]
    if share < 0.15:
        reasons.append(f"Images are only {share:.0%} of your WAL.")
    if day["now"] - day["double_writes"] < 2 * GB:
        reasons.append(f"You would save {size(day['now'] - day['double_writes'])} a day, too "
                       "little to change a server for.")
    if result["kept_share"] > share:
        reasons.append("Most images are those of new pages (index builds, loads), which stay.")
    least = min(result["compression"].values(), default=None)
    if reasons:
        return "not for you", reasons
    if least is not None and least < 1.3 * day["double_writes"]:
        method = min(result["compression"], key=result["compression"].get)
        return "not for you", [
            f"wal_compression = {method} would take you to {size(least)} a day, nearly as little "
            f"as double writes ({size(day['double_writes'])}), on the server that you have."]
    reasons.append(f"Images are {share:.0%} of your WAL, which would shrink to "
                   f"{day['double_writes'] / day['now']:.0%}.")
    if least is not None:
        reasons.append(f"wal_compression leaves {least / day['now']:.0%} of it.")
    archive = setting(sample, "archive_timeout", 0)
    if result["switched"] or (archive and setting(sample, "wal_segment_size")
                              > result["wal_bytes_after"] / result["seconds"] * archive):
        reasons.append("archive_timeout fills the archive with segments that are not full: their "
                       "number would hardly change, only what they compress to.")
        return "perhaps", reasons
    return ("yes" if day["double_writes"] < 0.6 * day["now"] else "perhaps"), reasons


# Showing it -------------------------------------------------------------------


def size(number: int | None) -> str:
    """Return bytes for people."""
    for unit, name in ((1 << 40, "TB"), (GB, "GB"), (MB, "MB"), (1 << 10, "kB")):
        if abs(number) >= unit:
            return f"{number / unit:{'.3g' if number < 1000 * unit else '.0f'}} {name}"
    return f"{number:.0f} bytes"


def between(low: float, high: float, show: Callable[[float], str]) -> str:
    """Return a range for people."""
    return show(high) if show(low) == show(high) else f"{show(low)} to {show(high)}"


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 1:
        return "under 1 s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def rows(sample: dict, result: dict) -> list[tuple[str, Any]]:
    """Return [(title, [(what, now, with double writes)])], the tables of the page."""
    day, server = result["day"], sample["server"]
    archived = setting(sample, "archive_mode") != "off"
    standbys = server["physical_standbys"]
    wal = [("WAL a day, at the rate seen", size(day["now"]), size(day["double_writes"])),
           ("page images in it", f"{result['image_share']:.1%}", "0 %"),
           ("images of new pages, which stay", *(["unknown"] * 2 if sample.get("why") else [
               f"{result['kept_share']:.1%}",
               f"{result['kept_share'] * day['now'] / day['double_writes']:.1%}"])),
           ("to the archive a day", *([size(day["now"]), size(day["double_writes"])] if archived
                                      else ["no archive"] * 2)),
           (f"to standbys a day ({standbys})", size(standbys * day["now"]),
            size(standbys * day["double_writes"]))]
    if result["history"]:
        past = result["history"]
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(past["since"]))
        wal.insert(1, (f"WAL a day since {since}", size(past["now"]), size(past["double_writes"])))
    for method, amount in result["compression"].items():
        wal.append((f"instead, wal_compression = {method}", size(amount), ""))
    log, work = result["log"], result["recovery"]
    count = "{:,.0f}".format
    device = [("copies of pages to the log a day", "0", between(*log["pages"], count)),
              ("bytes of it a day", "0", between(*log["bytes"], size)),
              ("syncs of it a day", "0", between(*log["syncs"], count))]
    crash = [("WAL to replay, at most", size(work["now"]["wal"]), size(work["then"]["wal"])),
             ("redo until clients get in", between(*work["now"]["seconds"], duration),
              between(*work["then"]["seconds"], duration)),
             ("the same with instant_recovery", "", between(*work["instant"], duration))]
    tables = [("WAL", wal), ("The double-write log, on the server's own disk", device),
              (f"After a crash, at {work['iops']} requests and {work['mbps']} MB a second", crash)]
    if result["money"]:
        titles = {"archive": "WAL in the archive", "transfer": "WAL sent to archive and standbys",
                  "requests": "requests for the log", "throughput": "bytes a second of the log",
                  "sum": "sum"}
        show = "{:,.2f}".format
        tables.append(("A month, at your prices", [
            (titles[name], show(now), between(*then, show))
            for name, (now, then) in result["money"].items()]))
    return tables


def headline(sample: dict, result: dict) -> list[str]:
    """Return the lines above the tables."""
    server = sample["server"]
    source = "a standby" if server["standby"] else "a primary"
    return [f"PostgreSQL {server['version']}, {source}, "
            f"{size(server['database_bytes'] or 0)} of data, watched for "
            f"{duration(result['seconds'])} until {sample['taken']}.",
            f"{size(result['wal_bytes'])} of WAL were written, "
            + (f"counted by {sample['reader']}" if sample.get("why") else
               f"{result['read_share']:.0%} of it was looked at with {sample['reader']}")
            + f", with {sample['cpu_share']:.2%} of a core."]


def notes(sample: dict, result: dict) -> list[str]:
    """Return what to keep in mind."""
    found = ["The rate is that of the time watched: watch when load is typical, for longer than "
             "checkpoint_timeout, as most images follow a checkpoint."]
    work = result["recovery"]["now"]
    hints = result["kinds"].get(HINT, {"records": 0})["records"]
    if (hints > 0.03 * result["wal_bytes_after"]
            and result["recovery"]["then"]["interval"] > 1.5 * work["interval"]):
        found.append("Hints on pages are logged once between two checkpoints. Checkpoints come by "
                     "max_wal_size here and would come more rarely, so there would be fewer of "
                     "these records than was reckoned with.")
    if result["seconds"] < work["interval"]:
        found.append(f"Checkpoints come every {duration(work['interval'])} here, which is longer "
                     "than was watched: the share of images may be too high or too low.")
    if sample.get("why"):
        found.append(f"WAL could not be read: {sample['why']}. So images of new pages, which stay, "
                     "cannot be told from others: where indexes are built or much is loaded, less "
                     "is saved than shown. And WAL with double writes may be off by a tenth of "
                     "WAL now.")
    found.append("Base backups write images while they run, in all modes.")
    found.append("Times after a crash are a model: WAL over bytes a second, pages over requests a "
                 "second (--iops, --mbps), without the start of the server and the "
                 "sync of its files. With instant_recovery (which initdb sets, and you in a cluster "
                 "that comes from stock) clients get in early and wait for the pages that they "
                 "ask for, until redo is complete.")
    if result["money"]:
        found.append("Prices are yours: GB-month of archive, GB sent, provisioned requests and MB a "
                     "second. The disk for the log, 0.5 to 1 GB as a rule, is not in the sum.")
    found.append("Where storage proves that it writes pages atomically, atomic_writes has no copies: "
                 "WAL is as with double writes, the log nearly empty. pg_doublewrite storage "
                 "tells whether yours does.")
    found.append("Pages that storage cannot tear (ZFS) need neither images nor copies.")
    if not result["compression"]:
        found.append("wal_compression: not estimated, as no library of lz4 or zstd was found, "
                     "no image to be compressed, or images are compressed with pglz already.")
    return found


def as_text(sample: dict, result: dict) -> str:
    """Return the page as text."""
    lines = [*headline(sample, result), "", f"Verdict: {result['verdict']}."]
    for reason in result["reasons"]:
        lines += textwrap.wrap(reason, 95, initial_indent="  ", subsequent_indent="  ")
    tables = rows(sample, result)
    every = [("", "now", "double writes"), *(row for _, table in tables for row in table)]
    wide = [max(len(row[column]) for row in every) for column in range(3)]
    for title, table in tables:
        lines += ["", f"{title}:"]
        lines += [f"  {what:<{wide[0]}}  {now:>{wide[1]}}  {then:>{wide[2]}}".rstrip()
                  for what, now, then in (every[0], *table)]
    lines.append("")
    for note in notes(sample, result):
        lines += textwrap.wrap(f"* {note}", 95, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What would double writes save?</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 50em; margin: 1em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; width: 100%; margin-bottom: 1.5em; }}
th, td {{ text-align: right; padding: .2em .5em; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
.verdict {{ background: #eef3fa; padding: .5em 1em; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>What would double writes save?</h1>
{head}
<div class="verdict"><h2>Verdict: {verdict}</h2>{reasons}</div>
{tables}
{plots}
<ul>{notes}</ul>
</body></html>
"""


def as_html(sample: dict, result: dict) -> str:
    """Return the page as HTML that needs nothing else."""
    def each(tag, texts):
        return "\n".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)

    tables = []
    for title, table in rows(sample, result):
        head = each("th", (title, "now", "double writes"))
        body = "\n".join(f"<tr>{each('td', row)}</tr>" for row in table)
        tables.append(f"<table><tr>{head}</tr>{body}</table>")
    return PAGE.format(head=each("p", headline(sample, result)),
                       verdict=html.escape(result["verdict"]),
                       reasons=each("p", result["reasons"]), tables="\n".join(tables),
                       plots=plots(sample, result), notes=each("li", notes(sample, result)))


def plots(sample: dict, result: dict) -> str:
    """Return the plots as SVG, or what they need."""
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return "<p>There would be plots with matplotlib (Debian: python3-matplotlib).</p>"
    figure, (days, kinds, course) = pyplot.subplots(3, 1, figsize=(7, 9.5))
    amounts = {"now": result["day"]["now"]}
    for method, amount in result["compression"].items():
        amounts[f"wal_compression = {method}"] = amount
    amounts["double writes"] = result["day"]["double_writes"]
    bars = days.barh(list(amounts), [amount / GB for amount in amounts.values()], color="#1f5fa8")
    days.bar_label(bars, [f" {size(amount)}" for amount in amounts.values()])
    days.set_title("WAL a day, GB", loc="left")
    days.set_xlim(0, 1.25 * max(amounts.values()) / GB)
    days.invert_yaxis()
    names = list(result["kinds"])
    own = [one["records"] / MB for one in result["kinds"].values()]
    images = [one["images"] / MB for one in result["kinds"].values()]
    kinds.barh(names, own, color="#1f5fa8", label="records")
    kinds.barh(names, images, left=own, label="images", color=[
        "#9a9a9a" if one["kept"] else "#c0392b" for one in result["kinds"].values()])
    kinds.set_title("WAL by type of record, MB (grey: images that stay)", loc="left")
    kinds.invert_yaxis()
    kinds.legend()
    start = sample["first"]["time"]
    course.plot([one["time"] - start for one in sample["slices"]],
                [100 * one["image_bytes"] / max(one["bytes"], 1) for one in sample["slices"]],
                marker="o", color="#c0392b")
    course.set_title("share of images over the time watched (s), %", loc="left")
    course.set_ylim(0, 100)
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="pg_doublewrite_advise", add_help=False, description=(
        "Says what double writes would save on a PostgreSQL 16 to 18.  Reads, and writes nothing."))
    found.add_argument("--help", action="help", help="show this help, then exit")
    found.add_argument("-h", "--host", help="as of psql, like the next three")
    found.add_argument("-p", "--port")
    found.add_argument("-U", "--username")
    found.add_argument("-d", "--dbname", default="postgres", help="or a connection string")
    found.add_argument("--seconds", type=int, default=600,
                       help="how long to watch (default: %(default)s)")
    found.add_argument("--wal-directory", help="where to read WAL (default: that of the server)")
    found.add_argument("--bindir", help="where pg_waldump is")
    found.add_argument("--save", metavar="FILE", help="write the sample to FILE")
    found.add_argument("--from", dest="sample", metavar="FILE", help="take a saved sample")
    found.add_argument("--json", action="store_true", help="write JSON")
    found.add_argument("--html", metavar="FILE", help="write the page as HTML with plots, too")
    found.add_argument("--iops", type=int, default=1500,
                       help="requests a second of your storage (default: %(default)s)")
    found.add_argument("--mbps", type=int, default=60,
                       help="MB a second of it (default: %(default)s)")
    add_prices(found)
    return found


def add_prices(found: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare the options for prices, which `./dev bench report` has as well."""
    found.add_argument("--price-storage", type=price, default=0, metavar="PRICE",
                       help="of a GB of archived WAL a month, in any currency")
    found.add_argument("--price-transfer", type=price, default=0, metavar="PRICE",
                       help="of a GB of WAL that is sent to the archive or to a standby")
    found.add_argument("--price-iops", type=price, default=0, metavar="PRICE",
                       help="of a provisioned request a second, a month")
    found.add_argument("--price-mbps", type=price, default=0, metavar="PRICE",
                       help="of a provisioned MB a second, a month")
    found.add_argument("--archive-days", type=price, default=7, metavar="DAYS",
                       help="how long WAL is kept in the archive (default: %(default)s)")


def price(text: str) -> float:
    """Return a number that is not negative, from the command line."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a price")
    return number


def load(path: str) -> dict:
    """Return a saved sample."""
    try:
        with open(path) as source:
            sample = json.load(source)
    except (OSError, ValueError) as exc:
        raise AdviseError(f"cannot read {path}: {exc}") from exc
    if not isinstance(sample, dict) or sample.get("format") != FORMAT:
        raise AdviseError(f"{path} is no sample of this program's version")
    return sample


def main() -> int:
    """Watch or load, and show."""
    arguments = parser().parse_args()
    os.nice(19)
    try:
        if arguments.seconds < 1 or arguments.iops < 1 or arguments.mbps < 1:
            raise AdviseError("--seconds, --iops and --mbps are at least 1")
        sample = load(arguments.sample) if arguments.sample else Watch(arguments).sample()
        if arguments.save:
            with open(arguments.save, "w") as target:
                json.dump(sample, target)
        result = analyse(sample, arguments.iops, arguments.mbps, prices_of(arguments))
        if arguments.html:
            text = as_html(sample, result)
            with open(arguments.html, "w") as target:
                target.write(text)
        print(json.dumps(result, indent=1) if arguments.json else as_text(sample, result),
              end="\n" if arguments.json else "")
    except AdviseError as exc:
        print(f"pg_doublewrite_advise: error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
