"""Tests of the layers: what a checker says when a call goes upwards."""

import re
from pathlib import Path
from unittest import TestCase

from devtools import layers

ENGINE = Path(__file__).resolve().parents[1] / "overlay/src/backend/storage/doublewrite"

README = """
## Words

    words.c  not a file

## Files

    top.c  calls the others
    low.c  calls no other

## Rules
"""

TOP = """
/* low_function() is called here: */
static void
helper(void)
{
	low_function("helper()");
}

void
top_function(int a,
			 int b)
{
	helper();
}
"""

LOW = """
static void
helper(void)
{
}

void
low_function(const char *name)
{
	helper();
}
"""


def function(name, body):
    """Return the source of a function."""
    return f"\nvoid\n{name}(void)\n{{\n{body}\n}}\n"


class EngineTest(TestCase):

    def complaints(self, **sources):
        files = {"top.c": TOP, "low.c": LOW}
        files.update({f"{name}.c": text for name, text in sources.items()})
        return list(layers.engine(layers.order_of_readme(README), files))

    def test_downwards(self):
        self.assertEqual(layers.order_of_readme(README), ["top.c", "low.c"])
        self.assertEqual(self.complaints(), [])

    def test_upwards(self):
        for body in ("\ttop_function(1, 2);", "\tcall(top_function);"):
            self.assertEqual(self.complaints(low=LOW + function("culprit", body)),
                             ["low.c: culprit() uses top_function() of top.c, "
                              "which stands above it"])

    def test_only_mentioned(self):
        for body in ("\t/* like top_function() */", '\tlog("top_function()");'):
            self.assertEqual(self.complaints(low=LOW + function("innocent", body)), [])

    def test_list(self):
        self.assertEqual(self.complaints(other=LOW), ["other.c is not in the list of README"])
        self.assertEqual(list(layers.engine(["top.c", "low.c"], {"low.c": LOW})),
                         ["top.c is in the list of README, but does not exist"])

    def test_planted_in_the_engine(self):
        """The engine as it is has no complaint; with a call planted it has one."""
        order = layers.order_of_readme((ENGINE / "README.md").read_text())
        sources = {path.name: path.read_text() for path in ENGINE.glob("*.c")}
        self.assertEqual(list(layers.engine(order, sources)), [])
        sources["stage.c"], count = re.subn(r"^(dw_current_seq\(void\)\n\{\n)",
                                            r"\1\tdw_flush_batch(NULL, NULL);\n",
                                            sources["stage.c"], flags=re.MULTILINE)
        self.assertEqual(count, 1)
        self.assertEqual(list(layers.engine(order, sources)),
                         ["stage.c: dw_current_seq() uses dw_flush_batch() of flush.c, "
                          "which stands above it"])


class PrototypesTest(TestCase):

    SOURCES = {"top.c": TOP, "low.c": LOW}

    def test_in_place(self):
        header = ("/* low.c */\nextern void low_function(const char *name);\n\n"
                  "/* top.c: and more */\nextern PGDLLIMPORT int counter;\n"
                  "extern void top_function(int a,\n\t\t\t\t\t\t int b);\n")
        self.assertEqual(list(layers.prototypes(header, self.SOURCES)), [])

    def test_elsewhere(self):
        header = "/* low.c */\nextern void top_function(int a, int b);\n"
        self.assertEqual(list(layers.prototypes(header, self.SOURCES)),
                         ["top_function() is declared under low.c, but defined in top.c"])
        header = "/* low.c */\nextern bool gone(void);\n"
        self.assertEqual(list(layers.prototypes(header, self.SOURCES)),
                         ["gone() is declared under low.c, but defined in "
                          "no file of the engine"])


class ModulesTest(TestCase):

    PACKAGE = '"""What it is.\n\n    base  things\n    git   commits\n"""\n'

    def complaints(self, **sources):
        modules = {"base": "import os\n", "git": "from .base import run\n", **sources}
        return list(layers.modules(layers.order_of_package(self.PACKAGE), modules))

    def test_downwards(self):
        self.assertEqual(self.complaints(), [])

    def test_upwards(self):
        for source in ("from . import git\n", "from .git import Git\n",
                       "def late():\n    from . import git\n"):
            self.assertEqual(self.complaints(base=source),
                             ["base imports git, which does not stand above it in the docstring"])

    def test_other_packages(self):
        sources = {"base": "from common.base import run\nfrom devtools import git\nimport bench.cli\n"}
        order = ["base"]
        self.assertEqual(list(layers.modules(order, sources, layers.MAY_USE["devtools"])),
                         ["base imports devtools, a package that this one may not use"])
        self.assertEqual(list(layers.modules(order, sources, layers.MAY_USE["bench"])),
                         ["base imports bench, a package that this one may not use",
                          "base imports devtools, a package that this one may not use"])

    def test_docstring(self):
        self.assertEqual(self.complaints(other=""),
                         ["other is not in the docstring of the package"])
