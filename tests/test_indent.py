"""Tests of the checks of the layout of C and of Perl."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase, mock

from devtools import check, indent

PROFILE = "--backup-and-modify-in-place\n--backup-file-extension=/\n--paren-tightness=2\n"


class DifferencesTest(TestCase):

    def test_says_what_pgindent_would_change(self):
        found = indent.differences({"a.c": "int a;\nint  b;\n", "b.c": "int a;\n"},
                                   {"a.c": "int a;\nint b;\n", "b.c": "int a;\n"})
        self.assertEqual(list(found), ["a.c"])
        self.assertIn("\n-int  b;\n+int b;\n", found["a.c"])


class PerlTest(TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)

    def complaints(self, **texts):
        """Return what the gate says of the files of overlay/ with these names and texts."""
        return list(check.perl_layout(SimpleNamespace(
            overlay={f"t/{name}.pl": text for name, text in texts.items()} | {"a.c": "int  a;"},
            applied={"src/tools/pgindent/perltidyrc": PROFILE}.get,
            paths=SimpleNamespace(root=self.root))))

    def test_says_what_perltidy_would_change(self):
        complaint, = self.complaints(good="ok(1);\n", bad="ok( 1 );\n")
        self.assertIn("t/bad.pl", complaint)
        self.assertIn("\n-ok( 1 );\n+ok(1);\n", complaint)

    def test_is_quick_where_nothing_has_changed(self):
        self.complaints(good="ok(1);\n", bad="ok( 1 );\n")
        with mock.patch.object(indent, "_tidied", side_effect=lambda texts, _: texts) as tidied:
            self.complaints(good="ok(1);\n", bad="ok( 1 );\n", new="ok(2);\n")
        self.assertEqual(set(tidied.call_args[0][0]), {"t/bad.pl", "t/new.pl"})

    def test_says_what_it_cannot_read(self):
        complaint, = self.complaints(bad="ok((1);\n")
        self.assertIn("t/bad.pl:1:", complaint)
