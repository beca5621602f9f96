"""Servers that break a rule: a mutation of tests/mutations, compiled and linked.

Neither the build nor the sources are touched.  Only the files that the patch
changes are compiled, beside the build, and linked with the rest of the server.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What one step of making a server may take.
COMMAND_SECONDS = 900


class BrokenError(Exception):
    """A server that breaks a rule cannot be made."""


@dataclass(frozen=True)
class Workshop:
    """What servers are made of, and where they go."""

    build: str                  # a meson build ...
    source: str                 # ... of this tree, ...
    prefix: str                 # ... installed here
    mutations: str              # directory of patches
    target: str                 # directory of the servers

    def bindir(self, name: str) -> str:
        """Make the server that a mutation breaks; returns the directory of its programs."""
        place = Path(self.target) / name
        shutil.rmtree(place, ignore_errors=True)
        bindir = _install(Path(self.prefix), place / "install")
        patched = apply(Path(self.mutations) / f"{name}.patch", Path(self.source),
                        place / "source")
        build = Path(self.build)
        objects = {}
        for path in patched:
            command = _compile_command(build, path)
            copy = place / "source" / path
            objects[command["output"]] = f"{copy}.o"
            _run(_recompile(command, copy, f"{copy}.o"), build)
        _link(build, objects, bindir / "postgres")
        return bindir


    def digest(self, name: str) -> str:
        """Return what tells the patch of a mutation from others of its name."""
        return digest((Path(self.mutations) / f"{name}.patch").read_bytes())


def digest(mutation: bytes) -> str:
    """Return what tells the diff in a file of tests/mutations from others, as in its seen.json."""
    return hashlib.sha256(mutation.partition(b"\n\n")[2]).hexdigest()[:12]


def apply(patch: Path, source: Path, target: Any) -> list:
    """Apply a mutation to copies of the files that it changes; returns their paths.

    A control must not be lost unnoticed, so a patch that no longer applies is an error.
    """
    if not patch.exists():
        raise BrokenError(f"there is no mutation {patch.name}")
    paths = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
    for path in paths:
        if not path.endswith(".c"):
            raise BrokenError(f"{patch.name} changes {path}, on which other files depend")
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)
    # The copies may lie in the working tree of a repository, which is not meant.
    _run(["git", "apply", "--whitespace=nowarn", str(patch.resolve())], target,
         GIT_CEILING_DIRECTORIES=str(target.resolve().parent))
    return paths


def _install(prefix, place):
    """Install the programs anew, which find all else by their own path; returns bindir."""
    (place / "bin").mkdir(parents=True)
    for program in (prefix / "bin").iterdir():
        if program.name != "postgres":
            shutil.copy2(program, place / "bin")
    for other in prefix.iterdir():
        if other.name != "bin":
            (place / other.name).symlink_to(other)
    return place / "bin"


def _compile_command(build, path):
    """Return meson's compile command of a server source."""
    for command in json.loads((build / "compile_commands.json").read_text()):
        if command["file"].endswith("/" + path) and \
                ("postgres_lib" in command["output"] or "pgcommon_srv" in command["output"]):
            return command
    raise BrokenError(f"there is no compile command for {path} in {build}")


def _recompile(command, source, output):
    """Return a compile command for another source and object file."""
    text = command["command"]
    words = text.replace(command["file"], str(source)).replace(command["output"], output)
    return re.sub(r"^ccache ", "", words)


def _link(build, objects, output):
    """Link postgres with some objects replaced, as ninja would.

    An object that replaces a member of a library comes before the library.
    """
    query = _run(["ninja", "-C", str(build), "-t", "query", "src/backend/postgres"], build)
    inputs = re.findall(r"^    (?!\|)(\S+)$", query.partition("input:")[2].partition("outputs:")[0],
                        re.MULTILINE)
    rule = re.search(r"^build src/backend/postgres: .*?\n((?: .*\n)+)",
                     (build / "build.ninja").read_text(), re.MULTILINE)
    arguments = re.search(r"LINK_ARGS = (.*)", rule[1])[1]
    members = [copy for name, copy in objects.items() if name not in inputs]
    names = members + [objects.get(name, name) for name in inputs if name.endswith((".o", ".a"))]
    response = output.parent / "link.rsp"
    # Without debug symbols it takes a fifth of the memory in which it lies, and less time.
    response.write_text(" ".join(["-Wl,--strip-debug", "-o", str(output), *names, arguments]))
    try:
        _run(f"cc @{response}", build)
    finally:
        response.unlink()


def _run(command, directory, **environment):
    """Run a command, as words or as a line for the shell; returns what it prints."""
    done = subprocess.run(command, shell=isinstance(command, str), cwd=directory,
                          capture_output=True, text=True, timeout=COMMAND_SECONDS,
                          env={**os.environ, "CCACHE_DISABLE": "1", **environment})
    if done.returncode:
        raise BrokenError(f"failed: {command}\n{done.stderr[-3000:]}")
    return done.stdout
