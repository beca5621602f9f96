"""The documents as a static site, made by mkdocs: `./dev site`.

Pages stand in it at their places in the repository, so the links that work there
work here.  What they link to and is no page is copied; directories cannot be.
Nothing is fetched, neither when the site is made nor when it is read.
"""

import html.parser
import os
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import cli as bench
from bench import figures
from common.base import SYSTEM_PYTHON, DevError, Paths, run, say

from . import deps, generate

# The system's own, for which the package is made.
PROGRAM = "/usr/bin/mkdocs"
PACKAGES = ("mkdocs", *deps.BENCH)

# Titles of pages in the order of the menu; what else is linked to is found from them.
MENU = (("Overview", "README.md"), ("What would I save?", "docs/advise.md"),
        ("Installation", "docs/installation.md"),
        ("Operations", "docs/operations.md"), ("Instant recovery", "docs/instant-restart.md"),
        ("Storage and clouds", "docs/clouds.md"), ("Operators", "docs/operators.md"),
        ("Tools, as tried", "docs/tools.md"),
        ("Figures", generate.FIGURES),
        ("Design", "docs/design.md"), ("Larger machines, on paper", "docs/scale.md"),
        ("The engine", "overlay/src/backend/storage/doublewrite/README.md"),
        ("Power cuts", "crash/README.md"), ("Benchmarks", "bench/README.md"),
        ("Which test finds which fault", generate.MUTATIONS),
        ("Decisions", "docs/decisions.md"), ("Developing", "docs/developing.md"))

# highlight.js would come from elsewhere, and search needs a web server.
CONFIGURATION = """\
site_name: PostgreSQL 18 with double writes
docs_dir: pages
site_dir: site
theme:
  name: mkdocs
  highlightjs: false
plugins: []
use_directory_urls: false
extra_css: [site.css]
markdown_extensions: [tables, toc, fenced_code]
nav:
"""

# On a phone, a wide table moves and not the page.
STYLE = """\
table { display: block; overflow-x: auto; }
img { max-width: 100%; height: auto; }
h1, h2, h3, p, li { overflow-wrap: anywhere; }
"""

# For looking at it, see browser.py.
BROWSER = ("chromium", "chromium-driver", "python3-selenium")

# In place of the summary of a run, the site has its report.
RUN = re.compile(rf"{figures.RESULTS}/[^/]+\.json")
REPORT = "report.md"

LINK = re.compile(r"(!?)\[([^][]*(?:\[[^][]*\][^][]*)*)\]\(([^()\s]+)\)")


def build(paths: Paths) -> Path:
    """Make the site; returns its first page."""
    place = paths.root / "site"
    shutil.rmtree(place, ignore_errors=True)
    pages = place / "pages"
    _collect(paths.repo, pages, generate.of_the_site(paths))
    _add_reports(pages)
    (pages / "site.css").write_text(STYLE)
    menu = "".join(f"  - {title!r}: {page}\n" for title, page in MENU)
    (place / "mkdocs.yml").write_text(CONFIGURATION + menu)
    run([PROGRAM, "build", "--quiet", "--config-file", place / "mkdocs.yml"],
        env={**os.environ, "LC_ALL": "C.UTF-8"}, cwd=place)
    broken = list(complaints(place / "site"))
    for complaint in broken:
        say(complaint)
    if broken:
        raise DevError(f"{len(broken)} links of the site lead nowhere")
    return place / "site" / "index.html"


def look(paths: Paths, site: Path) -> None:
    """Look at a site in a browser; raises DevError if a page does not look as it should."""
    done = subprocess.run([SYSTEM_PYTHON, "-B", "-m", "devtools.browser", site],
                          cwd=paths.repo, stdout=subprocess.PIPE, text=True)
    found = done.stdout.splitlines()
    for complaint in found:
        say(complaint)
    if found or done.returncode:
        raise DevError(f"{len(found)} complaints of the browser")


def _collect(repository, pages, additions):
    """Copy the pages of the menu, with what is added to each, and all that they lead to."""
    waiting, seen = [page for _, page in MENU], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text, found = relink((repository / name).read_text() + additions.get(name, ""),
                                 name, repository)
            target.write_text(text)
            waiting += found
        else:
            shutil.copyfile(repository / name, target)


def relink(text: str, name: str, repository: Path) -> tuple[str, list[str]]:
    """Return a page without links to what the site cannot have, and the files it leads to."""
    found = []

    def replace(match):
        picture, label, link = match.groups()
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or not parts.path:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(name), parts.path))
        if not (repository / path).is_file():
            return label
        found.append(path)
        if RUN.fullmatch(path):
            link = f"{parts.path.removesuffix('.json')}/{REPORT}"
        return f"{picture}[{label}]({link})"

    return LINK.sub(replace, text), found


def _add_reports(pages):
    """Put a report with its plots in the place of each summary that was collected."""
    for path in sorted((pages / figures.RESULTS).glob("*.json")):
        place = path.with_suffix("")
        bench.draw_report(path, place)
        plots = sorted((place / "plots").glob("*.svg"))
        with open(place / REPORT, "a") as report:
            report.write("\n## Plots\n\n" + "\n\n".join(
                f"![{plot.stem}](plots/{urllib.parse.quote(plot.name)})" for plot in plots) + "\n")
        (place / "report.html").unlink()
        path.unlink()


# Checking ---------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a page leads to, what it loads, and what can be led to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str]]) -> None:
        given = dict(attributes)
        self.anchors.update(value for key, value in attributes if key in ("id", "name"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif given.get("src") or tag == "link" and given.get("href"):
            self.loads.append(given.get("src") or given["href"])


def complaints(site: Path) -> Iterator[str]:
    """Say which links of a site lead nowhere, and what pages load from elsewhere."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":     # its links are those of a web server's root
            continue
        for link in page.loads:
            if urllib.parse.urlsplit(link).netloc:
                yield f"{path.relative_to(site.resolve())} loads {link} from elsewhere"
        for link in page.links + page.loads:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if not target.is_file():
                yield f"{path.relative_to(site.resolve())}: {link} does not exist"
            elif parts.fragment and target in pages and urllib.parse.unquote(
                    parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site.resolve())}: {link} has no such heading"
