"""What the archive needs of the system, and how two builds of it are compared."""

import tarfile
import tempfile
from pathlib import Path
from unittest import TestCase

from devtools import dist

# Of objdump -p, shortened.
DUMP = """== bin/postgres

bin/postgres:     file format elf64-x86-64

Dynamic Section:
  NEEDED               libzstd.so.1
  NEEDED               libssl.so.3
  NEEDED               libc.so.6
  RUNPATH              $ORIGIN/../lib

Version References:
  required from libssl.so.3:
    0x066d7f1f 0x00 04 OPENSSL_3.0.0
  required from libc.so.6:
    0x069691b4 0x00 03 GLIBC_2.34
    0x09691a75 0x00 02 GLIBC_2.2.5

== lib/libzstd.so.1.5.4
  NEEDED               libc.so.6
  SONAME               libzstd.so.1

Version References:
  required from libc.so.6:
    0x06969194 0x00 02 GLIBC_2.14
"""


class SymbolsTest(TestCase):

    def complaints(self, old, new):
        self.assertIn(old, DUMP)
        return dist.complaints(DUMP.replace(old, new))

    def test_needs(self):
        postgres, zstd = dist.programs(DUMP)
        self.assertEqual(postgres, dist.Program(
            "bin/postgres", "", frozenset({"libzstd.so.1", "libssl.so.3", "libc.so.6"}),
            {"libssl.so.3": {"OPENSSL_3.0.0"}, "libc.so.6": {"GLIBC_2.34", "GLIBC_2.2.5"}}))
        self.assertEqual(zstd.soname, "libzstd.so.1")
        self.assertEqual(dist.newest(DUMP),
                         {"libc.so.6": "GLIBC_2.34", "libssl.so.3": "OPENSSL_3.0.0"})
        self.assertEqual(dist.complaints(DUMP), [])

    def test_symbol_that_is_too_new(self):
        for version in ("GLIBC_2.35", "GLIBC_3.0", "GLIBC_ABI_DT_RELR", "NEW_1.0"):
            with self.subTest(version):
                self.assertEqual(self.complaints("GLIBC_2.14", version),
                                 [f"lib/libzstd.so.1.5.4 needs {version} of libc.so.6"])

    def test_library_that_is_not_inside(self):
        self.assertEqual(self.complaints("SONAME               libzstd", "SONAME               libother"),
                         ["bin/postgres needs libzstd.so.1, which is not inside"])


class CompareTest(TestCase):

    def test_members_that_differ(self):
        """Content, attributes and names count."""
        with tempfile.TemporaryDirectory() as scratch:
            members = []
            for number in range(2):
                base = Path(scratch, str(number))
                base.mkdir()
                for name, text in (("same", "x"), ("content", str(number)), ("mode", ""),
                                   (f"only{number}", "")):
                    (base / name).write_text(text)
                (base / "mode").chmod(0o600 + 0o100 * number)
                with tarfile.open(f"{base}.tar", "w") as tar:
                    for path in sorted(base.iterdir()):
                        member = tar.gettarinfo(path, path.name)
                        member.mtime = 0
                        with path.open("rb") as file:
                            tar.addfile(member, file)
                with open(f"{base}.tar", "rb") as tar:
                    members.append(dist.members(tar))
        self.assertEqual(dist.differing(*members), ["content", "mode", "only0", "only1"])
