"""pg_doublewrite_advise: what it makes of what it has seen; no servers."""

import contextlib
import importlib.util
import io
import json
import struct
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from devtools import advise as checking
from devtools import generate

PROGRAM = Path(__file__).resolve().parent.parent / "packaging/advise/pg_doublewrite_advise.py"
SPEC = importlib.util.spec_from_file_location("pg_doublewrite_advise", PROGRAM)
advise = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(advise)

STATS = """\
WAL statistics between 0/1000000 and 0/1002000:
Type                                           N      (%)          Record size      (%)             FPI size      (%)        Combined size      (%)
----                                           -      ---          -----------      ---             --------      ---        -------------      ---
XLOG/FPI_FOR_HINT                              2 (  1.56)                  100 (  1.20)                 9000 ( 29.30)                 9100 ( 23.30)
Heap/INSERT+INIT                               7 (  5.47)                  700 (  8.42)                    0 (  0.00)                  700 (  1.79)
                                        --------                      --------                      --------                      --------
Total                                          9                           800 [8.08%]                  9000 [91.92%]                 9800 [100%]
"""                                                                             # noqa: E501


def settings(**changed):
    """Return settings as a sample has them."""
    values = {"full_page_writes": "on", "wal_compression": "off", "archive_mode": "off",
              "checkpoint_completion_target": "0.9", "io_torn_pages_protection": None, **changed}
    found = {name: {"value": value, "unit": None} for name, value in values.items() if value}
    sizes = {"checkpoint_timeout": ("300", "s"), "max_wal_size": ("1024", "MB"),
             "block_size": ("8192", None), "archive_timeout": ("0", "s"),
             "wal_segment_size": ("16777216", "B")}
    return found | {name: {"value": value, "unit": unit} for name, (value, unit) in sizes.items()}


def sample(records, seconds=600, seen=1.0, **changed):
    """Return a sample in which this share of WAL was read."""
    sums = advise.sums_of(records)
    read = (sums["plain_bytes"] + sums["image_record_bytes"] + sums["image_bytes"]) * 8192 / 8168
    count = sums["plain"] + sums["with_image"]

    def at(time, share):
        return {"time": time, "lsn": read / seen * share, "timeline": 1,
                "wal": {"records": count / seen * share, "images": sums["with_image"] * share,
                        "bytes": read / seen * share, "since": 0},
                "checkpoints": {"timed": share, "requested": 0, "since": 0},
                "pages": {"written": 5000 * share, "bulk": 0, "extended": 0}}
    return {"format": advise.FORMAT, "reader": "pg_waldump", "taken": "now", "seconds": seconds,
            "cpu_share": 0.001, "records": records, "misses": 0,
            "server": {"version": "18.6", "number": 180006, "standby": False,
                       "physical_standbys": 2, "database_bytes": 1 << 30,
                       "settings": settings(**changed)},
            "first": at(0, 0), "last": at(seconds, 1),
            "slices": [{"time": seconds / 2, "bytes": read, **sums}],
            "compression": {"pages": 100, "off": 800_000, "lz4": 400_000, "zstd": 200_000}}


# Records of 100 bytes, and as many whose image of 8000 has taken the place of 40 bytes of them.
MUCH = {"Heap/UPDATE": [100_000, 10_000_000, 100_000, 6_000_000, 800_000_000]}


class AdviseTest(unittest.TestCase):

    def analyse(self, *arguments, **options):
        return advise.analyse(sample(*arguments, **options), 1500, 60)

    def test_stats(self):
        records, span = advise.decode_stats(STATS)
        self.assertEqual(records, {"XLOG/FPI_FOR_HINT": (2, 100, 9000),
                                   "Heap/INSERT+INIT": (7, 700, 0)})
        self.assertEqual(span, 0x2000)
        self.assertEqual(advise.decode_stats("nothing"), ({}, 0))

    def test_lsn(self):
        self.assertEqual(advise.lsn_number(advise.lsn_text(0x12_3456_789A)), 0x12_3456_789A)

    def test_images_go_and_data_comes_back(self):
        result = self.analyse(MUCH)
        # 200,000 records of 100 bytes, as if there had been no images.
        self.assertAlmostEqual(result["wal_bytes_after"] / (20_000_000 * 8192 / 8168), 1, 2)
        self.assertAlmostEqual(result["image_share"], 800 / 816, 2)

    def test_images_that_are_data_stay(self):
        kept = {"XLOG/FPI": [0, 0, 1000, 60_000, 8_000_000],
                "Generic/Generic": [0, 0, 10, 600, 80_000]}
        result = self.analyse(kept)
        self.assertAlmostEqual(result["wal_bytes_after"], result["wal_bytes"], 0)
        self.assertEqual(result["verdict"], "not for you")

    def test_parts_not_read_are_told_by_counters(self):
        """Where slices met twice as many images as there were, the counters say so."""
        records = {"Heap/UPDATE": [1000, 100_000, 1000, 60_000, 8_000_000]}
        counters = {"records": 30_000, "bytes": 20_000 * 100 + 10_000 * 8060}
        plain, images = advise.strata(records, counters)
        self.assertAlmostEqual(plain, 20)
        self.assertAlmostEqual(images, 10)

    def test_counters_that_fit_nothing_are_ignored(self):
        self.assertEqual(advise.strata(MUCH, {"records": 0, "bytes": 10}), (1.0, 1.0))

    def test_hole(self):
        page = bytearray(8192)
        struct.pack_into("<HH", page, 12, 100, 8000)
        self.assertEqual(len(advise.without_hole(bytes(page))), 292)
        struct.pack_into("<HH", page, 12, 0, 0)
        self.assertEqual(len(advise.without_hole(bytes(page))), 8192)

    def test_compression_is_measured(self):
        methods = advise.compressors()
        sums = advise.compress([bytes(8192), bytes(range(256)) * 32], methods)
        for name in methods:
            self.assertLess(sums[name], 2000)
        self.assertEqual(advise.compress([b"x" * 8192], {"none": lambda body: 9000})["none"], 8192)

    def test_compression_in_force_is_what_others_are_measured_by(self):
        off, lz4 = self.analyse(MUCH), self.analyse(MUCH, wal_compression="lz4")
        self.assertLess(off["compression"]["lz4"], 0.6 * off["day"]["now"])
        self.assertAlmostEqual(lz4["compression"]["lz4"] / lz4["day"]["now"], 1, 3)
        self.assertEqual(self.analyse(MUCH, wal_compression="pglz")["compression"], {})

    def test_verdicts(self):
        def verdict(*arguments, **options):
            return self.analyse(*arguments, **options)["verdict"]

        few = {"Heap/UPDATE": [1_000_000, 100_000_000, 100, 6_000, 800_000]}
        little = {"Heap/UPDATE": [10, 1_000, 10, 600, 80_000]}
        self.assertEqual(verdict(MUCH), "yes")
        self.assertEqual(verdict(few), "not for you")
        self.assertEqual(verdict(little), "not for you")
        for mode in ("double_writes", "atomic_writes"):
            self.assertEqual(verdict(MUCH, io_torn_pages_protection=mode), "not for you")
        self.assertEqual(verdict(MUCH, full_page_writes="off"), "perhaps")
        given = sample(MUCH)
        given["compression"]["zstd"] = 1000
        self.assertEqual(advise.analyse(given, 1500, 60)["verdict"], "not for you")
        given = sample(MUCH, archive_mode="on")
        given["server"]["settings"]["archive_timeout"]["value"] = "60"
        self.assertEqual(advise.analyse(given, 1500, 60)["verdict"], "perhaps")

    def counts(self, images):
        """Return counts of a server with so many images in each step; records have 100 bytes."""
        found = [{"time": 0, "lsn": 0, "records": 0, "images": 0, "bytes": 0}]
        for number in images:
            last = found[-1]
            length = 1000 * 100 + number * 5000
            found.append({"time": last["time"] + 25, "lsn": last["lsn"] + length + 4000,
                          "records": last["records"] + 1000, "images": last["images"] + number,
                          "bytes": last["bytes"] + length})
        return found

    def test_counters_alone(self):
        records, slices = advise.from_counters(self.counts([800, 300, 100, 50, 700, 300]))
        plain, plain_bytes, with_image, _, image_bytes = records["all"]
        self.assertAlmostEqual(plain_bytes / plain, 100)
        self.assertAlmostEqual(image_bytes / with_image, 5000)
        given = sample(MUCH) | {"records": records, "slices": slices, "reader": "pg_stat_wal",
                                "why": "<no pg_waldump>"}
        given["last"]["lsn"] = sum(one["bytes"] for one in slices)
        given["compression"] = {"pages": 0, "off": 0}
        result = advise.analyse(given, 1500, 60)
        self.assertAlmostEqual(result["wal_bytes_after"] / 624_000, 1, 1)
        self.assertIn("WAL could not be read: <no pg_waldump>.", " ".join(
            advise.as_text(given, result).split()))

    def test_counters_that_tell_nothing(self):
        with self.assertRaisesRegex(advise.AdviseError, "do not tell"):
            advise.from_counters(self.counts([300] * 10))
        with self.assertRaisesRegex(advise.AdviseError, "no WAL was written"):
            advise.from_counters(self.counts([]))
        records, _ = advise.from_counters(self.counts([0] * 10))
        self.assertEqual(records["all"][2:], [0, 0, 0])

    def test_reader(self):
        """What WAL is read with, and that WAL of a standby is not counted."""
        session = mock.Mock(ask=lambda query: "nowhere")
        server = {"number": 180006, "walinspect": False, "standby": False}
        with mock.patch.object(advise, "find_waldump", return_value=None):
            found = advise.find_reader(session, server, None, None)
            self.assertIsInstance(found, advise.Counters)
            with self.assertRaisesRegex(advise.AdviseError, "no pg_waldump"):
                advise.find_reader(session, server | {"standby": True}, None, None)
            found = advise.find_reader(session, server | {"walinspect": True}, None, None)
            self.assertIsInstance(found, advise.Walinspect)

    def test_instant_recovery_reads_wal_once(self):
        """Clients wait for WAL to be read, not for pages, so it grows with WAL alone."""
        work = self.analyse(MUCH)["recovery"]
        least, most = work["instant"]
        self.assertGreater(least, work["then"]["wal"] / 60e6)
        self.assertAlmostEqual(most - least, advise.FIRST_REQUESTS / 1500)
        self.assertLess(most, work["then"]["seconds"][1])
        faster = advise.analyse(sample(MUCH), 1500, 600)["recovery"]["instant"]
        self.assertLess(faster[0], least / 2)

    def test_money(self):
        given = sample(MUCH, archive_mode="on")
        prices = {"storage": 0.02, "iops": 0.005, "mbps": 0.04, "transfer": 0.01, "days": 10}
        self.assertIsNone(advise.analyse(given, 1500, 60)["money"])
        result = advise.analyse(given, 1500, 60, prices)
        found = result["money"]
        now = result["day"]["now"] / 1e9
        self.assertAlmostEqual(found["archive"][0], now * 10 * 0.02)
        # An archive and two standbys.
        self.assertAlmostEqual(found["transfer"][0], 3 * now * 30 * 0.01)
        self.assertEqual(found["requests"][0], 0)
        self.assertGreater(found["requests"][1][1], found["requests"][1][0])
        self.assertAlmostEqual(found["throughput"][1][1],
                               result["log"]["bytes"][1] / advise.DAY / 1e6 * 0.04)
        for end in (0, 1):
            self.assertAlmostEqual(found["sum"][1][end], sum(
                found[name][1][end] for name in ("archive", "transfer", "requests", "throughput")))
        self.assertLess(found["sum"][1][1], found["sum"][0])
        self.assertIn("A month, at your prices", advise.as_text(given, result))
        unarchived = advise.analyse(sample(MUCH), 1500, 60, prices)["money"]
        self.assertEqual(unarchived["archive"], [0, [0, 0]])

    def test_prices_on_the_command_line(self):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "sample.json"
            path.write_text(json.dumps(sample(MUCH, archive_mode="on")))
            _, text, _ = self.run_main("--from", str(path))
            self.assertNotIn("your prices", text)
            self.assertIn("instant_recovery", text)
            _, text, _ = self.run_main("--from", str(path), "--price-storage", "0.023")
            self.assertIn("WAL in the archive", text)
            with self.assertRaises(SystemExit):
                self.run_main("--from", str(path), "--price-iops=-1")

    def test_no_plots_without_their_library(self):
        with mock.patch.dict("sys.modules", matplotlib=None):
            self.assertIn("matplotlib", advise.plots({}, {}))

    def test_nothing_seen_is_an_error(self):
        given = sample(MUCH)
        given["slices"] = []
        with self.assertRaisesRegex(advise.AdviseError, "watch for longer"):
            advise.analyse(given, 1500, 60)

    def run_main(self, *arguments):
        out, errors = io.StringIO(), io.StringIO()
        with mock.patch("sys.argv", ["advise", *arguments]), mock.patch("os.nice"), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = advise.main()
        return status, out.getvalue(), errors.getvalue()

    def test_saved_sample(self):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "sample.json"
            path.write_text(json.dumps(sample(MUCH)))
            status, text, _ = self.run_main("--from", str(path))
            self.assertEqual(status, 0)
            self.assertIn("Verdict: yes.", text)
            self.assertLess(max(map(len, text.splitlines()[:30])), 110)
            status, text, _ = self.run_main("--from", str(path), "--json")
            self.assertEqual(json.loads(text)["verdict"], "yes")
            path.write_text('{"format": 99}')
            status, _, errors = self.run_main("--from", str(path))
            self.assertEqual(status, 1)
            self.assertIn("no sample of this program's version", errors)

    def test_page(self):
        given = sample(MUCH)
        given["taken"] = "<script>"
        with mock.patch.object(advise, "plots", return_value="<svg>"):
            page = advise.as_html(given, advise.analyse(given, 1500, 60))
        self.assertNotIn("<script>", page)
        self.assertNotRegex(page, r"(src|href)=")


class RestartTest(unittest.TestCase):
    """What `./dev advise` makes of restarts; no server is started."""

    def test_missed_is_how_far_it_is_out_of_the_span(self):
        for came, missed in ((0.9, -0.1), (1, 0), (2.5, 0), (3, 0), (3.004, 0), (4.25, 1.25)):
            self.assertEqual(checking.judged((1.0, 3.0), came, 5)["missed"], missed)

    def test_as_much_wal_as_can_follow_a_checkpoint(self):
        server, result = mock.Mock(), advise.analyse(sample(MUCH), 1500, 60)
        with mock.patch("time.sleep") as sleep:
            checking._write_most_wal(server, result)
        then = result["recovery"]["then"]
        self.assertAlmostEqual(sleep.call_args.args[0] / then["interval"], 1.9)

    def test_both_recoveries_of_a_copy(self):
        predicted = {"then": {"seconds": [1, 3]}, "instant": [0.1, 0.5]}
        with tempfile.TemporaryDirectory() as scratch:
            owner = Path(scratch) / "pg_doublewrite" / "owner"
            owner.parent.mkdir()
            owner.touch()
            with mock.patch.object(checking, "_restart", return_value=(2.7, 1.2)), \
                    mock.patch("bench.storage.room", side_effect=(1023, 1024)):
                self.assertEqual(checking._restarts(None, None, Path(scratch), predicted), {})
                found = checking._restarts(None, None, Path(scratch), predicted)
            self.assertFalse(owner.exists())
        self.assertEqual(found["off"], {"predicted": [1, 3], "came": 1.2, "missed": 0, "whole": 2.7})
        self.assertEqual(found["on"]["missed"], 0.7)

    def test_table(self):
        one = checking.judged((0.1, 0.5), 1.2, 2.7)
        loads = [{"load": "a", "restarts": {"on": one}}, {"load": "not measured", "restarts": {}},
                 {"load": "of an older run"}]
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / checking.CHECKED
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"loads": loads}))
            table = generate.restarts(SimpleNamespace(repo=Path(scratch)))
        self.assertEqual(table.splitlines()[2:], ["| a | on | 0.10 to 0.50 | 1.20 | +0.70 | 2.70 |"])


if __name__ == "__main__":
    unittest.main()
