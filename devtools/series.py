"""Patches for upstream review, as described by patches/groups.

Unlike patches/, whose files touch existing upstream files only, a review
patch brings its new files along and stands on its own.
"""

import configparser
import fnmatch
import textwrap
from dataclasses import dataclass, replace

from . import patch as patches
from . import worktree
from .base import DevError, locked, say

GROUPS = "groups"


@dataclass(frozen=True)
class Group:
    """A review patch: names of patch files, and patterns of overlay paths.

    As read from patches/groups, `patches` holds patterns, too.
    """

    title: str
    why: str
    patches: tuple
    patterns: tuple

    def owns(self, path):
        """Say whether an overlay path belongs to this group."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.patterns)


def read_groups(path):
    """Parse patches/groups."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.read_string(path.read_text())
    return [Group(title, " ".join(section.get("why", "").split()),
                  tuple(section.get("patches", "").split()),
                  tuple(section.get("overlay", "").split()))
            for title, section in ((name, parser[name]) for name in parser.sections())]


def expand(groups, patch_names):
    """Replace the patterns of patch names in groups by the names they match.

    Raises DevError for a pattern that matches none.
    """
    expanded = []
    for group in groups:
        names = []
        for pattern in group.patches:
            matches = fnmatch.filter(patch_names, pattern)
            if not matches:
                raise DevError(f"patches/groups: {pattern} matches no patch",
                               "compare it with patches/series")
            names += matches
        expanded.append(replace(group, patches=tuple(names)))
    return expanded


def problems(groups, patch_names, overlay_paths):
    """Describe each patch and overlay file that is not in exactly one group."""
    owners = {f"patches/{name}": [g.title for g in groups if name in g.patches]
              for name in patch_names}
    owners.update({f"overlay/{path}": [g.title for g in groups if g.owns(path)]
                   for path in overlay_paths})
    found = [f"{thing} is in no section" for thing, titles in owners.items() if not titles]
    return found + [f"{thing} is in several: {', '.join(titles)}"
                    for thing, titles in owners.items() if len(titles) > 1]


def write(paths, source, directory):
    """Write the review series into `directory`; returns the number of patches.

    Raises DevError as commit() does.
    """
    with locked(paths):
        git = worktree.repository(paths)
        upstream = worktree.upstream_commit(git, source)
        tip, number = commit(paths, git, upstream)
        git("format-patch", "-q", "--zero-commit", "--no-signature", "--numbered",
            "--no-renames", "-o", directory.resolve(), f"{upstream}..{tip}")
    say(f"wrote {number} patches into {directory}")
    return number


def commit(paths, git, upstream):
    """Commit the review series on `upstream`; returns its tip, and how many.

    Raises DevError if the groups are not a partition of patches/ and
    overlay/, or if a group does not apply on the groups before it.
    """
    series = dict(patches.read_series(paths.patches))
    overlay = worktree.overlay_entries(git, paths)
    groups = expand(read_groups(paths.patches / GROUPS), list(series))
    wrong = problems(groups, series, overlay)
    if wrong:
        raise DevError("patches/groups: " + "; ".join(wrong[:8]),
                       "name each patch and overlay file in one section")
    tip = _commit_groups(git, upstream, groups, series, overlay)
    if git("diff", "--name-only", tip, worktree.assemble(git, paths, upstream)):
        raise DevError("the groups give another tree than patches/series")
    return tip, len(groups)


def _commit_groups(git, upstream, groups, series, overlay):
    """Commit each group on the one before; returns the tip."""
    known = git.files(upstream)
    tip = upstream
    for group in groups:
        with git.scratch(tip) as scratch:
            partial = tip
            for name in group.patches:
                partial = worktree.apply(scratch, partial, name, series[name], known)
            scratch.stage({path: e for path, e in overlay.items() if group.owns(path)})
            members = [series[name] for name in group.patches]
            tip = scratch.commit(_message(group, members), [tip], author=_author(git, members))
    return tip


def _message(group, members):
    """Return the commit message of a group of patches."""
    why = textwrap.fill(group.why, 76) or "\n\n".join(m.body for m in members if m.body)
    return f"{group.title}\n\n{why}".rstrip("\n") + "\n"


def _author(git, members):
    """Return the author of a group: that of its first patch, else the user."""
    if members:
        return members[0].author
    name = git("config", "user.name", check=False) or "dev"
    return f"{name} <{git('config', 'user.email', check=False) or 'dev@localhost'}>"
