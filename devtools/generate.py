"""Documents that are made of other files, as a whole or between two marks.

    <!-- generated: NAME -->
    ...
    <!-- end of NAME -->

`./dev generate` writes them, and the gate fails if one is out of date.
"""

import json
import re
import statistics
from collections.abc import Sequence

from bench import cli as bench
from bench import figures
from common.base import DevError, Paths, write_if_changed

from . import advise, mutate, tools

PICTURE = "docs/by-arm.svg"

# The pages to which the site adds all tables.
FIGURES = "docs/figures.md"
MUTATIONS = "tests/mutations/README.md"

# Of what shows that something is broken, so many characters.
SHOWN = 160


def texts(paths: Paths) -> dict[str, str]:
    """Return {path: text} of the documents as they should be."""
    readme = (paths.repo / "README.md").read_text()
    return {
        "README.md": fill(readme, "figures", figures.headline(paths.repo)),
        FIGURES: figures.page(paths.repo),
        "docs/tools.md": fill((paths.repo / "docs/tools.md").read_text(), "tools", tried_tools(paths)),
        "docs/advise.md": fill(fill((paths.repo / "docs/advise.md").read_text(), "predictions",
                                    predictions(paths)), "restarts", restarts(paths)),
    }


def of_the_site(paths: Paths) -> dict:
    """Return {page: text} of what the site adds at the end of pages: tables too long for the tree."""
    return {FIGURES: figures.everything(paths.repo),
            MUTATIONS: f"\n{controls(paths)}\n### How soon it finds them\n\n{measured(paths)}\n"
                       f"### Found by histories\n\n{holes(paths)}\n"
                       f"## Mutations\n\n{mutations(paths)}"}


def fill(text: str, name: str, body: str) -> str:
    """Return `text` with what stands between the marks of a name replaced."""
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise DevError(f"there is no place for the generated part {name}",
                       f"put `{begin.strip()}` and `{end}` on lines of their own")
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def mutations(paths: Paths) -> str:
    """Return the table of tests/mutations."""
    found = sorted(mutate.read(paths), key=lambda one: (mutate.rank(one.rule), one.name))
    entries = mutate.seen(paths)
    rows = [("rule", "mutation", "what is broken", "must be found by", "seen"),
            *((one.rule, f"[`{one.name}`]({one.name}.patch)", one.what,
               ", ".join(one.found_by), mutate.witness(entries, one).replace("|", "\\|"))
              for one in found)]
    return figures.markdown(rows)


def controls(paths: Paths) -> str:
    """Return the table of the explorer's controls."""
    found = mutate.controls((paths.repo / "crash/pgcut/controls.py").read_text())
    rows = [("rule", "control", "what is broken"),
            *((rule, f"`{name}`", what)
              for name, (rule, what) in sorted(found.items(),
                                               key=lambda item: (mutate.rank(item[1][0]), item[0])))]
    return figures.markdown(rows)


def measured(paths: Paths) -> str:
    """Return the table of how soon the explorer finds its controls: median (least to most)."""
    entries = json.loads((paths.repo / "crash/controls.json").read_text())
    found = mutate.controls((paths.repo / "crash/pgcut/controls.py").read_text())
    digests = {one.name: mutate.digest(one) for one in mutate.read(paths)}
    rows = [("control", "found", "states", "seconds", "by plain states")]
    for name in sorted(entries, key=lambda name: (mutate.rank(found[name][0]), name)):
        tries, plain = (current(entries[name].get(kind, ()), digests.get(name))
                        for kind in ("tries", "plain"))
        rows.append((f"`{name}`", _share(tries), _spread(tries, "states"),
                     _spread(tries, "seconds"), _plain(plain)))
    return figures.markdown(rows)


def current(tries: Sequence[dict[str, int | str] | dict[str, int]],
            digest: str) -> list[dict[str, int | str] | dict[str, int]]:
    """Return those tries of a control that were made with its patch as it is now.

    The first ones do not tell with which.
    """
    return [one for one in tries if one.get("patch", digest) == digest]


def _share(tries):
    return f"{sum(one['found'] for one in tries)} of {len(tries)}"


def _spread(tries, what):
    """Return the median of the tries that found it, and the least and the most of them."""
    values = sorted(one[what] for one in tries if one["found"])
    if not values:
        return ""
    return f"{statistics.median(values):g} ({values[0]} to {values[-1]})"


def _plain(tries):
    return "" if not tries else f"{_share(tries)}, {sum(one['states'] for one in tries)} states"


def holes(paths: Paths) -> str:
    """Return the table of what histories have found of what was broken on purpose."""
    entries = json.loads((paths.repo / "crash/holes.json").read_text())
    rows = [("rule", "control", "what is broken", "of its recipe", "of any", "found by, for instance"),
            *((one["rule"], f"`{one['name']}`", one["what"], _after(one["directed"]),
               _after(one["any"]), _by(one["directed"])) for one in entries)]
    return figures.markdown(rows)


def predictions(paths: Paths) -> str:
    """Return the table of what pg_doublewrite_advise has predicted, and of what came."""
    checked = json.loads((paths.repo / advise.CHECKED).read_text())
    rows = [("load", "WAL before", "predicted", "came", "off", "off, by counters alone",
             "copies in the log predicted", "came", "of a core")]
    for one in checked["loads"]:
        low, high = one["copies_predicted"]
        rough = one["off_by_counters"]
        rows.append((one["load"], f"{one['before']:,}", f"{one['predicted']:,}",
                     f"{one['came']:,}", f"{one['off']:+.1%}",
                     "says nothing" if rough is None else f"{rough:+.1%}",
                     f"{low:.3g} to {high:.3g}", f"{one['copies_came']:.3g}",
                     f"{one['core']:.2%}"))
    return figures.markdown(rows)


def restarts(paths: Paths) -> str:
    """Return the table of restarts after a crash, of those loads for which they were measured."""
    checked = json.loads((paths.repo / advise.CHECKED).read_text())
    rows = [("load", "`instant_recovery`", "predicted, s", "came, s", "missed by, s",
             "from the start of the server, s")]
    for load in checked["loads"]:
        for instant, one in load.get("restarts", {}).items():
            low, high = one["predicted"]
            rows.append((load["load"], instant, f"{low:.2f} to {high:.2f}", f"{one['came']:.2f}",
                         f"{one['missed']:+.2f}" if one["missed"] else "within",
                         f"{one['whole']:.2f}"))
    return figures.markdown(rows)


def tried_tools(paths: Paths) -> str:
    """Return the table of the backup tools that have been tried."""
    tried = json.loads((paths.repo / tools.TRIED).read_text())
    rows = [("tool", "version", "what was done", "torn at the crash", "torn as read", "verdict",
             "commit", "caveat")]
    for name, one in tried.items():
        rows.append((f"{one['tool']} (`{name}`)", one["version"], one["done"],
                     str(one["torn_at_crash"]), str(one["torn_when_read"] or "-"),
                     f"{one['transactions']} transactions, nothing lost",
                     one["commit"], one["caveat"]))
    return figures.markdown(rows)


def _after(tries):
    """Return after how many histories, and seconds, each attempt found a control."""
    return "; ".join(f"{'' if one['found'] else 'not in '}{one['histories']} ({one['seconds']} s)"
                     for one in tries)


def _by(tries):
    """Return what has shown a control, at the first attempt that found it."""
    found = next((one["found"] for one in tries if one["found"]), "")
    return found[:SHOWN].replace("|", "\\|")


def write_all(paths: Paths) -> list[str]:
    """Write the documents, and the picture; returns the paths of those that changed."""
    changed = [path for path, text in texts(paths).items()
               if write_if_changed(paths.repo / path, text.encode())]
    if not picture_is_right(paths):
        bench.draw_picture(paths.repo, paths.repo / PICTURE)
        changed.append(PICTURE)
    return changed


def picture_is_right(paths: Paths) -> bool:
    """Say whether the picture is of the runs that it should be of."""
    wanted, path = figures.names_of_picture(paths.repo), paths.repo / PICTURE
    return not wanted or path.exists() and f">{wanted}<" in path.read_text()


def outdated(paths: Paths) -> list[str]:
    """Return the paths of the documents that are not as they should be."""
    stale = [path for path, text in texts(paths).items()
             if not (paths.repo / path).exists() or (paths.repo / path).read_text() != text]
    return stale + ([] if picture_is_right(paths) else [PICTURE])
