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


if __name__ == "__main__":
    unittest.main()
