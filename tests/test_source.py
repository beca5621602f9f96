"""Where the source comes from, and which releases are accepted."""

import contextlib
import functools
import io
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import TestCase, mock

from fixture import RepositoryCase

from common.base import DevError
from devtools import apt, cli, deb, lock, source

CONSTANTS = {"CATALOG_VERSION_NO": "202506291", "PG_CONTROL_VERSION": "1800",
             "PG_PAGE_LAYOUT_VERSION": "4", "XLOG_PAGE_MAGIC": "0xD118"}


class SourceCase(RepositoryCase):
    """A test that makes tarballs, and pins one."""

    def setUp(self):
        super().setUp()
        without = mock.patch.dict(os.environ)
        without.start()
        self.addCleanup(without.stop)
        os.environ.pop("PGDW_TARBALL", None)

    def tarball(self, version, **constants):
        """Make a release tarball with the right, or given, constants."""
        with tempfile.TemporaryDirectory() as scratch:
            top = Path(scratch) / f"postgresql-{version}"
            for name, value in {**CONSTANTS, **constants}.items():
                header = top / lock.CONSTANTS[name]
                self.write(header, f"#define {name}\t{value}\t/* x */\n")
            made = self.paths.root / f"{version}.tar.bz2"
            subprocess.run(["tar", "-cjf", made, "-C", scratch, top.name], check=True)
        return made

    def pin(self, tarball, version="18.6"):
        """Write upstream.lock for a tarball."""
        fields = {"version": version, "sha256": source.sha256(tarball),
                  "url": "https://example.org/{version}.tar.bz2", **CONSTANTS}
        self.write(self.paths.lock_file, "".join(f"{k} = {v}\n" for k, v in fields.items()))


class EnsureTest(SourceCase):
    """Only named tarballs and the cache: no test here uses the network."""

    def setUp(self):
        super().setUp()
        offline = mock.patch.multiple(source, _from_apt=lambda *_: None,
                                      _download=lambda *_: False)
        offline.start()
        self.addCleanup(offline.stop)

    def ensure(self, tarball=None):
        return source.ensure(self.paths, lambda _: None, tarball)

    def test_pinned_release(self):
        tarball = self.tarball("18.6")
        self.pin(tarball)
        found = self.ensure(str(tarball))
        self.assertEqual(found.version, "18.6")
        self.assertTrue(Path(found.tree, "src/include/catalog/catversion.h").exists())
        self.assertEqual(self.ensure(), found)

    def test_tarball_of_the_environment(self):
        tarball = self.tarball("18.6")
        self.pin(tarball)
        os.environ["PGDW_TARBALL"] = str(tarball)
        self.assertEqual(self.ensure().version, "18.6")

    def test_wrong_checksum(self):
        self.pin(self.tarball("18.6"))
        other = self.tarball("18.6", PG_CONTROL_VERSION="1801")
        with self.assertRaisesRegex(DevError, "checksum"):
            self.ensure(str(other))

    def test_other_releases(self):
        self.pin(self.tarball("18.6"))
        for version in ("18.5", "18.7", "19.1", "18beta1"):
            with self.subTest(version), \
                    self.assertRaisesRegex(DevError, "wanted postgresql-18.6") as caught:
                self.ensure(str(self.tarball(version)))
            self.assertIn("./dev source --pin", caught.exception.hint)

    def test_pin_of_a_named_tarball(self):
        self.pin(self.tarball("18.6"))
        found = source.pin(self.paths, lambda _: None, str(self.tarball("18.11")))
        self.assertEqual(found.version, "18.11")
        self.assertEqual(self.ensure(), found)

    def test_pin_is_refused(self):
        """The pin stays if the release is no later one, or does not fit."""
        self.pin(self.tarball("18.6"))
        pinned = self.paths.lock_file.read_text()
        for version, constants, refusal, words in (
                ("18.6", {}, None, "wanted a later release than postgresql-18.6"),
                ("19.1", {}, None, "wanted a later release than postgresql-18.6"),
                ("18.7", {"CATALOG_VERSION_NO": "202599999"}, None,
                 "stays at 18.6, .* CATALOG_VERSION_NO is 202599999"),
                ("18.7", {}, "0001 does not apply", "stays at 18.6, .* 0001 does not apply")):
            with self.subTest(words), self.assertRaisesRegex(DevError, words):
                source.pin(self.paths, lambda _: refusal, str(self.tarball(version, **constants)))
            self.assertEqual(self.paths.lock_file.read_text(), pinned)

    def test_pin_of_another_compression_is_refused(self):
        """Its checksum would fit neither the url in upstream.lock nor Debian's tarball."""
        self.pin(self.tarball("18.6"))
        pinned = self.paths.lock_file.read_text()
        for ending in ("gz", "xz"):
            with self.subTest(ending), self.assertRaisesRegex(DevError, "stays at 18.6") as caught:
                source.pin(self.paths, lambda _: None, f"postgresql-18.7.tar.{ending}")
            self.assertIn(".tar.bz2 with --tarball", caught.exception.hint)
        self.assertEqual(self.paths.lock_file.read_text(), pinned)

    def test_pin_is_moved_at_once(self):
        """A command that is killed before leaves the file as it was."""
        self.pin(self.tarball("18.6"))
        pinned = self.paths.lock_file.read_text()
        with mock.patch.object(os, "replace", side_effect=OSError), self.assertRaises(OSError):
            lock.move(self.paths.lock_file, "18.7", "0" * 64)
        self.assertEqual(self.paths.lock_file.read_text(), pinned)

    def test_cached_tarball(self):
        tarball = self.tarball("18.6")
        self.pin(tarball)
        (self.paths.root / "sources").mkdir()
        tarball.rename(self.paths.root / "sources" / "postgresql-18.6.tar.bz2")
        self.assertEqual(self.ensure().version, "18.6")

    def test_nothing_to_be_had(self):
        self.pin(self.tarball("18.6"))
        with self.assertRaises(DevError) as caught:
            self.ensure()
        self.assertIn("PGDW_TARBALL", caught.exception.hint)


class MinorReleaseTest(SourceCase):
    """What commands take of an archive that has a later release, before and after the pin moves."""

    def setUp(self):
        super().setUp()
        self.releases = {version: self.tarball(version) for version in ("18.6", "18.7")}
        self.pin(self.releases["18.6"])
        self.versions = ["18.7-1", "18.6-3", "18.6-1"]
        self.second_mirror = []
        self.fetched = []
        self.download = mock.Mock(return_value=False)
        for target, stand_ins in (
                (source, {"_download": self.download}),
                (apt, {"machine_archives": lambda: [apt.Archive(f"http://{name}.example", (), (), "")
                                                    for name in ("first", "second")],
                       "PrivateApt": self.private_apt}),
                (cli.deps, {"ensure": mock.DEFAULT}), (cli.chroot, {"require_root": mock.DEFAULT}),
                (cli.worktree, {"refusal": lambda *_: None})):
            patcher = mock.patch.multiple(target, **stand_ins)
            patcher.start()
            self.addCleanup(patcher.stop)

    def private_apt(self, directory, archive, **_):
        """Give an apt that has the sources of self.versions, or of self.second_mirror."""
        versions = self.second_mirror if "second" in archive.uri else self.versions

        def download(package, version):
            assert version in versions
            self.fetched.append(version)
            release = apt.upstream_part(version)
            directory.mkdir(parents=True, exist_ok=True)
            return Path(shutil.copy(self.releases[release],
                                    directory / f"{package}_{release}.orig.tar.bz2"))
        return mock.Mock(versions=lambda _: versions, download=download,
                         download_source=lambda package, version: f"{package}_{version}.dsc")

    def run_command(self, *words):
        """Run a command of ./dev; returns its status and what it prints."""
        args = cli._parser().parse_args(words)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = args.handler(self.paths, args) or 0
        return status, printed.getvalue().strip()

    def taken(self):
        """Return what each command takes: {command: release, or source version}."""
        taken = {"source": self.run_command("source")[1].rpartition("-")[2]}
        with mock.patch.multiple(deb.chroot, fresh=mock.DEFAULT), \
                mock.patch.object(deb, "run", side_effect=lambda command, **_:
                                  taken.update(deb=command[3]) or self.fail_on_purpose()), \
                self.assertRaisesRegex(DevError, "on purpose"):
            self.run_command("deb")
        with mock.patch.object(cli.dist, "_build", side_effect=lambda _, upstream, name, __:
                               taken.update(dist=name) or self.fail_on_purpose()), \
                self.assertRaisesRegex(DevError, "on purpose"):
            self.run_command("dist")
        with mock.patch.object(cli.build, "build", side_effect=lambda _, kind, tree:
                               taken.update(build=tree.name)):
            self.run_command("build", "stock")
        return taken

    @staticmethod
    def fail_on_purpose():
        raise DevError("on purpose")

    def of(self, release, revision):
        """Return what each command takes if all take the same release."""
        return {"source": release, "deb": f"postgresql-18_{release}-{revision}.dsc",
                "dist": f"postgresql-{release}-dw-linux-x86_64", "build": f"postgresql-{release}"}

    def test_all_commands_take_what_is_pinned(self):
        self.assertEqual(self.taken(), self.of("18.6", 3))
        status, said = self.run_command("source", "--check")
        self.assertEqual(status, 1)
        self.assertRegex(said, "18.7-1.*source --pin.*changelog.*dev test.*lint.*commit.*deb --test.*publish")

        before = self.paths.lock_file.read_text()
        self.assertEqual(self.run_command("source", "--pin")[0], 0)
        self.assertEqual(self.paths.lock_file.read_text(),
                         before.replace("18.6", "18.7").replace(
                             source.sha256(self.releases["18.6"]),
                             source.sha256(self.releases["18.7"])))
        self.assertEqual(self.taken(), self.of("18.7", 1))
        self.assertEqual(self.run_command("source", "--check"),
                         (0, "18.7 is not behind: the archive has 18.7-1"))

        # An older commit has the older pin.
        self.paths.lock_file.write_text(before)
        self.assertEqual(self.taken(), self.of("18.6", 3))
        self.download.assert_not_called()

    def test_pin_of_the_newest_stays(self):
        self.versions = ["18.6-3"]
        before = self.paths.lock_file.read_text()
        self.run_command("source", "--pin")
        self.assertEqual(self.paths.lock_file.read_text(), before)
        self.assertEqual(self.taken(), self.of("18.6", 3))

    def test_archive_drops_the_pinned_release_that_is_in_use(self):
        """Packages of another release than that of the tests are not made."""
        self.run_command("source")
        self.versions = ["18.7-1"]
        with mock.patch.multiple(deb.chroot, fresh=mock.DEFAULT), \
                self.assertRaisesRegex(DevError, "source package postgresql-18 of 18.6") as caught:
            self.run_command("deb")
        self.assertIn("./dev source --pin", caught.exception.hint)

    def test_no_origin_has_the_pinned_release(self):
        """A later one stands in, for all commands; its origin comes last."""
        self.versions = ["18.7-1"]
        self.assertEqual(self.taken(), self.of("18.7", 1))
        self.download.assert_called_once()
        self.assertEqual(self.run_command("source", "--check")[0], 1)

    def test_stand_in_is_named_each_time_and_replaced(self):
        """`./dev source` asks for the pinned release again, other commands do not."""
        self.versions = ["18.7-1"]
        with mock.patch.object(source, "note") as note:
            self.run_command("source")
            note.reset_mock()
            self.assertEqual(cli._obtain(self.paths).version, "18.7")
            self.assertRegex(note.call_args[0][0], "using 18.7, .* pinned 18.6; .*source --pin")
            self.download.assert_called_once()

            self.versions = []      # a mirror out of reach: the stand-in stays, in place of a failure
            note.reset_mock()
            self.assertEqual(self.run_command("source")[1].rpartition("-")[2], "18.7")
            self.assertRegex(note.call_args[0][0], "using 18.7")

            self.versions = ["18.7-1", "18.6-3"]
            note.reset_mock()
            self.assertEqual(self.run_command("source")[1].rpartition("-")[2], "18.6")
            self.assertEqual(cli._obtain(self.paths).version, "18.6")
            note.assert_not_called()

    def test_all_mirrors_are_asked_for_the_pinned_release_first(self):
        self.versions, self.second_mirror = ["18.7-1"], ["18.6-3"]
        self.assertEqual(self.taken(), self.of("18.6", 3))
        self.assertEqual(self.fetched, ["18.6-3"])
        self.download.assert_not_called()

    def test_packages_need_root_before_anything_is_fetched(self):
        with mock.patch.object(cli.chroot, "require_root", self.fail_on_purpose), \
                self.assertRaisesRegex(DevError, "on purpose"):
            self.run_command("deb")
        self.assertEqual(self.fetched, [])

    def test_tests_of_packages_need_the_source_only_beside_stock(self):
        """sid has stock's packages of 18, trixie those of 17."""
        self.write(self.paths.repo / "packaging" / "debian" / "tests" / "control", "")
        for suite, fetched in (("sid", []), ("trixie", ["18.6-3"])):
            self.write(deb.packages(self.paths, deb.SUITES[suite]) / "Packages", "")
            with mock.patch.object(deb.chroot, "call"), \
                    mock.patch.object(deb, "stock", return_value=Path("stock")):
                self.run_command("deb", "--test-only", "--suite", suite)
            self.assertEqual(self.fetched, fetched)

    def test_official_release_comes_before_a_later_one(self):
        self.versions = ["18.7-1"]
        self.download.side_effect = lambda _, target: shutil.copy(self.releases["18.6"], target)
        self.assertEqual(self.run_command("source")[1].rpartition("-")[2], "18.6")
        self.assertEqual(self.fetched, [])


class ScheduledCheckTest(RepositoryCase):
    """packaging/cron.d, with another program for ./dev."""

    FILE = Path(__file__).resolve().parent.parent / "packaging" / "cron.d" / "double-writes"

    def test_speaks_only_of_failures(self):
        *_, line = self.FILE.read_text().splitlines()
        *_, user, command = line.split(None, 6)[4:]
        self.assertEqual(user, "root")
        self.assertNotIn("%", command, "which cron takes for the end of a line")
        for status, printed in ((0, ""), (1, "arguments: source --check\n")):
            program = self.paths.repo / "dev"
            self.write(program, f'#!/bin/sh\necho "arguments: $*" >&2\nexit {status}\n')
            program.chmod(0o755)
            done = subprocess.run(["sh", "-c", command.replace("/srv/double-writes",
                                                               str(self.paths.repo))],
                                  check=True, capture_output=True, text=True)
            self.assertEqual((done.stdout, done.stderr), (printed, ""))

    def test_name_is_one_that_cron_reads(self):
        self.assertRegex(self.FILE.name, r"^[A-Za-z0-9_-]+$")


class ArchiveTest(RepositoryCase):
    """What the archive has, of which apt is not asked."""

    def offering(self, *versions, served=True):
        self.write(self.paths.lock_file, "version = 18.6\nsha256 = x\nurl = x\n" +
                   "".join(f"{k} = {v}\n" for k, v in CONSTANTS.items()))
        asked = mock.patch.multiple(
            apt, offers=lambda *_: list(versions),
            fetch=lambda *_: Path("tarball") if served else None)
        asked.start()
        self.addCleanup(asked.stop)

    def test_newest(self):
        for versions in (("18.6-3", "18.6-1", "18.5-1"), ("18.5-1",)):
            with self.subTest(versions):
                self.offering(*versions)
                self.assertTrue(source.behind(self.paths).good)

    def test_behind(self):
        self.offering("18.10-1", "18.9-2", "18.6-3")
        answer = source.behind(self.paths)
        self.assertFalse(answer.good)
        self.assertIn("18.10-1", answer.text)

    def test_archive_without_sources(self):
        """Nothing is known then, which is not as if nothing were newer."""
        self.offering()
        with self.assertRaisesRegex(DevError, "has no source"):
            source.behind(self.paths)

    def test_next_major_release(self):
        for versions, served, good, words in (
                ((), True, False, "has no source"),
                (("19~rc1-1",), False, False, "does not serve"),
                (("19~rc1-1",), True, False, "no release yet"),
                (("19.0-1", "19~rc1-1"), True, True, "serves the source of 19.0-1")):
            with self.subTest(versions=versions, served=served):
                self.offering(*versions, served=served)
                answer = source.served(self.paths, 19)
                self.assertEqual(answer.good, good)
                self.assertIn(words, answer.text)


class AptSourcesTest(TestCase):

    def test_one_line_format(self):
        found = apt.parse_list(
            "# deb http://commented.example main\n"
            "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian stable main contrib # x\n"
            "deb-src http://m.example/debian stable main\n")
        self.assertEqual(found, [
            apt.Archive("http://m.example/debian", ("stable",), ("main", "contrib"), "/k.gpg"),
            apt.Archive("http://m.example/debian", ("stable",), ("main",), "")])

    def test_stanza_format(self):
        found = apt.parse_deb822(
            "Types: deb\n# a comment\nURIs: http://m.example/debian\nSuites: bookworm\n"
            " bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN-----\n .\n abc\n"
            "\n\nEnabled: no\nTypes: deb\nURIs: http://off.example\nSuites: x\nComponents: main\n")
        self.assertEqual(found, [
            apt.Archive("http://m.example/debian", ("bookworm", "bookworm-updates"), ("main",),
                        "-----BEGIN-----\n .\n abc")])

    def test_private_state(self):
        """Of sources, or of packages as if none were installed."""
        archive = apt.Archive("http://m.example/debian", ("stable",), ("main",), "/k.gpg")
        for binaries, kind in ((False, "deb-src"), (True, "deb")):
            with self.subTest(kind), tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch)
                config = apt.PrivateApt(place, archive, binaries).config.read_text()
                text = (place / "parts" / "upstream.sources").read_text()
                self.assertIn(f"Types: {kind}\n", text)
                self.assertEqual(f'status "{place}/status"' in config, binaries)
                self.assertEqual((place / "status").exists(), binaries)

    def test_versions_come_newest_first(self):
        listing = "".join(f"Package: x\nVersion: {version}\n\n"
                          for version in ("18.9-1", "18.10-1", "18.10-2", "18.9-1"))
        with tempfile.TemporaryDirectory() as scratch, \
                mock.patch.object(apt, "output", return_value=listing):
            state = apt.PrivateApt(Path(scratch), apt.Archive("http://m.example", (), (), ""))
            self.assertEqual(state.versions("x"), ["18.10-2", "18.10-1", "18.9-1"])

    def test_distribution_comes_first_and_updates_do_not_count(self):
        with tempfile.TemporaryDirectory() as scratch:
            etc = Path(scratch)
            (etc / "sources.list.d").mkdir()
            (etc / "sources.list").write_text(
                "deb http://vendor.example/apt bookworm main\n"
                "deb http://m.example/debian-security bookworm-security main\n"
                "deb cdrom:[disc]/ bookworm main\n"
                "deb http://pool.example/debian bookworm main\n")
            uris = [archive.uri for archive in apt.machine_archives(etc)]
        self.assertEqual(uris, ["http://pool.example/debian", "http://vendor.example/apt"])

    def test_versions_are_compared_as_dpkg_does(self):
        order = ["19~beta2-1", "19~rc1-1", "19.0-1", "19.9-1", "19.10-1"]
        reverse = order[::-1]
        self.assertEqual(sorted(reverse, key=functools.cmp_to_key(apt._compare)), order)

    def test_upstream_part_of_a_version(self):
        self.assertEqual(apt.upstream_part("18.6-3"), "18.6")
        self.assertEqual(apt.upstream_part("1:18.6-3~bpo12+1"), "18.6")
