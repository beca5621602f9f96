"""What is put beside something that is built: its SPDX document, by debsbom, and checksums."""

import datetime
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.base import Paths, run

from . import deps, worktree
from .source import sha256

# The program of PyPI's that writes the documents, and what pip needs.
DEBSBOM = "debsbom[spdx]==0.10.2"
PACKAGES = ("python3-venv",)

SUMS = "SHA256SUMS"


def write(paths: Paths, target: Path, root: Path, version: str, summary: str,
          data: Mapping[str, str]) -> None:
    """Write the document NAME.spdx.json of the Debian packages that a root directory has.

    What is read there are dpkg's list of packages, and their copyrights.  The document has the
    time of the repository's commit, and `data` besides that.
    """
    programs = deps.from_pip(paths, "sbom-venv", DEBSBOM)
    time = datetime.datetime.fromtimestamp(worktree.commit_time(paths), datetime.UTC)
    commit = worktree.commit(paths).get("commit", "none")
    added = [f"--add-meta-data={key}={value}" for key, value in {**data, "commit": commit}.items()]
    run([programs / "debsbom", "generate", "--sbom-type", "spdx", "--root", root,
         "--distro-arch", "amd64", "--distro-name", "postgresql-dw", "--distro-version", version,
         "--distro-summary", summary, "--distro-supplier", "Double Write Team",
         "--spdx-namespace", f"https://example.org/spdx/{target.stem}-{commit}", *added,
         "--timestamp", time.isoformat(), "--with-licenses", "--validate",
         "--out", target.with_suffix("").with_suffix("")],
        env={**os.environ, "PYTHONHASHSEED": "0"})       # else packages come in any order


def write_sums(directory: Path, files: Iterable[Path], inside: Path | None = None) -> None:
    """Write SHA256SUMS to a directory, of files that are in it, or in another one."""
    inside = inside or directory
    lines = [f"{sha256(path)}  {path.relative_to(inside)}\n" for path in sorted(files)
             if path.is_file() and not path.is_symlink() and path != directory / SUMS]
    (directory / SUMS).write_text("".join(lines))
