"""Benchmark tool: statistics, aggregation, bars, configuration, no servers."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench import (
    arms,
    bars,
    clients,
    counters,
    figures,
    loads,
    recovery,
    report,
    restart,
    runner,
    sceptic,  # noqa: F401
    server,
    slow,
    stats,
    storage,
    suites,
    summary,
)
from common.base import DevError


class StatsTest(unittest.TestCase):

    def test_sample(self):
        sample = stats.Sample((5, 1, 100, 4, 6))
        self.assertEqual((sample.median, sample.mad, sample.low, sample.high), (5, 1, 1, 100))

    def test_speed_ratio_is_above_one_for_the_faster(self):
        fast, slow = stats.Sample((20, 22)), stats.Sample((10, 11))
        self.assertAlmostEqual(stats.speed_ratio(fast, slow, True).value, 2)
        self.assertAlmostEqual(stats.speed_ratio(slow, fast, False).value, 2)

    def test_speed_ratio_bounds_divide_the_extremes(self):
        ratio = stats.speed_ratio(stats.Sample((8, 10, 12)), stats.Sample((4, 5, 6)), True)
        self.assertEqual((ratio.value, ratio.low, ratio.high), (2, 8 / 6, 3))

    def test_speed_ratio_without_a_divisor(self):
        zero = stats.Sample((0, 0))
        self.assertIsNone(stats.speed_ratio(stats.Sample((1, 2)), zero, True))

    def test_round_significant(self):
        self.assertEqual([stats.round_significant(value) for value in (0, 1234, 0.01234, 99.6)],
                         [0, 1200, 0.012, 100])

    def test_percentiles(self):
        found = stats.percentiles(dict.fromkeys(range(1, 101), 1))
        self.assertEqual((found["p50"], found["p99"], found["p99.9"], found["max"]),
                         (50, 99, 100, 100))
        self.assertEqual(stats.percentiles({}), {})
        self.assertEqual(stats.percentile({7: 1, 9: 99}, 50), 9)

    def test_variation(self):
        self.assertEqual(stats.variation([3, 3, 3]), 0)
        self.assertIsNone(stats.variation([3]))

    def test_merge_medians_counts_a_missing_key_as_zero(self):
        self.assertEqual(stats.merge_medians([{"a": 3}, {"a": 5, "b": 9}, {"a": 4}]),
                         {"a": 4, "b": 0})


class ArmsTest(unittest.TestCase):

    def test_choose(self):
        every = arms.choose([])
        self.assertIn("stock-full_pages+zstd", [arm.name for arm in every])
        self.assertTrue(all(arm.images is None and not arm.file_system and not arm.restarts
                            for arm in every))
        chosen = arms.choose(["stock-off", "off"])
        self.assertEqual([arm.name for arm in chosen], ["off", "stock-off"])
        self.assertEqual([arm.name for arm in arms.choose(["in_order"])], ["in_order"])
        with self.assertRaises(DevError):
            arms.choose(["offf"])

    def test_arms_that_replay_are_apart(self):
        self.assertEqual(len(arms.choose([], replaying=True)), 6)
        self.assertEqual([arm.images for arm in arms.choose(["stock+images"], replaying=True)],
                         [True])
        with self.assertRaises(DevError):
            arms.choose(["stock"])

    def test_arms_that_need_a_file_system(self):
        chosen = arms.choose(["atomic_writes", "off"], file_systems={"xfs"})
        self.assertEqual([arm.name for arm in chosen], ["off", "atomic_writes"])
        with self.assertRaises(DevError):
            arms.choose(["atomic_writes"], file_systems={"ext4"})

    def test_order_rotates(self):
        self.assertEqual([arms.order(list("ABC"), number) for number in (0, 1, 3)],
                         [list("ABC"), list("BCA"), list("ABC")])


PGBENCH = """\
progress: 1.0 s, 1189.0 tps, lat 12.9 ms stddev 11.1, 0 failed
progress: 2.0 s, 1231.5 tps, lat 12.1 ms stddev 10.0, 0 failed
number of transactions actually processed: 2436
number of failed transactions: 3 (0.123%)
tps = 1232.104 (without initial connection time)
"""

SYSBENCH = """\
[ 1s ] thds: 4 tps: 100.50 qps: 600.00 (r/w/o: 0/400/200) lat (ms,95%): 5.0 err/s: 0.00
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       1.500 |****************************************  90
      12.000 |****                                      10
SQL statistics:
    transactions:                        201    (100.40 per sec.)
    ignored errors:                      2      (0.00 per sec.)
"""


class ClientsTest(unittest.TestCase):

    def test_parse_transactions(self):
        text = "0 1 2345 0 1700000000 500000\n0 2 failed 0 1700000000 2\n"
        self.assertEqual(clients.parse_transactions(text), [(1700000000.5, 2.345)])

    def test_parse_pgbench(self):
        latencies = Counter()
        clients.count_latencies(["0 1 2345 0 1700000000 1\n", "0 2 failed 0 1700000000 2\n"],
                                latencies)
        outcome = clients.parse_pgbench(PGBENCH, latencies)
        self.assertEqual((outcome.tps, outcome.transactions, outcome.failed, outcome.series),
                         (1232.104, 2436, 3, [1189.0, 1231.5]))
        self.assertEqual(outcome.latency["p50"], 2.3)

    def test_parse_sysbench(self):
        outcome = clients.parse_sysbench(SYSBENCH)
        self.assertEqual((outcome.tps, outcome.transactions, outcome.failed, outcome.series),
                         (100.4, 201, 2, [100.5]))
        self.assertEqual((outcome.latency["p90"], outcome.latency["p95"]), (1.5, 12.0))

    def test_no_result(self):
        for parse in (lambda: clients.parse_pgbench("died", {}),
                      lambda: clients.parse_sysbench("died")):
            with self.assertRaises(DevError):
                parse()


class ServerTest(unittest.TestCase):

    def test_timings(self):
        self.assertEqual(server.timings("Time: 1.5 ms\nrow\nTime: 61000.250 ms (01:01)\n"),
                         [1.5, 61000.25])

    def test_process_kind(self):
        self.assertEqual(server.process_kind("postgres: checkpointer \0"), "checkpointer")
        self.assertEqual(server.process_kind("postgres: postgres bench [local] idle"),
                         "client backend")


# Writes to the files, one after the other, all with the same descriptor.
WRITER = """
import ctypes, os, sys
text = ctypes.create_string_buffer(b"34")
parts = (ctypes.c_size_t * 2)(ctypes.addressof(text), 2)
for name in sys.argv[1:]:
    handle = os.open(name, os.O_CREAT | os.O_RDWR)
    assert handle == 3 and os.pwrite(handle, b"12", 0) == 2
    assert ctypes.CDLL(None).pwritev64(handle, parts, 1, ctypes.c_long(2)) == 2
    assert os.pread(handle, 9, 0) == b"1234"
    os.close(handle)
"""


# Three syncs.
SYNCER = """
import ctypes, os, sys
handle = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
call = ctypes.CDLL(None, use_errno=True)
os.fsync(handle)
os.fdatasync(handle)
assert call.syncfs(handle) == 0
os.close(handle)
"""


class SlowTest(unittest.TestCase):

    SECONDS = 0.2

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = Path(scratch.name)
        (self.place / "base").mkdir()
        self.library = slow.build(self.place / slow.LIBRARY)

    def took(self, *names, program=WRITER, writes=SECONDS, syncs=0.0):
        environment = slow.settings(self.library, self.place / "base", int(writes * 1_000_000),
                                    int(syncs * 1_000_000))
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", program, *(self.place / name for name in names)],
                       check=True, env={**os.environ, **environment})
        return time.monotonic() - begun

    def test_each_sync_of_any_file_takes_longer(self):
        self.assertGreaterEqual(self.took("other", program=SYNCER, writes=0, syncs=self.SECONDS),
                                3 * self.SECONDS)

    def test_each_write_below_the_directory_takes_longer(self):
        self.assertGreaterEqual(self.took("other", "base/file", "other"), 2 * self.SECONDS)

    def test_others_do_not(self):
        files = [f"base-{number}" for number in range(1000)]
        self.assertLess(self.took("base/file", *files), 2 * len(files) * self.SECONDS)

    def test_nothing_for_other_cases(self):
        self.assertEqual(slow.environment(None, self.place, 0), {})

    def test_a_server_without_it_is_noticed(self):
        with self.assertRaises(DevError):
            slow.require(SimpleNamespace(postmaster=os.getpid))


class CountersTest(unittest.TestCase):

    def test_difference_leaves_out_what_stood_still(self):
        self.assertEqual(counters.difference({"a": 5, "b": 2, "c": 1}, {"a": 3, "b": 2}),
                         {"a": 2, "c": 1})

    def test_checkpoint_lines(self):
        line = ("LOG:  checkpoint complete: wrote 1234 buffers (7.5%), wrote 2 SLRU buffers; "
                "0 WAL file(s) added, 0 removed, 1 recycled; write=0.500 s, sync=0.250 s, "
                "total=0.800 s; sync files=17, longest=0.010 s, average=0.001 s; distance=9 kB\n")
        found, = counters.checkpoints("noise\n" + line)
        self.assertEqual(found, {"buffers": 1234, "write": 0.5, "sync": 0.25, "total": 0.8,
                                 "files": 17, "longest": 0.01})

    def test_causes_do_not_overlap(self):
        names = [f"io.{backend}/{thing}/normal.{field}"
                 for backend in ("checkpointer", "background writer", "client backend", "startup")
                 for thing in ("relation", "wal") for field in ("writes", "fsyncs")]
        counts = dict.fromkeys([*names, "dw.log_writes", "dw.log_syncs"], 1)
        for causes in (counters.WRITE_CAUSES, counters.SYNC_CAUSES):
            # Four kinds of processes, two objects, and the log.
            self.assertEqual(sum(counters.by_cause(counts, causes).values()), 9)

    def test_pages_per_write(self):
        stock = {"io.checkpointer/relation/normal.writes": 4,
                 "io.checkpointer/relation/normal.write_bytes": 8 * 8192}
        self.assertEqual(counters.pages_per_write(stock), 2)
        ours = {**stock, "dw.home_pages": 30, "dw.home_writes": 2}
        self.assertEqual(counters.pages_per_write(ours), 15)
        self.assertIsNone(counters.pages_per_write({}))

    def test_files_synced_per_copy(self):
        counts = {"dw.logged": 8, "io.checkpointer/relation/normal.fsyncs": 3,
                  "io.background writer/relation/normal.fsyncs": 1,
                  "io.client backend/wal/normal.fsyncs": 5}
        self.assertEqual(counters.files_synced_per_copy(counts), 0.5)
        del counts["dw.logged"]
        self.assertEqual(counters.files_synced_per_copy(counts), 0)


class LoadsTest(unittest.TestCase):

    def test_parse_lags(self):
        self.assertEqual(loads.parse_lags("Sat Nov 21 (every 1s)\n0|128|0.001\n\n16|0|\n"),
                         [128.0, 0.0])

    def test_count_waits(self):
        self.assertEqual(loads.count_waits("wait|CPU|1\nwait|LWLock:WALWrite|2\n"
                                           "Sat (every 0.25s)\nwait|LWLock:WALWrite|1\n"),
                         {"LWLock:WALWrite": 0.75, "CPU": 0.25})

    def test_point_leaves_out_what_is_empty(self):
        point = loads.Point("tps", 0.0, "transactions/s", True)
        self.assertEqual(point.as_dict(), {"name": "tps", "value": 0.0, "operations": 0,
                                           "unit": "transactions/s", "higher_is_better": True})

    def session(self, **methods):
        return SimpleNamespace(server=SimpleNamespace(data="/pg", environment=dict, **methods),
                               raw=None, seconds=5)

    def test_sessions_of_a_step(self):
        seen = []

        def timed(text):
            seen.append(text)
            return len(seen)

        step = loads.Step("COPY", "", "COPY t{number} FROM '{data}/f';", 3)
        self.assertEqual(step.seconds(self.session(timed=timed)), 3)
        self.assertEqual(sorted(seen), [f"COPY t{number} FROM '/pg/f';" for number in range(3)])

    def test_program_as_a_step(self):
        call = mock.Mock()
        step = loads.Program("restore", "", "pg_restore --jobs=2 {data}/dump")
        self.assertGreaterEqual(step.seconds(self.session(call=call)), 0)
        self.assertEqual(call.call_args.args, ("pg_restore", "--jobs=2", "/pg/dump"))

    def test_steps_beside_pgbench(self):
        steps = tuple(loads.Step(name, f"before {name}", name) for name in ("TRUNCATE", "DROP"))
        timed = mock.Mock(side_effect=lambda text, setup: len(text) / 1000)

        def measure(session, name, load):
            load()
            return []

        with mock.patch.object(clients, "pgbench", lambda *args: time.sleep(0.1)), \
                mock.patch.object(loads, "measure", measure):
            points = loads.Beside((), prewarm=False, steps=steps)(self.session(timed=timed))
        self.assertEqual([(one.name, one.value) for one in points[2:4]],
                         [("TRUNCATE, longest", 8), ("DROP, median", 4)])
        self.assertEqual([call.args for call in timed.call_args_list[:2]],
                         [("TRUNCATE", "before TRUNCATE"), ("DROP", "before DROP")])

    def test_latency_points(self):
        points = loads.latency_points("DROP", [number / 1000 for number in range(1, 201)])
        self.assertEqual([(one.name, one.value, one.operations) for one in points],
                         [("DROP, median", 100, 200), ("DROP, 99th percentile", 198, 200),
                          ("DROP, longest", 200, 200)])
        self.assertEqual([bool(one.latency) for one in points], [True, False, False])


RECOVERY_LOG = """\
1700000000.500 [7] LOG:  starting PostgreSQL
1700000001.900 [9] LOG:  redo in progress, elapsed time: 0.40 s, current LSN: 0/20, \
40% of WAL replayed, 60 MB left, 100.0 MB/s, about 0.6 s to go
1700000002.500 [9] LOG:  redo in progress, elapsed time: 1.00 s, current LSN: 0/30, \
50% of WAL replayed, 50 MB left, 100.0 MB/s, about 0.3 s to go
1700000002.500 [9] LOG:  WAL pipeline: decoded 5 records in 1 ranges, 9 kB of WAL, \
read 6 blocks and wrote 1; redo waited 3 times
1700000002.500 [9] LOG:  redo done at 0/40 system usage: CPU: user: 0.60 s, system: 0.30 s, elapsed: 1.50 s
1700000003.250 [7] LOG:  database system is ready to accept connections
"""


class RecoveryTest(unittest.TestCase):

    def test_parse_log(self):
        self.assertEqual(recovery.parse_log(RECOVERY_LOG), {
            "redo": 1.5, "ready": 2.75, "redo_cpu": 0.9,
            "pipeline_reads": 6, "pipeline_victims": 1, "pipeline_waits": 3, "estimate_error_percent": -40.0})

    def test_stock_says_less(self):
        lines = [line for line in RECOVERY_LOG.splitlines(keepends=True)
                 if "wrote" not in line and "pipeline" not in line and "to go" not in line]
        self.assertEqual(recovery.parse_log("".join(lines)),
                         {"redo": 1.5, "ready": 2.75, "redo_cpu": 0.9})

    def test_no_redo(self):
        with self.assertRaises(DevError):
            recovery.parse_log("")


RESTART_LOG = """\
100.200 [7] LOG:  starting PostgreSQL
100.300 [9] LOG:  database system was interrupted; last known up at noon
100.900 [9] LOG:  syncing data directory (fsync), elapsed time: 0.60 s, current path: ./base
101.150 [9] LOG:  reading the double-write log, elapsed time: 0.15 s, current segment: 0000000000000001
101.200 [9] LOG:  reading the double-write log, elapsed time: 0.20 s, current segment: 0000000000000002
101.700 [9] LOG:  double-write log: examined 12 pages in 3 batches, restored 2, 9 identical, \
1 beyond the end of their file, left 0 in the log; read 4096 kB in 0.400 s
101.710 [9] LOG:  database system was not properly shut down; automatic recovery in progress
101.800 [9] LOG:  redo starts at 0/10
103.800 [9] LOG:  redo done at 0/40 system usage: CPU: user: 0.60 s, system: 0.30 s, elapsed: 2.00 s
103.900 [8] LOG:  checkpoint starting: end-of-recovery immediate wait
105.400 [8] LOG:  checkpoint complete: wrote 10 buffers (0.1%), wrote 3 SLRU buffers; 0 WAL file(s) added
105.500 [7] LOG:  database system is ready to accept connections
"""


class RestartTest(unittest.TestCase):

    def marks(self, text):
        return restart.parse_marks(text, 100.0, 105.75)

    def seconds(self, text):
        parts = restart.split(self.marks(text), 100.0, [(0, {})])
        return {name: part["s"] for name, part in parts.items()}

    def without(self, *texts):
        return "".join(line for line in RESTART_LOG.splitlines(keepends=True)
                       if not any(text in line for text in texts))

    def test_parts_add_up(self):
        found = self.seconds(RESTART_LOG)
        self.assertEqual(found, {"begin": 0.3, "sync": 0.7, "log read": 0.3, "restore": 0.4,
                                 "look": 0.1, "redo": 2.0, "end": 0.1, "checkpoint": 1.5,
                                 "open": 0.1, "first query": 0.25})
        self.assertAlmostEqual(sum(found.values()), 5.75)

    def test_log_read_with_nothing_restored(self):
        found = self.seconds(self.without("examined"))
        self.assertEqual((found["sync"], found["log read"], found["look"]), (0.7, 0.71, 0.09))
        self.assertNotIn("restore", found)

    def test_stock(self):
        found = self.seconds(self.without("double-write"))
        self.assertEqual((found["sync"], found["look"]), (1.41, 0.09))
        self.assertNotIn("log read", found)

    def test_a_checkpoint_that_ends_later_is_no_part(self):
        lines = self.without("complete") + "106.000 [8] LOG:  checkpoint complete: wrote 1 buffers\n"
        found = self.seconds(lines)
        self.assertNotIn("checkpoint", found)
        self.assertEqual(found["open"], 1.6)

    def test_no_redo(self):
        found = self.seconds(self.without("redo"))
        self.assertEqual((found["restore"], found["end"]), (0.4, 2.2))

    def test_not_ready(self):
        with self.assertRaises(DevError):
            self.marks(self.without("ready"))

    def test_requests_belong_to_parts(self):
        samples = [(time, {"device.data.reads": reads, "device.data.read_sectors": 16 * reads})
                   for time, reads in ((99.9, 5), (100.25, 6), (101.79, 10), (103.7, 110))]
        parts = restart.split(self.marks(RESTART_LOG), 100.0, samples)
        self.assertEqual((parts["begin"]["reads"], parts["look"]["reads"]), (1, 4))
        self.assertEqual((parts["redo"]["reads"], parts["redo"]["read_sectors"]), (100, 1600))
        self.assertEqual(parts["checkpoint"]["reads"], 0)
        facts = restart.count_facts(RESTART_LOG, {
            "io.background worker/relation/normal.read_bytes": 3 * 8192,
            "io.startup/relation/normal.read_bytes": 2 * 8192,
            "io.client backend/relation/normal.read_bytes": 8192,
            "io.startup/wal/normal.read_bytes": 2048}, parts)
        self.assertEqual((facts["device reads before opening"], facts["blocks read"],
                          facts["WAL kB read"]), (105, 5, 2))
        self.assertEqual(facts["device kB read by sync, log read, restore"], 0)
        self.assertEqual((facts["log kB read"], facts["copies"], facts["restored"]), (4096, 12, 2))


class StorageTest(unittest.TestCase):

    def test_rules(self):
        self.assertEqual(storage.Limit(1500, 60).rules("7:3"), {
            "blkio.throttle.read_iops_device": "7:3 1500",
            "blkio.throttle.write_iops_device": "7:3 1500",
            "blkio.throttle.read_bps_device": "7:3 60000000",
            "blkio.throttle.write_bps_device": "7:3 60000000"})
        self.assertEqual(set(storage.NO_LIMIT.rules("7:3").values()), {"7:3 0"})

    def test_limit_of(self):
        self.assertEqual(storage.limit_of("rented"), storage.Limit(1500, 60))
        self.assertEqual(storage.limit_of("rented", iops=0, mbps=125), storage.Limit(0, 125))
        self.assertEqual(storage.limit_of("slow", mbps=60), storage.Limit(2000, 60))
        self.assertEqual(storage.limit_of("memory"), storage.NO_LIMIT)
        for profile, iops in (("memory", 100), ("rented", -1)):
            with self.assertRaises(DevError):
                storage.limit_of(profile, iops)

    def test_limit_says_what_it_is(self):
        self.assertEqual(str(storage.Limit(1500, 60)),
                         "1500 requests and 60 MB a second, of reads and of writes each")
        self.assertEqual(str(storage.Limit(iops=2000)),
                         "2000 requests a second, of reads and of writes each")

    def test_controller(self):
        self.assertIsNone(storage.blkio_mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"))
        self.assertEqual(storage.blkio_mount(
            "x /cpu cgroup rw,cpu 0 0\nx /io cgroup rw,relatime,blkio 0 0\n"), Path("/io"))
        self.assertEqual(storage.blkio_group("8:pids:/a\n7:blkio:/box\n0::/\n"), "/box")

    def test_limit_is_taken_off_whatever_happens(self):
        written = []
        with mock.patch.object(storage, "_throttle", lambda *args: written.append(args)), \
                mock.patch.object(storage, "_loop", lambda *args: "/dev/loop9"), \
                mock.patch.object(storage, "_inner", lambda mount: mount), \
                mock.patch.object(storage, "device_of", lambda path: "7:9"), \
                tempfile.TemporaryDirectory() as scratch:
            with self.assertRaises(KeyboardInterrupt), \
                    storage.volume("rented", Path(scratch), 10) as volume:
                volume.hold()
                raise KeyboardInterrupt
            self.assertEqual(written, [("7:9", storage.LIMITS["rented"]),
                                       ("7:9", storage.NO_LIMIT)])


class SuitesTest(unittest.TestCase):

    def test_all_suites_at_any_factor(self):
        for factor in (0.001, 0.1, 1):
            for name in suites.SUITES:
                cases = suites.cases(name, factor)
                self.assertEqual(len({case.name for case in cases}), len(cases))
                for case in cases:
                    settings = case.all_settings()
                    self.assertIn("shared_buffers", settings)
                    self.assertLessEqual(suites.megabytes(settings["min_wal_size"]),
                                         suites.megabytes(settings["max_wal_size"]))
                    self.assertGreater(case.megabytes(), 0)

    def test_slow_writes_are_in_the_report(self):
        described = {case.name: case.described() for case in suites.cases("parallel", 0.1)}
        slowed = [name for name, facts in described.items()
                  if "microseconds more each write" in facts]
        self.assertEqual(slowed, ["evictions"])

    def test_factor_scales_but_not_below_what_servers_accept(self):
        scale = suites.Scale(0.1)
        self.assertEqual((scale.wal(10240), scale.wal(64)), ("1024MB", "32MB"))
        self.assertEqual((scale.buffers(1024), scale.buffers(16)), ("102MB", "8MB"))
        self.assertEqual(scale.count(100), 10)

    def test_scripts_with_variables_in_names_are_not_prepared(self):
        found = []
        for case in (case for name in suites.SUITES for case in suites.cases(name, 1)):
            arguments = getattr(case.load, "arguments", ())
            scripts = (argument.removeprefix("--file=").partition("@")[0]
                       for argument in arguments if argument.startswith("--file="))
            if any(re.search(r"\w:[a-z]", Path(script).read_text()) for script in scripts):
                found.append(case.name)
                self.assertIn("--protocol=simple", arguments)
        self.assertEqual(found, ["small buffers 16 MB, 10,000 tables"])

    def test_unknown_suite(self):
        with self.assertRaises(DevError):
            suites.cases("nothing", 1)


def plan_of(cases, **fields):
    """Return a Plan of two runs in two arms."""
    return runner.Plan(**{**dict.fromkeys(field.name for field in dataclasses.fields(runner.Plan)),
                          "cases": cases, "runs": 2, "rate": 0,
                          "arms": tuple(arms.choose(["off", "stock-off"])), **fields})


class WalReadyTest(unittest.TestCase):

    def test_segments_after_the_newest(self):
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            (place / "summaries").mkdir()
            for name in ("0000000100000010000000FD", "0000000100000010000000FE"):
                (place / name).write_text("x")
            runner.make_wal_ready(place, 48)
            self.assertEqual(sorted(path.name for path in place.iterdir())[1:4],
                             ["0000000100000010000000FE", "0000000100000010000000FF",
                              "000000010000001100000000"])
            made = (place / "000000010000001100000000").read_bytes()
            self.assertEqual(made, bytes(16 << 20))


class FilledWalTest(unittest.TestCase):

    def filled(self, suite, **settings):
        return figures._filled_wal({"suite": suite, "cases": {"one": settings}})

    def test_of_loads_whose_server_kept_too_few_segments(self):
        few = {"min_wal_size": "80MB", "max_wal_size": "3072MB"}
        self.assertTrue(self.filled("latency", **few))
        self.assertFalse(self.filled("restart", **few))
        self.assertFalse(self.filled("latency", min_wal_size="2048MB", max_wal_size="10GB"))
        self.assertFalse(self.filled("pgbench", min_wal_size="32MB", max_wal_size="32MB"))


class ScheduleTest(unittest.TestCase):

    def test_interleaved_and_without_stock_where_it_refuses(self):
        case = suites.Case("all", None, None)
        ours = suites.Case("ours", None, None, ours_only=True)
        plan = plan_of((case, ours))
        names = [(one is ours, number, arm.name) for number, one, arm in runner.schedule(plan)]
        self.assertEqual(names, [(False, 0, "off"), (False, 0, "stock-off"),
                                 (False, 1, "stock-off"), (False, 1, "off"),
                                 (True, 0, "off"), (True, 1, "off")])

    def test_a_case_in_one_arm_alone(self):
        plan = plan_of((suites.Case("capacity", None, None, only_arm="stock-full_pages"),))
        self.assertEqual([arm.name for _, _, arm in runner.schedule(plan)], ["stock-full_pages"] * 2)
        self.assertEqual(plan.kinds(), ["stock-release"])

    def test_pace_is_what_was_found_or_given(self):
        paced = suites.Case("paced", None, None, paced_by="capacity")
        with tempfile.TemporaryDirectory() as scratch:
            plan = plan_of((paced,), directory=Path(scratch))
            (plan.directory / runner.META).write_text("{}")
            runs = [*results({"stock-full_pages": [300, 500, 400]}, "capacity"),
                    *results({"off": [9]}, "other")]
            (plan.directory / runner.RUNS).write_text("".join(json.dumps(one) + "\n" for one in runs))
            self.assertEqual(runner._pace(plan, paced), 400)
            self.assertEqual(runner._pace(plan, suites.Case("other", None, None)), 0)
            self.assertEqual(runner._pace(dataclasses.replace(plan, rate=70), paced), 70)


def point(value, **fields):
    """Return a point as it is in a file of results."""
    return {"name": "tps", "value": value, "unit": "transactions/s", "higher_is_better": True,
            "operations": 10, **fields}


def results(values, case="scale 100, max_wal_size 64 MB", **fields):
    """Return runs of {arm: [value]}."""
    return [{"case": case, "arm": arm, "load_average": 1.0, "points": [point(value, **fields)]}
            for arm, series in values.items() for value in series]


def measured(runs):
    """Return the Measures of runs, by way of the file that is kept."""
    return report.measures(json.loads(summary.text(summary.of({}, runs))))


class MeasureCase(unittest.TestCase):

    def measure(self, *args, **fields):
        return measured(results(*args, **fields))[0]


class ReportTest(MeasureCase):

    def test_measures_are_grouped_and_in_order(self):
        measure = self.measure({"stock-off": [9], "off": [10, 12, 11]})
        self.assertEqual(list(measure.arms), ["off", "stock-off"])
        self.assertEqual(measure.sample("off").median, 11)

    def test_load_reads_what_runs_wrote(self):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            (directory / runner.META).write_text('{"suite": "pgbench"}')
            self.assertEqual(runner.load(directory)[1], [])
            (directory / runner.RUNS).write_text(
                "".join(json.dumps(one) + "\n" for one in results({"off": [1, 2]})))
            meta, runs = runner.load(directory)
            self.assertEqual((meta["suite"], len(runs)), ("pgbench", 2))

    def test_summary_keeps_medians(self):
        runs = results({"off": [1.23456789, 2, 9]}, counts={"wal.wal_bytes": 100, "cpu.total": 0.5},
                       waits={"CPU": 1}, series=[1, 2])
        kept, = summary.of({"suite": "pgbench"}, runs)["measures"]
        arm = kept["arms"]["off"]
        self.assertEqual(arm["values"], [1.23457, 2, 9])
        self.assertEqual((arm["costs"]["WAL bytes"], arm["costs"]["CPU ms"]), (10, 50))
        self.assertNotIn("series", arm)
        self.assertNotIn("parts", arm)
        self.assertNotIn("judged", arm)

    def test_summary_keeps_the_longest_waits(self):
        runs = results({"off": [1]}, waits={f"w{number}": number for number in range(20)})
        kept, = summary.of({}, runs)["measures"]
        self.assertEqual(list(kept["arms"]["off"]["waits"])[0], "w19")
        self.assertEqual(len(kept["arms"]["off"]["waits"]), summary.WAITS)

    def test_tables_are_rectangular(self):
        measure = self.measure({"off": [10, 12], "double_writes": [11, 11]},
                               "scale 10, max_wal_size 64 MB",
                               counts={"wal.wal_bytes": 100, "cpu.total": 1},
                               latency={"p50": 1.0}, extra={"failed": 0}, waits={"CPU": 1},
                               parts={"redo": {"s": 1, "reads": 4, "read_sectors": 64}})
        for rows in (report.overview([measure]), report.speeds(measure), report.costs(measure),
                     report.details(measure), report.waits(measure), report.parts(measure),
                     report.requests(measure),
                     report.causes(measure, "syncs"),
                     report.bar_table("pgbench", [measure])):
            self.assertGreater(len(rows), 1)
            self.assertEqual({len(row) for row in rows}, {len(rows[0])})
            self.assertTrue(all(isinstance(cell, str) for row in rows for cell in row))

    def test_costs_include_the_checkpoint_after(self):
        measure = self.measure({"off": [10]}, counts={"wal.wal_bytes": 100},
                               drain={"wal.wal_bytes": 50})
        self.assertEqual(report.costs(measure)[1][1], "15")

    def test_number(self):
        self.assertEqual([report.number(value) for value in (0, 1234567.8, 12.3456)],
                         ["0", "1,234,568", "12.35"])


class BarsTest(MeasureCase):

    def outcomes(self, measure, suite="pgbench"):
        return {verdict.bar: verdict.outcome for verdict in bars.judge(suite, [measure])}

    def test_pass_miss_and_unclear(self):
        bar = "fits in shared_buffers: double_writes / off"
        for ours, wanted in (((97, 97), bars.PASS), ((90, 91), bars.MISS),
                             ((90, 99), bars.UNCLEAR)):
            measure = self.measure({"off": [100, 100], "double_writes": list(ours)},
                                   "scale 10, max_wal_size 64 MB")
            self.assertEqual(self.outcomes(measure)[bar], wanted)

    def test_bars_need_their_arms_and_cases(self):
        measure = self.measure({"double_writes": [1]})
        self.assertEqual(self.outcomes(measure), {})
        measure = self.measure({"double_writes": [20], "stock-full_pages": [10]})
        self.assertEqual(len(self.outcomes(measure)), 1)
        self.assertEqual(self.outcomes(measure, "replication"), {})

    def test_longest_latency_is_not_judged(self):
        for name, verdicts in (("DROP TABLE, median", 1), ("DROP TABLE, longest", 0)):
            runs = results({"off": [1], "stock-off": [1]}, "DROP and TRUNCATE beside TPC-B")
            for one in runs:
                one["points"][0]["name"] = name
            self.assertEqual(len(bars.judge("parallel", measured(runs))), verdicts)

    def test_mean_of_cases(self):
        runs = [one for case, ours in (("HOT", 2.0), ("tpcb", 8.0))
                for one in results({"stock": [8.0], "pipeline": [ours]}, case)]
        for one in runs:
            one["points"][0].update(name="redo", unit="s", higher_is_better=False)
        verdicts = {verdict.bar: verdict for verdict in bars.judge("recovery", measured(runs))}
        mean = verdicts["redo, mean: pipeline / stock"]
        self.assertEqual((mean.case, mean.outcome), ("2 cases", bars.PASS))
        self.assertAlmostEqual(mean.ratio.value, 2)

    def test_pages_per_write(self):
        runs = results({"double_writes": [1.0]}, "combine 16", extra={"pages_per_write": 14})
        runs[0]["points"][0]["name"] = "sequential"
        verdict, = bars.judge("checkpoints", measured(runs))
        self.assertEqual((verdict.ratio.value, verdict.outcome), (14, bars.MISS))

    def test_first_query(self):
        runs = results({"double_writes": [24.0], "stock-full_pages": [6.0]}, "tpcb-like")
        for one in runs:
            one["points"][0].update(name="until first query", unit="s", higher_is_better=False)
        verdict = bars.judge("restart", measured(runs))[0]
        self.assertEqual((verdict.ratio.value, verdict.outcome), (0.25, bars.MISS))

    def test_volume_is_per_operation(self):
        runs = [*results({"double_writes": [1]}, counts={"dw.logged": 5}, drain={"dw.logged": 5}),
                *results({"full_pages": [1]}, counts={"wal.wal_fpi": 20})]
        verdict = bars.judge("pgbench", measured(runs))[-1]
        self.assertEqual((verdict.ratio.value, verdict.outcome), (2, bars.PASS))


if __name__ == "__main__":
    unittest.main()
