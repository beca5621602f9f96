"""Where the source comes from, and which releases are accepted."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from unittest import TestCase, mock

from fixture import RepositoryCase

from common.base import DevError
from devtools import apt, lock, source

CONSTANTS = {"CATALOG_VERSION_NO": "202506291", "PG_CONTROL_VERSION": "1800",
             "PG_PAGE_LAYOUT_VERSION": "4", "XLOG_PAGE_MAGIC": "0xD118"}


class EnsureTest(RepositoryCase):
    """Only named tarballs and the cache: no test here uses the network."""

    def setUp(self):
        super().setUp()
        offline = mock.patch.multiple(source, _from_apt=lambda *_: None,
                                      _download=lambda *_: False)
        offline.start()
        self.addCleanup(offline.stop)
        self.addCleanup(os.environ.pop, "PGDW_TARBALL", None)

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

    def ensure(self, tarball=None, refusal=None):
        return source.ensure(self.paths, lambda _: refusal, tarball)

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

    def test_later_minor_release(self):
        self.pin(self.tarball("18.6"))
        newer = self.tarball("18.11")
        self.assertEqual(self.ensure(str(newer)).version, "18.11")
        self.assertEqual(self.ensure().version, "18.11")

    def test_later_minor_release_on_which_patches_fail(self):
        self.pin(self.tarball("18.6"))
        with self.assertRaisesRegex(DevError, "0001 does not apply"):
            self.ensure(str(self.tarball("18.7")), "0001 does not apply")

    def test_incompatible_constants(self):
        self.pin(self.tarball("18.6"))
        newer = self.tarball("18.7", CATALOG_VERSION_NO="202599999")
        with self.assertRaisesRegex(DevError, "CATALOG_VERSION_NO is 202599999"):
            self.ensure(str(newer))

    def test_other_releases(self):
        self.pin(self.tarball("18.6"))
        for version in ("18.5", "19.1", "18beta1"):
            with self.subTest(version), self.assertRaisesRegex(DevError, "wanted postgresql-18.6"):
                self.ensure(str(self.tarball(version)))

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


class ArchiveTest(RepositoryCase):
    """What the archive has, of which apt is not asked."""

    def offering(self, *versions, served=True):
        self.write(self.paths.lock_file, "version = 18.6\nsha256 = x\nurl = x\n" +
                   "".join(f"{k} = {v}\n" for k, v in CONSTANTS.items()))
        asked = mock.patch.multiple(
            apt, offers=lambda *_: list(versions),
            fetch_version=lambda *_: Path("tarball") if served else None)
        asked.start()
        self.addCleanup(asked.stop)

    def test_newest(self):
        self.offering("18.6-3", "18.6-1", "18.5-1")
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
