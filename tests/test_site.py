"""The static site: links that lead nowhere, and pages that load from elsewhere."""

import tempfile
import unittest
from pathlib import Path

from devtools.site import complaints, relink


class SiteTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = Path(scratch.name)

    def said(self, **pages):
        for name, text in pages.items():
            (self.place / f"{name}.html").write_text(text)
        return list(complaints(self.place))

    def test_sound_links(self):
        self.assertEqual(self.said(
            a='<a href="b.html#here">b</a> <a href="#there">t</a> <p id="there">'
              '<a href="https://example.org/">out</a>',
            b='<h2 id="here">h</h2><img src="a.html">'), [])

    def test_a_page_that_does_not_exist(self):
        self.assertEqual(self.said(a='<a href="b%20c.html">b</a>'),
                         ["a.html: b%20c.html does not exist"])

    def test_a_heading_that_does_not_exist(self):
        self.assertEqual(self.said(a='<a href="#gone">b</a>'),
                         ["a.html: #gone has no such heading"])

    def test_what_is_loaded_from_elsewhere(self):
        self.assertEqual(
            self.said(a='<script src="https://example.org/x.js"></script>'
                        '<link href="//example.org/x.css">'),
            ["a.html loads https://example.org/x.js from elsewhere",
             "a.html loads //example.org/x.css from elsewhere"])

    def test_links_of_the_repository(self):
        (self.place / "docs").mkdir()
        (self.place / "patches").mkdir()
        (self.place / "README.md").write_text("")
        text, found = relink("[a](../README.md#b) [c](../patches/) ![d](e.svg) [f](https://g/)"
                             " [h](#i) [`j[0]`](../README.md)", "docs/x.md", self.place)
        self.assertEqual(text, "[a](../README.md#b) c d [f](https://g/) [h](#i) "
                               "[`j[0]`](../README.md)")
        self.assertEqual(found, ["README.md", "README.md"])

    def test_a_run_is_its_report(self):
        run = self.place / "bench/results/a.json"
        run.parent.mkdir(parents=True)
        run.write_text("{}")
        self.assertEqual(relink("[a](../bench/results/a.json)", "docs/x.md", self.place),
                         ("[a](../bench/results/a/report.md)", ["bench/results/a.json"]))


if __name__ == "__main__":
    unittest.main()
