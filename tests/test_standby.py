"""Suite `standby`: what is warm when a standby starts, lag over time, bars, no servers."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench import arms, bars, figures, latency, report, standby, suites, summary


class CatchUpTest(unittest.TestCase):

    def events(self, **options):
        """Return what is done to the volume, and which files are read, in their order."""
        events = []

        def record(name):
            return lambda *_: events.append(name)

        with tempfile.TemporaryDirectory() as scratch, \
                mock.patch.object(Path, "read_bytes", lambda path: events.append(path.name)), \
                mock.patch.multiple(standby, carry_out=mock.DEFAULT, postgres=mock.DEFAULT), \
                mock.patch.multiple(standby.counters, devices=lambda *_: {}, snapshot=lambda *_: {}):
            servers = []
            for name in ("primary", "standby"):
                data = Path(scratch) / name
                for path in ("pg_wal/00A", "pg_wal/archive_status", "base/5/16384", "global/1260"):
                    (data / path).parent.mkdir(parents=True, exist_ok=True)
                    (data / path).write_text("")
                (data / "base/5/16385").write_text("a table")
                servers.append(mock.MagicMock(data=data))
            servers[0].sql.return_value = "8192"
            servers[1].sql.return_value = "t"
            servers[1].start = record("start")
            volume = SimpleNamespace(**{name: record(name) for name in ("hold", "release", "cool")})
            point, answered = standby.CatchUp(100, (), **options)(SimpleNamespace(
                server=servers[0], standby=servers[1], volume=volume))
        self.assertEqual((point.name, point.extra["WAL kB"]), ("until caught up", 8))
        self.assertEqual(answered.name, "until a query is answered then")
        return events

    def test_cold(self):
        with mock.patch.object(standby, "CATALOG_BYTES", 0):
            self.assertEqual(self.events(),
                             ["release", "cool", "00A", "16384", "hold", "start", "release"])

    def test_warm(self):
        events = self.events(warm=True)
        self.assertEqual(events[:3] + sorted(events[3:5]) + events[5:],
                         ["release", "cool", "00A", "16384", "16385", "hold", "start", "release"])


class StandbyCrashTest(unittest.TestCase):

    def test_begins_at_a_restartpoint_and_notes_how_far_it_is(self):
        events, lsn = [], "0/1"
        server, servers = mock.MagicMock(), mock.MagicMock()
        server.sql.side_effect = lambda text: events.append(f"primary: {text[:10]}") or lsn
        servers.sql.side_effect = lambda text: events.append(f"standby: {text[:10]}") or "t"
        servers.stop.side_effect = events.append
        servers.data.glob.return_value = []
        volume = SimpleNamespace(**{name: mock.Mock(side_effect=lambda name=name: events.append(name))
                                    for name in ("hold", "release", "cool")})
        with mock.patch.object(standby, "carry_out", lambda *_: events.append("load")), \
                mock.patch.multiple(standby.counters, devices=lambda *_: {}, snapshot=lambda *_: {}):
            point, = standby.StandbyCrash(100, ())(SimpleNamespace(
                server=server, standby=servers, volume=volume))
        self.assertEqual(point.name, "until first query")
        self.assertEqual([event for event in events if ": SELECT pg" not in event],
                         ["release", "primary: CHECKPOINT", "standby: CHECKPOINT", "load",
                          "standby: CHECKPOINT", "immediate", "cool", "hold", "standby: SELECT 1", "release"])


class ReplayLagTest(unittest.TestCase):

    def test_look(self):
        session = SimpleNamespace(server=SimpleNamespace(rows=lambda query: [["4096", "0.25"]]))
        self.assertEqual(standby.ReplayLag().look(session)(), [4096, 0.25])

    def test_points(self):
        samples = [(second, [1000.0 * second, second / 10]) for second in (1, 3, 2, 99)]
        points = standby.ReplayLag.points(samples, 1)
        self.assertEqual([(one.name, one.value) for one in points[:4]],
                         [("replay lag in bytes, median", 2000),
                          ("replay lag in bytes, 99th percentile", 3000),
                          ("replay lag in bytes, largest", 3000),
                          ("replay lag in seconds, median", 0.2)])
        self.assertEqual(points[0].trace, {"step": 1, "values": [1000, 3000, 2000]})
        self.assertEqual([bool(one.trace) for one in points], [True, False, False] * 2)
        kept = summary.of({}, [run("steady, asynchronous", "off", points[0].as_dict())])
        self.assertEqual(kept["measures"][0]["arms"]["off"]["trace"], points[0].trace)


class CasesTest(unittest.TestCase):

    def test_rate_is_fixed_unless_another_is_given(self):
        steady = [case for case in suites.cases("standby", 0.1) if case.name.startswith("steady")]
        self.assertEqual([case.settings.get("synchronous_commit") for case in steady],
                         [None, "remote_apply"])
        for case in steady:
            stream, = case.load.streams
            self.assertIsInstance(case.load, latency.OpenLoop)
            self.assertEqual([stream.rate(SimpleNamespace(pace=pace)) for pace in (0, 200)], [300, 200])

    def test_documents_are_those_of_restarts(self):
        one, other = (next(case for case in suites.cases(name, 0.1) if case.name == "documents")
                      for name in ("standby", "restart"))
        self.assertEqual((one.load.arguments, one.dataset.name), (other.load.arguments, other.dataset.name))

    def test_arm_without_look_ahead(self):
        self.assertNotIn("no_look_ahead", [arm.name for arm in arms.choose([], restarting=True)])
        self.assertEqual([arm.name for arm in arms.choose(["no_look_ahead"])], ["no_look_ahead"])
        self.assertLessEqual(set(suites.ARMS_OF["standby"]), set(arms.ARMS))


class BarsTest(unittest.TestCase):

    def verdicts(self, case, name, values):
        measures = report.measures(summary.of({}, [
            run(case, arm, {"name": name, "value": value, "unit": "s", "higher_is_better": False,
                            "operations": 1}) for arm, value in values.items()]))
        return {one.bar: (one.ratio.value, one.outcome) for one in bars.judge("standby", measures)}

    def test_catch_up(self):
        found = self.verdicts("tpcb-like", "until caught up", {
            "double_writes": 8, "stock-full_pages": 40, "stock-full_pages+zstd": 20, "stock-off": 12})
        self.assertEqual(found, {"catch-up: 10 s / double_writes": (1.25, bars.PASS),
                                 "catch-up: double_writes / fastest arm of stock": (1.5, bars.MISS)})

    def test_fastest_arm_of_stock_must_have_been_run(self):
        self.assertEqual(len(self.verdicts("tpcb-like", "until caught up", {
            "double_writes": 8, "stock-full_pages": 40})), 1)

    def test_readers(self):
        for waited, outcome in ((129, bars.PASS), (131, bars.MISS)):
            (_, found), = self.verdicts("tpcb-like, readers", "readers, 99th percentile", {
                "double_writes": waited, "no_look_ahead": 100}).values()
            self.assertEqual(found, outcome)

    def test_rows_of_figures_are_of_cases(self):
        names = {case.name for case in suites.cases("standby", 1)}
        rows = [row for row in figures.MATTER if row.suite == "standby"]
        self.assertEqual(len(rows), 4)
        self.assertLessEqual({row.case for row in rows}, names)
        self.assertLessEqual(len(figures.MATTER), figures.ROOM)


def run(case, arm, point):
    """Return a run of one point."""
    return {"case": case, "arm": arm, "load_average": 1, "points": [point]}


if __name__ == "__main__":
    unittest.main()
