"""Tests of the check of the layout of C."""

from unittest import TestCase

from devtools import indent


class DifferencesTest(TestCase):

    def test_says_what_pgindent_would_change(self):
        found = indent.differences({"a.c": "int a;\nint  b;\n", "b.c": "int a;\n"},
                                   {"a.c": "int a;\nint b;\n", "b.c": "int a;\n"})
        self.assertEqual(list(found), ["a.c"])
        self.assertIn("\n-int  b;\n+int b;\n", found["a.c"])
