"""Import, sync and export: nothing is lost, and a round trip is exact."""

import os
import subprocess

from fixture import RepositoryCase

from common.base import DevError
from devtools import worktree


class ImportTest(RepositoryCase):

    def test_empty_series_gives_upstream(self):
        self.import_()
        self.assertEqual(self.git("rev-parse", "HEAD"), self.git("rev-parse", "upstream"))
        self.assertTrue(os.access(self.paths.work / "configure", os.X_OK))
        self.assertEqual((self.paths.work / "src/latin1.txt").read_bytes(), b"caf\xe9\nsecond\n")

    def test_overlay_is_the_last_commit(self):
        self.write(self.paths.overlay / "src/new.c", "new\n")
        self.import_()
        self.assertEqual(self.git("log", "--format=%s").splitlines(),
                         ["overlay", "PostgreSQL 18.6"])
        self.assertEqual((self.paths.work / "src/new.c").read_text(), "new\n")

    def test_overlay_may_not_copy_upstream(self):
        self.write(self.paths.overlay / "src/main.c", "mine\n")
        with self.assertRaisesRegex(DevError, "copies of upstream"):
            self.import_()

    def test_patch_with_wrong_context_changes_nothing(self):
        self.import_()
        self.commit("One", {"src/main.c": self.edited_main()})
        self.export()
        patch = next(self.paths.patches.glob("*.patch"))
        self.write(patch, patch.read_text().replace(" line 19\n", " line nineteen\n"))
        before = self.git("rev-parse", "HEAD")
        with self.assertRaisesRegex(DevError, "does not apply"):
            self.import_()
        self.assertEqual(self.git("rev-parse", "HEAD"), before)

    def test_patch_may_not_add_files(self):
        self.write(self.paths.patches / "0001-x.patch",
                   "From: A <a@b>\nSubject: [PATCH] X\n\n---\n"
                   "diff --git a/src/x.c b/src/x.c\nnew file mode 100644\n"
                   "--- /dev/null\n+++ b/src/x.c\n@@ -0,0 +1 @@\n+x\n")
        self.write(self.paths.patches / "series", "0001-x.patch\n")
        with self.assertRaisesRegex(DevError, "adds src/x.c"):
            self.import_()

    def test_patch_not_in_series(self):
        self.write(self.paths.patches / "0001-x.patch", "")
        with self.assertRaisesRegex(DevError, "does not name 0001-x.patch"):
            self.import_()

    def test_refuses_to_lose_uncommitted_edits(self):
        self.import_()
        self.write(self.paths.work / "src/other.c", "edited\n")
        with self.assertRaisesRegex(DevError, "uncommitted: src/other.c"):
            self.import_()

    def test_refuses_to_lose_commits(self):
        self.import_()
        self.commit("One", {"src/main.c": self.edited_main()})
        with self.assertRaisesRegex(DevError, "not exported"):
            self.import_()

    def test_force_keeps_what_it_overwrites(self):
        self.import_()
        self.commit("One", {"src/main.c": self.edited_main()})
        self.write(self.paths.work / "src/other.c", "edited\n")
        self.import_(force=True)
        self.assertEqual(self.git("show", f"{worktree.PREVIOUS}:src/other.c"), "edited\n")
        self.assertIn("our line", self.git("show", f"{worktree.PREVIOUS}:src/main.c"))
        self.assertEqual((self.paths.work / "src/other.c").read_text(), "other\n")

    def test_unchanged_files_keep_their_time(self):
        self.import_()
        os.utime(self.paths.work / "src/main.c", (1, 1))
        self.git("update-index", "--refresh")
        self.write(self.paths.overlay / "src/new.c", "new\n")
        self.import_()
        self.assertEqual((self.paths.work / "src/main.c").stat().st_mtime, 1)

    def test_commits_are_reproducible(self):
        self.import_()
        self.commit("One", {"src/main.c": self.edited_main()})
        self.export()
        first = self.import_()
        subprocess.run(["rm", "-rf", self.paths.work], check=True)
        self.assertEqual(self.import_(), first)


class ExportTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.import_()

    def test_round_trip(self):
        self.commit("Hook the thing into main", {
            "src/main.c": self.edited_main(), "src/thing/thing.c": "thing\n",
            "src/latin1.txt": b"caf\xe9\nsecond\xe8\n"}, "Why it is so.\n\nAnd more.")
        self.commit("Only overlay", {"src/thing/more.c": "more\n"})
        self.commit("Another: hook", {"src/main.c": self.edited_main(30), "src/other.c": None})
        self.export()
        exported, tree = self.stored(), self.tree()
        self.assertEqual(sorted(exported), [
            "overlay/src/thing/more.c", "overlay/src/thing/thing.c",
            "patches/0001-hook-the-thing-into-main.patch",
            "patches/0002-another-hook.patch", "patches/series"])
        self.import_()
        self.assertEqual(self.tree(), tree)
        self.assertEqual(self.git("log", "--format=%s|%an", "upstream..").splitlines(), [
            "overlay|dev", "Another: hook|Ann Example", "Hook the thing into main|Ann Example"])
        self.assertIn("Why it is so.\n\nAnd more.", self.git("log", "--format=%B"))
        self.export()
        self.assertEqual(self.stored(), exported)

    def test_patches_hold_no_noise(self):
        self.commit("One", {"src/main.c": self.edited_main()}, "Body.")
        self.export()
        text = (self.paths.patches / "0001-one.patch").read_text()
        self.assertTrue(text.startswith("From: Ann Example <ann@example.org>\n"
                                        "Subject: [PATCH] One\n\nBody.\n---\ndiff --git "))
        self.assertNotIn("index ", text)

    def test_git_am_takes_the_patches(self):
        self.commit("One", {"src/main.c": self.edited_main()}, "Body.")
        self.export()
        tree = self.tree()
        self.git("checkout", "-q", "-B", "am", "upstream")
        self.git("am", "-q", str(self.paths.patches / "0001-one.patch"))
        self.assertEqual(self.tree(), tree)
        self.assertEqual(self.git("log", "-1", "--format=%B").strip(), "One\n\nBody.")

    def test_executable_overlay_file(self):
        self.write(self.paths.work / "tool", "#!/bin/sh\n")
        (self.paths.work / "tool").chmod(0o755)
        self.commit("Tool", {})
        self.export()
        self.assertTrue(os.access(self.paths.overlay / "tool", os.X_OK))
        tree = self.tree()
        self.import_()
        self.assertEqual(self.tree(), tree)

    def test_what_vanished_is_removed(self):
        self.commit("One", {"src/main.c": self.edited_main(), "src/d/new.c": "new\n"})
        self.export()
        self.git("rm", "-q", "-r", "src/d")
        self.git("commit", "-q", "-m", "drop")
        self.git("checkout", "-q", "upstream", "--", "src/main.c")
        self.git("commit", "-q", "--fixup", ":/One")
        self.git("-c", "sequence.editor=true", "rebase", "-q", "-i", "--autosquash",
                 "--empty=drop", "upstream")
        self.export()
        self.assertEqual(sorted(self.stored()), ["patches/series"])
        self.assertFalse((self.paths.overlay / "src").exists())
        self.assertEqual(self.stored()["patches/series"], b"# comment\n")

    def test_refuses_stray_files(self):
        for name in ("left.c", "src/main.o", "src/main.c.orig"):
            with self.subTest(name):
                self.write(self.paths.work / name, "x")
                with self.assertRaisesRegex(DevError, f"stray files in work/: {name}"):
                    self.export()
                (self.paths.work / name).unlink()

    def test_refuses_committed_artefacts(self):
        self.commit("Oops", {"src/main.c.rej": "x"})
        with self.assertRaisesRegex(DevError, "build artefact"):
            self.export()
        self.assertEqual(sorted(self.stored()), ["patches/series"])

    def test_refuses_uncommitted(self):
        self.write(self.paths.work / "src/other.c", "edited\n")
        with self.assertRaisesRegex(DevError, "not committed"):
            self.export()

    def test_refuses_fixup(self):
        self.commit("fixup! One", {"src/main.c": self.edited_main()})
        with self.assertRaisesRegex(DevError, "fixup! One"):
            self.export()

    def test_refuses_to_lose_overlay_edits(self):
        self.write(self.paths.overlay / "src/new.c", "new\n")
        with self.assertRaisesRegex(DevError, "overlay/ has edits"):
            self.export()
        self.export(force=True)
        self.assertFalse((self.paths.overlay / "src/new.c").exists())


class SyncTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.write(self.paths.overlay / "src/new.c", "new\n")
        self.write(self.paths.overlay / "src/same.c", "same\n")
        self.import_()

    def in_work(self, name):
        return (self.paths.work / name).read_text()

    def test_without_edits_in_work(self):
        os.utime(self.paths.work / "src/same.c", (1, 1))
        self.git("update-index", "--refresh")
        self.write(self.paths.overlay / "src/new.c", "newer\n")
        (self.paths.overlay / "src/added.c").write_text("added\n")
        self.sync()
        self.assertEqual(self.in_work("src/new.c"), "newer\n")
        self.assertEqual(self.in_work("src/added.c"), "added\n")
        self.assertEqual((self.paths.work / "src/same.c").stat().st_mtime, 1)
        self.assertEqual(worktree.edits_in_work(worktree.repository(self.paths), self.paths), [])

    def test_beside_edits_in_work(self):
        self.commit("One", {"src/main.c": self.edited_main()})
        self.write(self.paths.work / "src/other.c", "edited\n")
        self.write(self.paths.overlay / "src/new.c", "newer\n")
        (self.paths.overlay / "src/same.c").unlink()
        self.sync()
        self.assertEqual(self.in_work("src/new.c"), "newer\n")
        self.assertFalse((self.paths.work / "src/same.c").exists())
        self.assertEqual(self.in_work("src/other.c"), "edited\n")
        self.assertEqual(self.git("status", "--porcelain").split(), ["M", "src/other.c"])
        self.git("commit", "-q", "-a", "-m", "Two")
        self.export()
        self.assertEqual(sorted(self.stored()), [
            "overlay/src/new.c", "patches/0001-one.patch", "patches/0002-two.patch",
            "patches/series"])
        self.assertEqual(self.stored()["overlay/src/new.c"], b"newer\n")

    def test_leaves_overlay_files_edited_in_work(self):
        self.write(self.paths.work / "src/new.c", "edited in work\n")
        self.write(self.paths.overlay / "src/same.c", "edited in overlay\n")
        self.sync()
        self.assertEqual(self.in_work("src/new.c"), "edited in work\n")
        self.assertEqual(self.in_work("src/same.c"), "edited in overlay\n")

    def test_refuses_files_edited_on_both_sides(self):
        self.write(self.paths.work / "src/new.c", "one\n")
        self.write(self.paths.overlay / "src/new.c", "two\n")
        with self.assertRaisesRegex(DevError, "src/new.c"):
            self.sync()

    def test_refuses_patches_edited_on_both_sides(self):
        self.commit("One", {"src/main.c": self.edited_main()})
        self.write(self.paths.patches / "series", "# another comment\n")
        with self.assertRaisesRegex(DevError, "patches/"):
            self.sync()

    def test_new_release_is_imported(self):
        newer = self.paths.repo.parent / "newer"
        subprocess.run(["cp", "-a", self.source.tree, newer], check=True)
        self.write(newer / "src/other.c", "newer release\n")
        self.source = type(self.source)("18.7", "1" * 64, str(newer))
        self.sync()
        self.assertEqual(self.in_work("src/other.c"), "newer release\n")
        self.assertIn("PostgreSQL 18.7", self.git("log", "upstream"))


class RefusalTest(RepositoryCase):

    def test_says_why_a_release_does_not_fit(self):
        self.assertIsNone(worktree.refusal(self.paths, self.source))
        self.write(self.paths.overlay / "src/main.c", "mine\n")
        self.assertIn("src/main.c", worktree.refusal(self.paths, self.source))


class StampTest(RepositoryCase):

    def commit_repository(self):
        subprocess.run(["git", "-C", self.paths.repo, "-c", "user.name=t", "-c", "user.email=t",
                        "commit", "-q", "--allow-empty", "-m", "one"], check=True)
        return worktree.commit(self.paths)["commit"][:8]

    def test_names_the_commit_and_edits(self):
        """Results do not count as edits, other directories do if they are named."""
        self.assertEqual(worktree.stamp(self.paths), "none")
        subprocess.run(["git", "init", "-q", self.paths.repo], check=True)
        (self.paths.patches / "series").unlink()
        commit = self.commit_repository()
        for name, stamps in (("bench/results/x", [commit, commit]),
                             ("packaging/x", [commit, f"{commit}-dirty"]),
                             ("overlay/x", [f"{commit}-dirty"] * 2)):
            with self.subTest(name):
                self.write(self.paths.repo / name, "x\n")
                self.assertEqual([worktree.stamp(self.paths), worktree.stamp(self.paths, "packaging")],
                                 stamps)
