"""Tests of the checker of comments: which words it finds, and where."""

from pathlib import Path
from unittest import TestCase, mock

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

    def test_in_comments_only(self):
        self.assertEqual(english.words('int he;\n"nobody /* he */"\n/* the other */'), [])
        self.assertEqual(english.words("/* Whoever: he */ he(); /* him,\n * his */"),
                         ["whoever", "he", "him", "his"])

    def test_across_lines(self):
        self.assertEqual(english.words("/*\n * All, but\n *\tfor one, in\n * vain.\n */"),
                         ["but for", "in vain"])


class FileTest(TestCase):

    def test_planted(self):
        """A file that is done has no complaint; with a word planted it has one."""
        text = (OVERLAY / CLEAN).read_text()
        self.assertEqual(list(english.of_file(CLEAN, text)), [])
        self.assertEqual(list(english.of_file(CLEAN, text.replace("A ", "Somebody's ", 1))),
                         [f"{CLEAN}: comments say somebody"])

    def test_list_shrinks(self):
        with mock.patch.object(english, "NOT_YET", {"a.c"}):
            self.assertEqual(list(english.of_file("a.c", "/* who */")), [])
            self.assertEqual(list(english.of_file("a.c", "/* which */")),
                             ["a.c has none of these words any more: "
                              "take it off the list in english.py"])


class PatchTest(TestCase):

    def test_added_lines(self):
        self.assertEqual(list(english.of_patch("1.patch", DIFF.format("which say so"))), [])
        self.assertEqual(list(english.of_patch("1.patch", DIFF.format("whoever we are"))),
                         ["1.patch: comments in src/a.c say whoever"])
