"""Tests of the checker of words: which words it finds, and where."""

from pathlib import Path
from unittest import TestCase

from devtools import english

OVERLAY = Path(__file__).resolve().parents[1] / "overlay"
CLEAN = "src/backend/storage/doublewrite/epoch.c"

DIFF = """diff --git a/src/a.c b/src/a.c
--- a/src/a.c
+++ b/src/a.c
@@ -1,4 +1,5 @@
  * left by stock, who says so
+ * and by us, {}
  */
 int a;
+int he;
diff --git a/src/a.pl b/src/a.pl
--- a/src/a.pl
+++ b/src/a.pl
@@ -1 +1,2 @@
 # text
+# /* whoever */
"""


class WordsTest(TestCase):

    def test_not_in_code(self):
        self.assertEqual(english.words('int he;\n"the /* other"\n/* the other */'), [])
        self.assertEqual(english.words("/* Whoever: he */ he(); /* him,\n * his */"),
                         ["whoever", "he", "him", "his"])

    def test_in_messages(self):
        self.assertEqual(english.words('errmsg("nobody knows") /* x */, he'), ["nobody"])
        self.assertEqual(english.words("/* Everybody waits for whom? Not for anybody. */"),
                         ["everybody", "whom", "anybody"])

    def test_across_lines(self):
        self.assertEqual(english.words("/*\n * All, but\n *\tfor one, in\n * vain.\n */"),
                         ["but for", "in vain"])


class FileTest(TestCase):

    def test_planted(self):
        """A file that is done has no complaint; with a word planted it has one."""
        text = (OVERLAY / CLEAN).read_text()
        self.assertEqual(list(english.of_file(CLEAN, text)), [])
        self.assertEqual(list(english.of_file(CLEAN, text.replace("A ", "Somebody's ", 1))),
                         [f"{CLEAN} says somebody"])

    def test_documentation(self):
        self.assertEqual(list(english.of_file("a.sgml", "<!-- who --><para>\n all, but\n for one</para>")),
                         ["a.sgml says but for"])

    def test_people(self):
        self.assertEqual(list(english.of_file("a.pl", "# who reads\nok(1, 'nobody, in\n vain');")),
                         ["a.pl says nobody, in vain"])
        self.assertEqual(list(english.of_file("a.md", "A DBA who looks at his server")), [])
        self.assertEqual(list(english.of_file("t/README", "who waits where")), ["t/README says who"])
        self.assertEqual(list(english.of_file("a.sql", "-- for everybody")), ["a.sql says everybody"])
        self.assertEqual(list(english.of_file("a.md", "for anybody, by whom, for everybody")), [])

    def test_cover_letters(self):
        """A cover letter is sent to committers: what a process does is told of a process."""
        self.assertEqual(list(english.of_file("patches/stage/cover.md", "Then everybody waits.")),
                         ["patches/stage/cover.md says everybody"])
        self.assertEqual(list(english.of_file("patches/stage/cover.md", "for readers who\nask him")),
                         ["patches/stage/cover.md says who, him"])


class PatchTest(TestCase):

    def test_added_lines(self):
        self.assertEqual(list(english.of_patch("1.patch", DIFF.format("which say so"))), [])
        self.assertEqual(list(english.of_patch("1.patch", DIFF.format("whoever we are"))),
                         ["1.patch: src/a.c says whoever"])

    def test_message(self):
        diff = DIFF.format("which say so")
        self.assertEqual(list(english.of_patch("1.patch", diff, "Write pages\n\nAs ever.\n")), [])
        self.assertEqual(list(english.of_patch("1.patch", diff, "Ask whoever\n\nAll, but\nfor him.\n")),
                         ["1.patch: the message says whoever, but for, him"])

    def test_comments_and_docstrings_of_python(self):
        source = 'who = "nobody"     # in vain\n\ndef f():\n    """Tell whoever asks."""\n'
        self.assertEqual(list(english.of_file("a.py", source)), ["a.py says in vain, whoever"])

    def test_hunk_ends_within_a_comment(self):
        diff = DIFF.replace("  */\n int a;\n+int he;\n", "  more\n").replace("  * left", "+/*\n  * left")
        self.assertEqual(list(english.of_patch("1.patch", diff.format("whoever we are"))),
                         ["1.patch: src/a.c says whoever"])
