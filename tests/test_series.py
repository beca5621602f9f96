"""Unit tests of the review series: which patch brings which text of a new file."""

import subprocess
import unittest

from common.base import DevError
from devtools import patch, series, worktree
from tests.fixture import RepositoryCase

LATER = "".join(f"line {number}\n" for number in range(1, 31)) + "with the log\n"
EARLIER = LATER.replace("with the log\n", "alone\n").replace("line 4\n", "")


class CoverTest(unittest.TestCase):
    LETTER = "# Subject\n\nThe patches:\n\n   1  One\n      which is first\n   2  Two: two\n\nIt took 2  s.\n"

    def test_patches_in_their_order(self):
        self.assertEqual(series.cover_problem(self.LETTER, ["One", "Two: two"]), "")

    def test_each_fault(self):
        for titles, problem in ((["One", "Two"], 'patch 2 of the list is not "   2  Two"'),
                                (["Two: two", "One"], 'patch 1 of the list is not "   1  Two: two"'),
                                (["One", "New", "Two: two"], 'patch 2 of the list is not "   2  New"'),
                                (["One", "Two: two", "New"], 'patch 3 of the list is not "   3  New"'),
                                (["One"], "the list has more than 1 patches")):
            self.assertEqual(series.cover_problem(self.LETTER, titles), problem)
        self.assertEqual(series.cover_problem("", ["One"]), 'patch 1 of the list is not "   1  One"')
        self.assertEqual(series.cover_problem("", []), "")


class ChangesTest(RepositoryCase):
    """Two series; the later one changes a file that the earlier one brings."""

    def setUp(self):
        super().setUp()
        self.import_()
        self.commit("First", {"src/main.c": self.edited_main(10), "src/thing.c": LATER},
                    "Series: stage\nOverlay: src/thing.c")
        self.commit("Second", {"src/main.c": self.edited_main(30), "src/log.c": "log\n"},
                    "Series: doublewrite\nOverlay: src/log.c\nChanges: overlay.diff")
        self.export()
        self.diff = self.paths.patches / "doublewrite/overlay.diff"
        self.write(self.diff, "")
        self.texts = self.paths.root / "texts"
        self.write(self.texts / "src/thing.c", EARLIER)
        series.record(self.paths, "doublewrite", self.texts)

    def after(self):
        """Return the text of thing.c and the names of new files after each patch."""
        git = worktree.repository(self.paths)
        upstream = worktree.upstream_commit(git, self.source)
        known = git.files(upstream)
        return [(git.raw("cat-file", "blob", f"{one.commit}:src/thing.c").decode(),
                 sorted(set(git.files(one.commit)) - set(known)))
                for one in series.commit(self.paths, git, upstream)]

    def test_earlier_patch_brings_earlier_text(self):
        self.assertEqual(self.after(), [(EARLIER, ["src/thing.c"]),
                                        (LATER, ["src/log.c", "src/thing.c"])])

    def test_hunks_follow_edits_elsewhere(self):
        self.write(self.paths.overlay / "src/thing.c", LATER.replace("line 15", "edited"))
        self.assertEqual([text for text, _ in self.after()],
                         [EARLIER.replace("line 15", "edited"), LATER.replace("line 15", "edited")])

    def test_hunks_that_do_not_fit(self):
        self.write(self.paths.overlay / "src/thing.c", LATER.replace("line 30", "edited"))
        with self.assertRaisesRegex(DevError, "overlay.diff does not fit overlay/"):
            self.after()

    def test_before_gives_back_what_was_recorded(self):
        out = self.paths.root / "out"
        series.before(self.paths, "doublewrite", out)
        self.assertEqual((out / "src/thing.c").read_text(), EARLIER)

    def test_lines_for_files_come_with_them(self):
        self.commit("Third", {
            "a/meson.build": "files(\n  'one.c',\n  'log.c',\n  't/2.pl',\n)\n",
            "a/Makefile": "OBJS = \\\n\tone.o \\\n\tlog.o\n\nall:\n",
            "a/one.c": "one\n", "src/main.c": self.edited_main(35)}, "Series: doublewrite\nOverlay: a/*")
        self.commit("Fourth", {"a/log.c": "log\n", "a/t/2.pl": "2\n",
                               "src/main.c": self.edited_main(36)},
                    "Series: doublewrite\nOverlay: a/log.c\nOverlay: a/t/2.pl")
        self.export()
        git = worktree.repository(self.paths)
        third = series.steps(git, patch.read_series(self.paths.patches),
                             worktree.overlay_entries(git, self.paths), self.paths.patches)[2].after
        self.assertEqual(git("cat-file", "blob", third["a/meson.build"][1]),
                         "files(\n  'one.c',\n)")
        self.assertEqual(git("cat-file", "blob", third["a/Makefile"][1]),
                         "OBJS = \\\n\tone.o\n\nall:")

    def test_name_of_a_file_beats_patterns(self):
        def owners(*overlays):
            return series.owners([(str(i), patch.Patch("", "", f"Overlay: {overlay}", b""))
                                  for i, overlay in enumerate(overlays)], "t/2.pl")
        self.assertEqual(owners("t/*", "t/2.pl"), ["1"])
        self.assertEqual(owners("t/*", "t/2*"), ["0", "1"])

    def test_what_a_later_patch_brings(self):
        self.commit("Third", {"src/main.c": self.edited_main(35, "\tcall_me();"),
                              "src/a.c": '#include "b.h"\n/* later() */\nint\nf(void)\n{\n\tg();\n}\n'},
                    "Series: doublewrite\nOverlay: src/a.c")
        self.commit("Fourth", {"src/main.c": self.edited_main(36),
                               "src/include/b.h": "",
                               "src/b.c": "void\ncall_me(void)\n\nint\ng(void)\n\nvoid\nlater(void)\n"},
                    "Series: doublewrite\nOverlay: src/include/b.h\nOverlay: src/b.c")
        self.export()
        git = worktree.repository(self.paths)
        patches = patch.read_series(self.paths.patches)
        steps = series.steps(git, patches, worktree.overlay_entries(git, self.paths),
                             self.paths.patches)
        third = "patches/doublewrite/0002-third.patch"
        self.assertEqual(list(series.early_uses(git, patches, steps)), [
            f"{third}: src/a.c needs b.h, which a later patch brings",
            f"{third}: src/a.c needs g(), which a later patch brings",
            f"{third}: an upstream file needs call_me(), which a later patch brings"])

    def test_no_series_with_hunks(self):
        with self.assertRaisesRegex(DevError, "0 files of hunks are meant by 'stage'"):
            series.record(self.paths, "stage", self.texts)

    def commit_repository(self):
        """Commit what there is in the repository itself."""
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=Ann", "-c",
                      "user.email=ann@example.org", "commit", "-q", "-m", "all"]):
            subprocess.run(["git", "-C", str(self.paths.repo), *words], check=True)

    def add_third(self):
        """Add a patch that also changes thing.c, with its last line alone."""
        self.commit("Third", {"src/main.c": self.edited_main(35)},
                    "Series: doublewrite\nChanges: third.diff")
        self.export()
        self.write(self.diff.parent / "third.diff", "")
        self.write(self.texts / "src/thing.c", LATER.replace("with the log", "with it"))
        series.record(self.paths, "doublewrite/third.diff", self.texts)
        self.write(self.texts / "src/thing.c", EARLIER)
        series.record(self.paths, "doublewrite/overlay.diff", self.texts)

    def test_several_patches_change_a_file(self):
        self.add_third()
        self.assertEqual([text for text, _ in self.after()],
                         [EARLIER, LATER.replace("with the log", "with it"), LATER])
        with self.assertRaisesRegex(DevError, "2 files of hunks are meant"):
            series.record(self.paths, "doublewrite", self.texts)

    def test_refit_follows_edits_of_context(self):
        self.add_third()
        self.commit_repository()
        edited = {name: text.replace("line 29\n", "edited\n")
                  for name, text in (("earlier", EARLIER), ("later", LATER))}
        self.write(self.paths.overlay / "src/thing.c", edited["later"])
        with self.assertRaisesRegex(DevError, "does not fit overlay/"):
            self.after()
        series.refit(self.paths, self.paths.root / "out")
        self.assertEqual([text for text, _ in self.after()][::2],
                         [edited["earlier"], edited["later"]])

    def test_refit_leaves_conflicts(self):
        self.commit_repository()
        self.write(self.paths.overlay / "src/thing.c", LATER.replace("with the", "without a"))
        with self.assertRaisesRegex(DevError, "has conflicts"):
            series.refit(self.paths, self.paths.root / "out")
        texts = self.paths.root / "out/doublewrite/overlay.diff"
        self.assertIn("<<<<<<<", (texts / "src/thing.c").read_text())
        with self.assertRaisesRegex(DevError, "src/thing.c: has conflicts"):
            series.record(self.paths, "doublewrite", texts)

    def test_line_is_for_us_alone(self):
        _, second = patch.read_series(self.paths.patches)
        self.assertEqual(second[1].changes, ("doublewrite/overlay.diff",))
        self.assertEqual(second[1].prose, "")


if __name__ == "__main__":
    unittest.main()
