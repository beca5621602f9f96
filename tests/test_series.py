"""Unit tests of the review series: which patch brings which text of a new file."""

import unittest

from common.base import DevError
from devtools import patch, series, worktree
from tests.fixture import RepositoryCase

LATER = "".join(f"line {number}\n" for number in range(1, 31)) + "with the log\n"
EARLIER = LATER.replace("with the log\n", "alone\n").replace("line 4\n", "")


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

    def test_no_series_with_hunks(self):
        with self.assertRaisesRegex(DevError, "no patch of the series 'stage'"):
            series.record(self.paths, "stage", self.texts)

    def test_line_is_for_us_alone(self):
        _, second = patch.read_series(self.paths.patches)
        self.assertEqual(second[1].changes, ("doublewrite/overlay.diff",))
        self.assertEqual(second[1].prose, "")


if __name__ == "__main__":
    unittest.main()
