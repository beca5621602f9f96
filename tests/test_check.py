"""Tests of single checkers of the gate."""

import unittest

from devtools import check

SOURCE = """
def whole(one: int, *more: str, other: int = 0) -> None: ...
def no_return(one: int): ...
def no_argument(one, two: int) -> None: ...
def no_rest(**options) -> None: ...
def _private(one): ...
class Some:
    def __init__(self, one): ...
    def method(self) -> int:
        def inner(two): ...
    def other(self): ...
"""


class AnnotationsTest(unittest.TestCase):
    def test_public_functions_are_named(self):
        self.assertEqual([name for _, name in check.unannotated(SOURCE)],
                         ["no_return", "no_argument", "no_rest", "__init__", "other"])


class CopyrightTest(unittest.TestCase):
    def test_one_form_for_each_kind(self):
        c = "/*\n * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group\n */\n"
        perl = "# Copyright (c) 2025, PostgreSQL Global Development Group\n"
        for path, text in (("a.c", c), ("a.h", c), ("t/001_a.pl", perl), ("A.pm", perl),
                           ("meson.build", perl), ("Makefile", ""), ("README", "")):
            self.assertFalse(check.lacks_copyright(path, text), path)
        for path, text in (("a.c", perl), ("a.c", ""), ("a.h", c.replace("2025", "2026")),
                           ("t/001_a.pl", c), ("A.pm", perl.replace("2025", "2025-2026"))):
            self.assertTrue(check.lacks_copyright(path, text), path)


if __name__ == "__main__":
    unittest.main()
