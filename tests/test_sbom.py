"""The SPDX document and the checksums beside the archive, the packages and the image."""

import subprocess
from pathlib import Path
from unittest import mock

from fixture import RepositoryCase

from common.base import DevError
from devtools import deb, image, sbom, worktree

CONTROL = """Package: {name}
Version: {version}
Architecture: all
Maintainer: Ann Example <ann@example.org>
Description: a package
"""
VERSION = "18.6-3.pgdw13+1"


class SbomTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.written = []
        for target, name, value in ((sbom.deps, "from_pip", lambda *_: Path("/venv/bin")),
                                    (sbom, "run", self.run_debsbom)):
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def run_debsbom(self, command, env):
        """Write what debsbom would have read of the root that it is given."""
        words = [str(word) for word in command]
        self.written.append((words, env))
        root, out = (Path(words[words.index(option) + 1]) for option in ("--root", "--out"))
        copyrights = sorted(path.parent.name for path in root.glob("usr/share/doc/*/copyright"))
        self.write(Path(f"{out}.spdx.json"),
                   (root / "var/lib/dpkg/status").read_text() + " ".join(copyrights))

    def check(self, sums, inside):
        """Have sha256sum check the sums; returns the names that they have."""
        subprocess.run(["sha256sum", "--quiet", "--strict", "-c", sums], cwd=inside, check=True)
        return [line.partition("  ")[2] for line in sums.read_text().splitlines()]

    def packages(self):
        """Return a directory of two packages, as `./dev deb` has scanned it."""
        directory = deb.packages(self.paths, deb.SUITES["trixie"])
        for name in ("postgresql-client-18", "postgresql-18"):
            tree = self.paths.root / name
            self.write(tree / "DEBIAN" / "control", CONTROL.format(name=name, version=VERSION))
            self.write(tree / "usr/share/doc" / name / "copyright", "free\n")
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "--build", tree, directory / f"{name}.deb"], check=True,
                           stdout=subprocess.DEVNULL)
        self.write(directory / "Packages", "\n".join(
            CONTROL.format(name=name, version=version)
            for name, version in (("postgresql-client-18", "1"), ("postgresql-18", VERSION))))
        return directory

    def test_what_debsbom_is_told(self):
        """The document is of the commit and its time, whatever the hashes of Python are."""
        self.write(self.paths.root / "system/var/lib/dpkg/status", "")
        with mock.patch.object(worktree, "commit", lambda _: {"commit": "abc"}), \
                mock.patch.object(worktree, "commit_time", lambda _: 86400):
            sbom.write(self.paths, self.paths.root / "x_18.6-3.1.spdx.json",
                       self.paths.root / "system", "18.6", "words", {"source": "url"})
        (words, env), = self.written
        for word in ("--add-meta-data=source=url", "--add-meta-data=commit=abc",
                     "1970-01-02T00:00:00+00:00", "https://example.org/spdx/x_18.6-3.1.spdx-abc"):
            self.assertIn(word, words)
        self.assertEqual(env["PYTHONHASHSEED"], "0")
        self.assertTrue((self.paths.root / "x_18.6-3.1.spdx.json").exists())

    def test_sums(self):
        """Neither directories nor links have any, nor the sums themselves."""
        directory = self.paths.root / "made"
        for name in ("b", "a", "d/c", sbom.SUMS):
            self.write(directory / name, name)
        (directory / "link").symlink_to("a")
        sbom.write_sums(directory, directory.rglob("*"))
        self.assertEqual(self.check(directory / sbom.SUMS, directory), ["a", "b", "d/c"])

    def test_packages(self):
        """The list of packages and their copyrights are read; all that stays has a checksum."""
        directory = self.packages()
        deb.describe(self.paths, deb.SUITES["trixie"], directory, {})
        document = directory / f"postgresql-18_{VERSION}.spdx.json"
        self.assertEqual(document.read_text(), (directory / "Packages").read_text()
                         + "postgresql-18 postgresql-client-18")
        self.assertEqual(self.check(directory / sbom.SUMS, directory),
                         ["Packages", "postgresql-18.deb", document.name, "postgresql-client-18.deb"])

    def test_packages_without_a_server(self):
        directory = self.packages()
        self.write(directory / "Packages", CONTROL.format(name="postgresql-client-18", version="1"))
        with self.assertRaisesRegex(DevError, "no package of the server"):
            deb.describe(self.paths, deb.SUITES["trixie"], directory, {})

    def test_image(self):
        """What is written of the image lies outside, and says which packages it was made of."""
        self.packages()
        root = self.paths.root / "mounted"
        self.write(root / "var/lib/dpkg/status", "status\n")
        self.write(root / "usr/bin/postgres", "program\n")
        image._describe(self.paths, root)
        result = deb.place(self.paths, deb.SUITES["trixie"]) / "image"
        self.assertEqual({path.name for path in result.iterdir()},
                         {sbom.SUMS, f"postgres-dw_{VERSION}.spdx.json"})
        self.assertEqual(self.check(result / sbom.SUMS, root),
                         ["usr/bin/postgres", "var/lib/dpkg/status"])
        self.assertTrue(any(word.startswith("--add-meta-data=packages-sha256=")
                            for word in self.written[0][0]))
