"""work/: PostgreSQL, our patches and our new files as one git tree.

    patches/ + overlay/  --import-->  upstream, a commit per patch, overlay
    patches/ + overlay/  <--export--  the commits in work/

`import` builds its commits beside the working tree and then moves the tree
there in one step, so a patch that does not apply changes nothing, and files
that stay the same keep their time stamps and need no rebuild.

What repository and work/ last agreed on is kept in work/ under the ref
AGREED: its tree is the common contents, its parent the commit of work/ at
that time, its message a digest of patches/.  From it we see on which side
something was edited since, and never overwrite an edit unasked.
"""

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, locked, note, output, run, say, write_if_changed

from . import patch as patches
from .git import Git
from .source import Source

AGREED = "refs/dev/agreed"
PREVIOUS = "refs/dev/previous"
OVERLAY_TITLE = "overlay"

# What servers and benchmarks are made of.
MADE_OF = ("overlay", "patches", "upstream.lock", "bench", "common", "devtools", ":!bench/results")

ARTEFACT = re.compile(r"\.(o|so|a|bc|orig|rej|pyc|swp|gcno|gcda)$|~$"
                      r"|(^|/)(core|tmp_check|testrun|output_iso|__pycache__)(/|$)")


@dataclass(frozen=True)
class Agreed:
    """The last state common to the repository and work/."""

    head: str
    files: dict
    digest: str


def repository(paths: Paths) -> Git:
    """Return the Git of work/, created if need be."""
    git = Git(paths.work, paths.work)
    git.init()
    return git


# Building commits from patches/ and overlay/ ------------------------------


def upstream_commit(git: Git, source: Source) -> str:
    """Return the commit that holds a pristine Source, made on first use."""
    ref = f"refs/dev/upstream/{source.version}-{source.sha256[:12]}"
    commit = git.resolve(ref)
    if not commit:
        say(f"recording PostgreSQL {source.version} in git")
        pristine = Git(git.repo, Path(source.tree))
        with pristine.scratch(pristine("hash-object", "-t", "tree", "-w", "--stdin",
                                       data=b"")) as scratch:
            scratch("-c", "core.autocrlf=false", "add", "--all", "--force", ".")
            commit = scratch.commit(f"PostgreSQL {source.version}\n", [])
        git("update-ref", ref, commit)
    return commit


_assembled: dict[tuple, str] = {}
_assembling = threading.Lock()


def assemble(git: Git, paths: Paths, upstream: str) -> str:
    """Commit patches/ and overlay/ on top of `upstream`, once for what these are; returns the tip.

    No working tree is touched.  Raises DevError if a patch does not apply
    exactly or a file is on the wrong side of the patches/overlay divide.
    """
    overlay = overlay_entries(git, paths)
    key = git.repo, upstream, _digest(paths), tuple(sorted(overlay.items()))
    with _assembling:
        if key not in _assembled or not git.resolve(_assembled[key]):
            _assembled[key] = _assemble(git, paths, upstream, overlay)
    return _assembled[key]


def _assemble(git, paths, upstream, overlay):
    known = git.files(upstream)
    require_new(overlay, known)
    tip = upstream
    with git.scratch(upstream) as scratch:
        for name, patch in patches.read_series(paths.patches):
            tip = apply(scratch, tip, name, patch, known)
        if overlay:
            scratch.stage(overlay)
            tip = scratch.commit(OVERLAY_TITLE + "\n", [tip])
    return tip


def apply(scratch: Git, parent: str, name: str, patch: patches.Patch,
          known: Mapping[str, tuple[str, str]]) -> str:
    """Apply a patch to the index of `scratch` and commit it on `parent`.

    `git apply` is stricter than `patch -F0`: all context must match.
    """
    problem = f"patches/{name} does not apply"
    try:
        if patch.diff:
            scratch("apply", "--cached", "--whitespace=nowarn", "-", data=patch.diff)
    except DevError as exc:
        raise DevError(problem) from exc
    commit = scratch.commit(patch.message, [parent], author=patch.author)
    foreign = set(changed_paths(scratch, commit)) - set(known)
    if foreign:
        raise DevError(f"patches/{name} adds {', '.join(sorted(foreign))}",
                       "new files belong in overlay/")
    return commit


def changed_paths(git: Git, commit: str) -> list[str]:
    """Return the paths that `commit` changes against its only parent."""
    listing = git.raw("diff-tree", "-r", "-z", "--no-renames", "--name-only",
                      "--no-commit-id", commit).decode()
    return [path for path in listing.split("\0") if path]


def overlay_entries(git: Git, paths: Paths) -> dict[str, tuple[str, str]]:
    """Store the files of overlay/ as blobs; returns {path: (mode, blob)}."""
    found = sorted(p for p in paths.overlay.rglob("*") if p.is_symlink() or not p.is_dir())
    files = {path.relative_to(paths.overlay).as_posix(): path for path in found}
    for name, path in files.items():
        require_source(name, path.is_symlink())
    return git.store(files)


def require_source(name: str, is_link: bool) -> None:
    """Raise DevError for what must not be in overlay/: links and artefacts."""
    if is_link:
        raise DevError(f"{name} is a symbolic link", "overlay/ holds plain files only")
    if ARTEFACT.search(name):
        raise DevError(f"{name} looks like a build artefact", "remove it")


def require_new(overlay: Mapping[str, tuple[str, str]],
                known: Mapping[str, tuple[str, str]]) -> None:
    """Raise DevError if a file of the overlay exists upstream too."""
    doubles = sorted(set(overlay) & set(known))
    if doubles:
        raise DevError("overlay/ holds copies of upstream files: " + ", ".join(doubles),
                       "change upstream files by a patch")


def refusal(paths: Paths, source: Source) -> str | None:
    """Return why patches/ and overlay/ do not fit `source`, or None."""
    git = repository(paths)
    try:
        assemble(git, paths, upstream_commit(git, source))
    except DevError as exc:
        return str(exc)
    return None


# What both sides had last, and which has edits since ------------------------


def _digest(paths):
    """Return a digest of the contents of patches/."""
    digest = hashlib.sha256()
    for name in [*patches.files(paths.patches), patches.SERIES]:
        digest.update(f"{name}\n".encode() + (paths.patches / name).read_bytes())
    return digest.hexdigest()


def _agreed(git):
    """Return the Agreed state, or None before the first import."""
    if not git.resolve(AGREED):
        return None
    head, digest = git("log", "-1", "--format=%P %s", AGREED).split()
    return Agreed(head, git.files(AGREED), digest)


def _agree(git, paths, head, treeish=None):
    """Record that the repository now holds `treeish`, exported from `head`."""
    marker = git.with_entries(treeish or head, {}, _digest(paths), [head])
    git("update-ref", AGREED, marker)


def _new_files(files, known):
    """Return the part of {path: entry} that does not exist upstream."""
    return {path: entry for path, entry in files.items() if path not in known}


def commit(paths: Paths, *more: str) -> dict[str, Any]:
    """Return the commit of the repository, and whether what is built and measured is of it.

    What is in the directories `more` counts, too.  {} if the repository is none of git's: then
    figures are of no commit.
    """
    head = _ask_git(paths, "rev-parse", "-q", "--verify", "HEAD")
    if not head:
        return {}
    edited = _ask_git(paths, "status", "--porcelain", "--", *MADE_OF, *more) or \
        edits_in_work(repository(paths), paths)
    return {"commit": head, "commit dirty": "yes" if edited else "no"}


def stamp(paths: Paths, *more: str) -> str:
    """Return the commit in short, with "-dirty" if what is tried is not of it; see commit()."""
    state = commit(paths, *more)
    return state["commit"][:8] + "-dirty" * (state["commit dirty"] == "yes") if state else "none"


def tree(paths: Paths) -> str:
    """Return the content of the repository's commit, as a hash; "" if git does not know it."""
    return _ask_git(paths, "rev-parse", "-q", "--verify", "HEAD^{tree}")


def check_out_committed(paths: Paths, names: Iterable[str], directory: Path) -> None:
    """Write what was committed last of these directories of the repository to `directory`."""
    archive = run(["git", "-c", f"safe.directory={paths.repo}", "archive", "HEAD", *names],
                  cwd=paths.repo, capture=True).stdout
    run(["tar", "-x", "-C", directory], data=archive)


def commit_time(paths: Paths) -> int:
    """Return when the repository's commit was made, in seconds: what builds take for the time.

    If the repository is none of git's, the time of its newest patch.
    """
    seconds = _ask_git(paths, "log", "-1", "--format=%ct")
    return int(seconds) if seconds else \
        int(max(path.stat().st_mtime for path in paths.patches.iterdir()))


def _ask_git(paths, *args):
    """Return what git says of the repository, or ""."""
    # The checkout may belong to another user than ours.
    return output(["git", "-c", f"safe.directory={paths.repo}", *args], cwd=paths.repo,
                  check=False)


def edits_in_work(git: Git, paths: Paths) -> list[str]:
    """Describe the edits in work/ that an import would overwrite."""
    agreed = _agreed(git)
    if not agreed:
        return []
    edits = [f"uncommitted: {path}" for path in git.modified()
             if not _same(paths.work / path, paths.overlay / path)]
    edits += [f"untracked: {path}" for path in git.strays()
              if (paths.overlay / path).exists()
              and not _same(paths.work / path, paths.overlay / path)]
    if git.resolve("HEAD") != agreed.head:
        edits.append("commits that were not exported")
    return edits


def _same(one, other):
    """Say whether two files exist with the same contents and executable bit."""
    return (one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()
            and one.stat().st_mode & 0o100 == other.stat().st_mode & 0o100)


# Import, sync -------------------------------------------------------------


def import_(paths: Paths, source: Source, force: bool = False) -> str:
    """Make work/ hold upstream, patches/ and overlay/; returns the tip.

    Raises DevError if that would lose edits in work/.  With `force` they are
    overwritten, and what was there can still be found under PREVIOUS.
    """
    with locked(paths):
        git = repository(paths)
        git.require_quiet()
        edits = edits_in_work(git, paths)
        if edits and not force:
            raise DevError("work/ has edits: " + "; ".join(edits[:8]),
                           "./dev export first, or ./dev import --force")
        upstream = upstream_commit(git, source)
        tip = assemble(git, paths, upstream)
        if edits:
            git("update-ref", PREVIOUS, git("stash", "create") or git.resolve("HEAD"))
            note(f"what was in work/ is kept there as {PREVIOUS}")
        git("tag", "--force", "upstream", upstream)
        git("reset", "-q", "--hard", tip)
        _agree(git, paths, tip)
        count = git("rev-list", "--count", "upstream..HEAD")
        say(f"work/ holds PostgreSQL {source.version} and {count} commits of ours")
        return tip


def sync(paths: Paths, source: Source) -> None:
    """Bring what was edited in patches/ and overlay/ into work/.

    Without edits in work/ this is an import.  With edits, files of overlay/
    that were not edited in work/ are copied and committed there; raises
    DevError if the same file, or patches/, was edited on both sides.
    """
    with locked(paths):
        git = repository(paths)
        agreed = _agreed(git)
        if agreed and not _edited_in_repository(git, paths, source, agreed):
            return
        if not agreed or not edits_in_work(git, paths):
            import_(paths, source)
            return
        git.require_quiet()
        upstream = git.resolve("upstream")
        if agreed.digest != _digest(paths) or upstream_commit(git, source) != upstream:
            raise DevError("both patches/ (or the release) and work/ were edited",
                           "./dev export --force keeps work/, ./dev import --force patches/")
        _copy_overlay(git, paths, agreed, git.files(upstream))


def _edited_in_repository(git, paths, source, agreed):
    """Say whether patches/, overlay/ or the release changed since agreed."""
    upstream = upstream_commit(git, source)
    return (agreed.digest != _digest(paths)
            or git.resolve("upstream") != upstream
            or overlay_entries(git, paths) != _new_files(agreed.files, git.files(upstream)))


def _copy_overlay(git, paths, agreed, known):
    """Copy and commit files edited in overlay/ only; work/ has other edits."""
    base = _new_files(agreed.files, known)
    now = overlay_entries(git, paths)
    require_new(now, known)
    take = {path: now.get(path) for path in sorted({*base, *now})
            if now.get(path) != base.get(path)}
    present = {path: paths.work / path for path in take if (paths.work / path).is_file()}
    work = git.store(present)
    both = [path for path, entry in take.items()
            if work.get(path) not in (entry, base.get(path))]
    if both:
        raise DevError("edited in overlay/ and in work/: " + ", ".join(both),
                       "make them equal on one side, then ./dev sync again")
    for path, entry in take.items():
        _copy(paths, path, entry)
    head = git.resolve("HEAD")
    tip = git.with_entries("HEAD", take, "overlay: sync\n", [head])
    git("update-ref", "HEAD", tip)
    git.stage(take)
    git("update-index", "-q", "--refresh", check=False)
    contents = git.with_entries(AGREED, take, "", [])
    _agree(git, paths, tip if head == agreed.head else agreed.head, contents)
    say(f"copied {len(take)} files of overlay/ to work/, beside the edits there")


def _copy(paths, path, entry):
    """Make the file `path` of work/ equal to that of overlay/, or absent."""
    target = paths.work / path
    if entry:
        write_if_changed(target, (paths.overlay / path).read_bytes(), int(entry[0][-3:], 8))
    else:
        target.unlink(missing_ok=True)


# Export -------------------------------------------------------------------


def export(paths: Paths, force: bool = False) -> None:
    """Write the commits of work/ back to patches/ and overlay/.

    Raises DevError if work/ has uncommitted or stray files or, unless
    `force`, if patches/ or overlay/ were edited since the last import.
    """
    with locked(paths):
        git = repository(paths)
        agreed = _agreed(git)
        if not agreed:
            raise DevError("work/ is empty", "./dev import first")
        git.require_quiet()
        _require_committed(git)
        known = git.files("upstream")
        if not force:
            _require_unedited(git, paths, agreed, known)
        series = _patches_of(git, known)
        new = _new_files(git.files("HEAD"), known)
        for path, (mode, _) in new.items():
            require_source(path, mode == "120000")
        names = patches.write_series(paths.patches, series)
        _write_overlay(git, paths, new)
        _agree(git, paths, git.resolve("HEAD"))
        say(f"wrote {len(names)} patches and {len(new)} files of overlay/")


def _require_committed(git):
    """Raise DevError if work/ holds anything that is not committed."""
    modified, strays = git.modified(), git.strays()
    if modified:
        raise DevError("not committed in work/: " + ", ".join(modified[:8]), "commit first")
    if strays:
        raise DevError("stray files in work/: " + ", ".join(strays[:8]),
                       "commit or remove them (git -C work clean -xdn lists them)")


def _require_unedited(git, paths, agreed, known):
    """Raise DevError if the repository has edits that work/ lacks."""
    if overlay_entries(git, paths) != _new_files(agreed.files, known):
        raise DevError("overlay/ has edits that work/ lacks",
                       "./dev sync first, or ./dev export --force to drop them")
    if agreed.digest != _digest(paths):
        raise DevError("patches/ has edits that work/ lacks",
                       "./dev import first, or ./dev export --force to drop them")


def _patches_of(git, known):
    """Return a Patch for each commit of work/ that changes upstream files, or brings new ones."""
    if not git.resolve("HEAD") or git("merge-base", "upstream", "HEAD") != git.resolve("upstream"):
        raise DevError("work/ is not based on its tag `upstream`")
    if git("rev-list", "--merges", "upstream..HEAD"):
        raise DevError("work/ has merge commits", "rebase instead")
    series = []
    for commit in git("rev-list", "--reverse", "upstream..HEAD").split():
        ours = [path for path in changed_paths(git, commit) if path in known]
        if ours or "\nOverlay: " in git("log", "-1", "--format=%B", commit):
            series.append(_patch_of(git, commit, ours))
    return series


def diff_of(git: Git, *what: str) -> bytes:
    """Return what `git diff-tree` says of `what`, in the form that patches have."""
    return git.raw("diff-tree", "-p", "-r", "--no-commit-id", "--no-renames", "--no-color",
                   "--no-ext-diff", "--no-textconv", "--full-index", "--unified=3",
                   "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", *what)


def _patch_of(git, commit, paths):
    """Return the Patch of what `commit` does to `paths`."""
    author, _, message = git("log", "-1", "--format=%an <%ae>%n%B", commit).partition("\n")
    diff = diff_of(git, commit, "--", *paths) if paths else b""
    patch = patches.from_commit(author, message, diff)
    if re.match(r"(fixup|squash|amend)!", patch.title):
        raise DevError(f"work/ has a commit `{patch.title}`",
                       "git -C work rebase -i --autosquash upstream")
    if b"\nBinary files " in diff:
        raise DevError(f"commit `{patch.title}` changes a binary upstream file")
    return patch


def _write_overlay(git, paths, new):
    """Make overlay/ hold exactly the files `new`, {path: (mode, blob)}."""
    current = overlay_entries(git, paths)
    for path in set(current) - set(new):
        (paths.overlay / path).unlink()
    for path, (mode, blob) in new.items():
        if current.get(path) != (mode, blob):
            write_if_changed(paths.overlay / path, git.raw("cat-file", "blob", blob),
                             int(mode[-3:], 8))
    directories = [path for path in paths.overlay.rglob("*") if path.is_dir()]
    for directory in sorted(directories, reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()
