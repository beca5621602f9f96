"""Tests of the tables of redo page by page: what the gate says when one lacks a row."""

import re
from unittest import TestCase

from devtools import redo

MANAGERS = """
PG_RMGR(RM_ONE_ID, "One", one_redo, one_desc, one_identify, NULL, NULL, NULL, NULL)
PG_RMGR(RM_TWO_ID, "Two", two_redo, two_desc, two_identify, NULL, NULL, NULL, NULL)
PG_RMGR(RM_BARE_ID, "Bare", bare_redo, bare_desc, bare_identify, NULL, NULL, NULL, NULL)
"""

DESCRIPTIONS = ("""
void
one_desc(StringInfo buf, XLogReaderState *record)
{
	if (info == XLOG_NOT_HERE)
		return;
}

const char *
one_identify(uint8 info)
{
	switch (info & ~XLR_INFO_MASK)
	{
		case XLOG_ONE_ADD:
			id = "ADD";
			break;
		case XLOG_ONE_ADD | XLOG_ONE_INIT_PAGE:
			id = "ADD+INIT";
			break;
	}
}
""", """
const char *
two_identify(uint8 info)
{
	if ((info & ~XLR_INFO_MASK) == XLOG_TWO_MESSAGE)
		return "MESSAGE";
	return NULL;
}

const char *
bare_identify(uint8 info)
{
	return "Bare";
}
""")

TYPES = {"One": {"XLOG_ONE_ADD"}, "Two": {"XLOG_TWO_MESSAGE"}, "Bare": {"any"}}

TABLES = """
| resource manager | record types | class | reason |
|---|---|---|---|
| One | `XLOG_ONE_ADD` | page | one block |
| Two | `XLOG_TWO_MESSAGE` | analysis | nothing |
| Bare | any | barrier | unknown |

| file | looks at | covered how |
|---|---|---|
| `a.c` | length | length |
"""


class Types(TestCase):
    """Record types, and the table of them."""

    def complaints(self, old="", new=""):
        """Return what is said of the table after a replacement."""
        self.assertIn(old, TABLES)
        return list(redo.missing_types(TABLES.replace(old, new, 1), TYPES))

    def test_source(self):
        self.assertEqual(redo.record_types(MANAGERS, DESCRIPTIONS), TYPES)

    def test_complete(self):
        self.assertEqual(self.complaints(), [])

    def test_missing(self):
        self.assertEqual(self.complaints("| One | `XLOG_ONE_ADD` | page | one block |\n"),
                         ["record type XLOG_ONE_ADD of One is not there"])

    def test_manager_missing(self):
        self.assertEqual(self.complaints("| Bare | any | barrier | unknown |\n"),
                         ["record type any of Bare is not there"])

    def test_gone(self):
        self.assertEqual(self.complaints("`XLOG_ONE_ADD`", "`XLOG_ONE_ADD`, `XLOG_ONE_OLD`"),
                         ["One has no record type XLOG_ONE_OLD"])

    def test_twice(self):
        self.assertEqual(self.complaints("| Two |", "| One | `XLOG_ONE_ADD` | barrier | or so |\n| Two |"),
                         ["XLOG_ONE_ADD of One stands there twice"])

    def test_class_and_reason(self):
        for old, new in (("page |", "perhaps |"), ("one block", "")):
            self.assertEqual(self.complaints(old, new), [
                "One: `XLOG_ONE_ADD` has no class of page, analysis, drop, barrier, or no reason"])

    def test_no_table(self):
        self.assertEqual(len(list(redo.missing_types("", TYPES))), 3)


class Readers(TestCase):
    """Files that look at relation files."""

    def test_listing(self):
        self.assertEqual(redo.readers("abc:a.c\nabc:b/c.c\n", "abc"), {"a.c", "b/c.c"})

    def test_missing_and_gone(self):
        self.assertEqual(list(redo.missing_readers(TABLES, {"a.c"})), [])
        self.assertEqual(list(redo.missing_readers(TABLES, {"b.c"})),
                         ["b.c looks at relation files, and is not there",
                          "a.c does not look at relation files"])

    def test_calls(self):
        reads = re.compile(redo.READS.replace("[:alnum:]", "a-zA-Z0-9"), re.MULTILINE)
        for line in ("\tsmgrread(reln, fork, 0, page);", "smgrnblocks(reln, fork)",
                     "\tcopydir(from, to, false);", "x = smgrstartreadv(ioh"):
            self.assertTrue(reads.search(line), line)
        for line in ("mysmgrread(reln)", "smgropen(locator)", "smgrreads(reln)"):
            self.assertFalse(reads.search(line), line)
