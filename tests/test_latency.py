"""Loads at a fixed rate: latencies over time, lines through what grows, restart by WAL, no servers."""

import argparse
import os
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench import (
    bars,
    cli,
    clients,
    latency,
    money,
    report,
    restart,
    sceptic,
    stats,
    storage,
    suites,
    summary,
)

# Two transactions that were due in second 99, one of which stood in a queue for two seconds; one
# of second 102; one that failed.
LOG = """\
0 1 1500 0 99 901500 0
1 1 2100000 0 102 0 2000000
0 2 4000 0 102 904000 10
1 2 failed 0 102 950000 10
"""


class WaitsTest(unittest.TestCase):

    def waits(self, step=1):
        waits, every = latency.Waits(step), Counter()
        waits.count(LOG.splitlines(), every)
        return waits, every

    def test_by_when_a_transaction_was_due(self):
        waits, every = self.waits()
        self.assertEqual(every, {1.5: 1, 2100: 1, 4: 1})
        self.assertEqual(waits.trace(100), {"step": 1, "values": [2100, None, None, 4]})
        self.assertEqual(waits.trace(50)["values"][0], 1.5)

    def test_longer_steps(self):
        self.assertEqual(self.waits(50)[0].trace(100)["values"], [2100, 4])
        self.assertEqual(latency.Waits(1).trace(50)["values"], [])

    def test_streams_run_at_their_rate(self):
        seen = []

        def pgbench(server, arguments, seconds, raw, number=None, label="", count=None):
            seen.append((arguments[0], seconds, label))
            count(LOG.splitlines(), Counter())
            return clients.Outcome(90.0, 5400, 0, [], {"p50": 2, "p99": 4, "p99.9": 5, "max": 2100})

        loop = latency.OpenLoop((latency.Stream("TPC-B", (), 0.9), latency.Stream("reads", (), 0.5)))
        session = SimpleNamespace(server=None, raw=None, seconds=100, pace=100)
        with mock.patch.object(clients, "pgbench", pgbench), \
                mock.patch.object(latency, "prewarm", lambda session: None), \
                mock.patch.object(latency, "measure", lambda session, name, load: [load()]):
            outcome, *points = loop(session)
        self.assertEqual(sorted(seen), [("--rate=50.000", 20, "-reads"), ("--rate=50.000", 100, "-reads"),
                                        ("--rate=90.000", 20, "-TPC-B"), ("--rate=90.000", 100, "-TPC-B")])
        self.assertEqual(outcome.tps, 90)
        self.assertEqual([(one.name, one.value) for one in points[:4]],
                         [("TPC-B, median", 2), ("TPC-B, 99th percentile", 4),
                          ("TPC-B, 99.9th percentile", 5), ("TPC-B, longest", 2100)])
        self.assertEqual(points[0].extra, {"rate": 90, "of it": 1})
        self.assertEqual(points[3].trace["values"], [2100, None, None, 4])
        self.assertEqual(points[4].extra["of it"], 1.8)


class GrowthTest(unittest.TestCase):

    def test_line(self):
        times = list(range(120))
        line = stats.line(times, [100 + 2 * time for time in times])
        self.assertAlmostEqual(line.slope, 2)
        self.assertAlmostEqual(line.low, 2)
        self.assertAlmostEqual(line.flatness()[0], 100 / 338)
        self.assertIsNone(stats.line([1, 2], [1, 2]))

    def test_bounds_of_a_saw_tooth_include_flat(self):
        times = list(range(1200))
        line = stats.line(times, [50 + time % 70 for time in times])
        self.assertLess(line.low, 0)
        self.assertGreater(line.high, 0)
        value, low, high = line.flatness()
        self.assertTrue(low < value < high)
        self.assertTrue(low < 1 < high)

    def test_nothing_is_flat(self):
        self.assertEqual(stats.line(range(24), [0] * 24).flatness(), (1, 1, 1))

    def test_points(self):
        samples = [(10 * number, {"PSS, MB": 94 + number, "processes": 9}) for number in range(31)]
        memory, processes = latency.Growth.points(samples, 10)
        self.assertEqual((memory.name, memory.unit, processes.unit), ("PSS, MB", "MB", "processes"))
        self.assertAlmostEqual(memory.extra["an hour"], 360)
        # Without what was before connections were old, and without what is after them.
        self.assertEqual(memory.trace["values"][:2], [101, 102])
        self.assertEqual(memory.trace["values"][-1], 123)
        self.assertEqual(latency.Growth.points(samples[:3], 10)[0].extra, {})

    def test_growth_is_a_missed_bar(self):
        for growth, outcome in ((1, bars.MISS), (0, bars.PASS)):
            samples = [(10 * n, {"PSS, MB": 100 + n * growth}) for n in range(31)]
            point, = latency.Growth.points(samples, 10)
            runs = [{"case": "TPC-B, two thirds", "arm": "double_writes", "load_average": 1,
                     "points": [point.as_dict()]}]
            kept = summary.of({}, runs)
            self.assertEqual(kept["measures"][0]["arms"]["double_writes"]["trace"]["step"], 10)
            verdict, = bars.judge("soak", report.measures(kept))
            self.assertEqual(verdict.outcome, outcome)

    def test_resources_of_a_process(self):
        found = latency.resources([os.getpid(), 2 ** 22 + 1])
        self.assertEqual(found["processes"], 1)
        self.assertGreater(found["descriptors"], 2)
        self.assertGreaterEqual(found["RSS, MB"], found["PSS, MB"])
        self.assertGreater(found["PSS, MB"], 0)

    def test_wal_a_second(self):
        samples = [(0, 0.0), (1, 1e6), (2, 5e6), (3, 6e6), (3.001, 6.003e6)]
        mean, largest = latency.WalVolume.points(samples, 1)
        self.assertEqual((mean.value, largest.value), (2.0003, 4))
        self.assertEqual(mean.trace["values"], [1, 4, 1])
        self.assertEqual(largest.extra, {"largest / mean": 2.0})


class BarsTest(unittest.TestCase):

    def test_tails_against_off(self):
        points = [{"name": f"TPC-B, {name}", "value": value, "unit": "ms", "higher_is_better": False,
                   "operations": 1} for name, value in (("99th percentile", 109), ("longest", 999))]
        runs = [{"case": "TPC-B, a third", "arm": arm, "load_average": 1, "points": [
            {**point, "value": point["value"] if arm == "double_writes" else 100} for point in points]}
            for arm in ("off", "double_writes")]
        verdicts = bars.judge("latency", report.measures(summary.of({}, runs)))
        self.assertEqual([(one.point, one.outcome) for one in verdicts],
                         [("TPC-B, 99th percentile", bars.PASS)])


class RestartWalTest(unittest.TestCase):

    def test_until_full(self):
        self.assertEqual(restart.until_full([0, 300, 899, 900, 10], 1000),
                         (4, {"TPS before the crash": 1000, "not reached": 0}))
        self.assertEqual(restart.until_full([0, 300], 1000)[0], 2)
        self.assertEqual(restart.until_full([0, 300], 1000)[1]["not reached"], 1)

    def test_wal_is_written_in_rounds(self):
        """Images make the first transactions write more; no round goes far beyond what is wanted."""
        written, rounds = [0.0], []

        def carry_out(server, transactions, arguments, seed):
            rounds.append((transactions, seed))
            for _ in range(transactions):
                written[0] += 1e5 if written[0] < 20e6 else 1e4

        load = restart.RestartWal(0, (), megabytes=50, updates=("--file=wide.sql",))
        with mock.patch.object(restart, "carry_out", carry_out), \
                mock.patch.object(restart, "wal_since", lambda *args: written[0]):
            load.load(SimpleNamespace(server=None), "0/0")
        self.assertLess(0.97 * 50 * (1 << 20), written[0])
        self.assertLess(written[0], 1.1 * 50 * (1 << 20))
        self.assertEqual(len({seed for _, seed in rounds}), len(rounds))


class PlanTest(unittest.TestCase):

    def cases(self, **given):
        arguments = {"what": "latency", "factor": 0.01, "case": "*", "storage": "memory", "rate": 0}
        return [case.name for case in cli._cases(SimpleNamespace(**{**arguments, **given}))]

    def test_the_rate_is_found_first_unless_given(self):
        self.assertEqual(self.cases(case="*a third"), ["capacity", "TPC-B, a third"])
        self.assertEqual(self.cases(case="*a third", rate=100), ["TPC-B, a third"])
        self.assertEqual(self.cases()[0], "capacity")
        self.assertNotIn("capacity", self.cases(rate=100))

    def test_what_does_not_fit_is_left_out(self):
        with mock.patch.object(storage, "room", lambda profile: 100), mock.patch.object(cli, "note"):
            self.assertEqual(self.cases(what="restart_wal"), ["50 MB", "200 MB", "1 GB"])
        self.assertIn("10 GB", self.cases(what="restart_wal"))

    def test_rows_of_scripts_are_those_of_the_tables(self):
        for factor in (0.01, 1):
            case = suites.cases("restart_wal", factor)[0]
            scale = int(case.dataset.name.split("-")[1])
            self.assertIn(f"--define=rows={scale * 100_000}", case.load.updates)

    def test_scripts_are_there(self):
        for name in ("ycsb", "restart_wal"):
            for case in suites.cases(name, 1):
                files = [argument for argument in (*case.load.arguments, *getattr(case.load, "updates", ()))
                         if argument.startswith("--file=")]
                self.assertTrue(files)
                for argument in files:
                    self.assertTrue(Path(argument.removeprefix("--file=").partition("@")[0]).exists())

    def test_default_arms_exist(self):
        for name in (*sceptic.LATENCY_ARMS, *suites.ARMS_OF["restart_wal"]):
            self.assertIn(name, cli.arms.ARMS)


class MoneyTest(unittest.TestCase):

    COSTS = {"WAL bytes": 1000, "device writes": 2, "device reads": 1, "device flushes": 1,
             "device kB written": 10, "device kB read": 5}

    def tables(self, *options):
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        arms = {arm: {"values": [tps], "costs": self.COSTS}
                for arm, tps in (("off", 500), ("double_writes", 400))}
        measures = [report.Measure("TPC-B", name, unit, True, arms)
                    for name, unit in (("tps", "transactions/s"), ("redo", "s"))]
        return money.tables(measures, parser.parse_args(["report", "DIR", *options]))

    def test_nothing_without_prices(self):
        self.assertEqual(self.tables(), [])

    def test_all_arms_at_the_rate_of_the_slowest(self):
        (title, rows), = self.tables("--price-iops=0.005", "--price-storage=0.023", "--price-mbps=0.04")
        self.assertIn("400 transactions a second", title)
        self.assertEqual(rows[1][1:4], ("34.56", "1,600", "6.144"))
        archive, sent, requests, throughput, total = map(float, rows[1][4:])
        self.assertAlmostEqual(archive, 34.56 * 7 * 0.023, places=2)
        self.assertEqual((sent, requests), (0, 8))
        self.assertAlmostEqual(total, archive + requests + throughput, delta=0.02)
        self.assertEqual(len(rows), 3)

    def test_at_another_rate(self):
        (title, _), = self.tables("--price-transfer=0.01", "--rate=1000")
        self.assertIn("1,000 transactions", title)


class DiskTest(unittest.TestCase):

    def test_megabytes_of_files(self):
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "one").write_bytes(b"1" * (1 << 20))
            self.assertAlmostEqual(latency._megabytes(Path(scratch)), 1, delta=0.1)


if __name__ == "__main__":
    unittest.main()
