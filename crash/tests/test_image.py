"""Tests of images, which are kept from state to state."""

import os
import tempfile
import unittest
from pathlib import Path

from pgcut.image import Image, write_tree

# Larger than what may be left out as zero.
HOLED = bytes(1 << 17) + b"x" * (1 << 13) + bytes(1 << 17)

TREE = {"a": ("f", b"1" * 8192), "d": ("d", None), "d/b": ("f", HOLED), "e": ("f", b""),
        "l": ("l", b"d/b"), "m": ("d", None), "m/c": ("f", b"2" * 100), "o": ("f", b"3" * 8192)}


class ImageTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name) / "image"
        self.image = Image(self.place)
        self.write(TREE)

    def write(self, tree, leave_out=()):
        self.image.write(((path, *what) for path, what in tree.items()), leave_out)

    def there(self):
        """Return what is in the image, as a tree."""
        found = {}
        for directory, directories, files in os.walk(self.place):
            for name in (*directories, *files):
                path = Path(directory, name)
                kind, content = ("l", os.fsencode(os.readlink(path))) if path.is_symlink() else \
                    ("d", None) if path.is_dir() else ("f", path.read_bytes())
                found[str(path.relative_to(self.place))] = kind, content
        return found

    def test_first(self):
        self.assertEqual(self.there(), TREE)
        self.assertLess((self.place / "d/b").stat().st_blocks * 512, len(HOLED))
        write_tree(((path, *what) for path, what in TREE.items()), self.place / "other", ("a",))
        self.assertFalse((self.place / "other/a").exists())

    def test_whatever_a_server_does(self):
        def overwrite(path):
            with open(self.place / path, "r+b") as file:
                file.seek(50)
                file.write(b"z")

        def swap():
            (self.place / "a").rename(self.place / "d/b")
            (self.place / "m/c").rename(self.place / "a")

        def recycle():
            (self.place / "a").rename(self.place / "o")

        def resize():
            os.truncate(self.place / "a", 0)
            os.truncate(self.place / "a", 8192)

        def replace():
            (self.place / "e").unlink()
            (self.place / "e").mkdir()
            (self.place / "e/f").touch()
            (self.place / "m/c").unlink()
            (self.place / "m").rmdir()
            (self.place / "m").write_text("")

        def link():
            (self.place / "a").unlink()
            os.link(self.place / "d/b", self.place / "a")
            (self.place / "l").unlink()
            (self.place / "l").symlink_to("a")

        for what in (lambda: overwrite("a"), lambda: overwrite("d/b"), swap, recycle,
                     resize, replace, link,
                     lambda: (self.place / "a").unlink(), lambda: (self.place / "new").touch()):
            what()
            self.assertNotEqual(self.there(), TREE)
            self.write(TREE)
            self.assertEqual(self.there(), TREE)

    def test_content_of_the_same_size(self):
        tree = {**TREE, "a": ("f", b"4" * 8192), "d/b": ("f", bytes(len(HOLED)))}
        self.write(tree)
        self.assertEqual(self.there(), tree)

    def test_left_out(self):
        self.write(TREE, ("a", "m/c"))
        self.assertEqual(self.there(), {path: what for path, what in TREE.items()
                                        if path not in ("a", "m/c")})
        self.write(TREE)
        self.assertEqual(self.there(), TREE)

    def test_what_is_right_is_left_alone(self):
        before = {path: (self.place / path).stat().st_ctime_ns for path in ("a", "d/b", "e")}
        self.write(TREE)
        self.assertEqual({path: (self.place / path).stat().st_ctime_ns for path in before}, before)


if __name__ == "__main__":
    unittest.main()
