"""Builds with meson and ninja, each in a directory of its own."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base import (
    DevError,
    Paths,
    clean_env,
    give_to_user,
    identity,
    locked,
    output,
    require_reachable,
    run,
    say,
    server_user,
)
from common.progress import follow

DISABLED = ("bonjour", "bsd_auth", "docs", "docs_pdf", "dtrace", "gssapi", "icu", "ldap",
            "libcurl", "libnuma", "libxml", "libxslt", "llvm", "nls", "pam", "plperl",
            "plpython", "pltcl", "selinux", "systemd")
ENABLED = ("liburing", "lz4", "readline", "zlib", "zstd")
COMMON = (*(f"-D{name}=disabled" for name in DISABLED),
          *(f"-D{name}=enabled" for name in ENABLED),
          "-Dssl=none", "-Duuid=none", "-Db_pch=false", "--libdir=lib")

# -O1 halves the build time of -O2 on slow machines and still inlines enough
# for the suites to run at a fair speed.  Files of relations end after 512 kB, or no
# relation of tests would have two of them.
TEST = (*COMMON, "-Dbuildtype=debugoptimized", "-Doptimization=1", "-Dcassert=true",
        "-Dinjection_points=true", "-Dsegsize_blocks=64", "-Dtap_tests=enabled")
RELEASE = (*COMMON, "-Dbuildtype=debugoptimized", "-Doptimization=2", "-Dcassert=false",
           "-Dinjection_points=false", "-Dtap_tests=disabled")

# Children get nothing from the postmaster but shared memory and what is handed over on
# purpose, as on Windows.
EXEC_BACKEND = (*TEST, "-Dc_args=-DEXEC_BACKEND")

# Validates the sources (xmllint) before it applies the stylesheets.
DOC = (*(option for option in RELEASE if option != "-Ddocs=disabled"), "-Ddocs=enabled")

# Meson puts ccache in front of a compiler that it has chosen itself, and pg_config then
# tells builds of extensions to use it.  So we choose, and Debian's directory of
# links that lead to ccache comes first where compilers are looked for.
COMPILER = "cc"
CCACHE_LINKS = "/usr/lib/ccache"

# Compiled for Windows and linked, with the modules of the tests; nothing is run.
WITHOUT_LIBRARIES = tuple(f"-D{name}=disabled" for name in ENABLED)
WINDOWS = (*TEST, *WITHOUT_LIBRARIES, "-Dtap_tests=disabled",
           f"--cross-file={Path(__file__).parent / 'cross' / 'windows.ini'}")


@dataclass(frozen=True)
class Kind:
    """What to build: our tree or the pristine one, options, test programs, target.

    `packages` are those of Debian that only this kind needs.
    """

    ours: bool
    options: tuple
    tests: bool
    target: str = "install-quiet"
    packages: tuple = ()

    @property
    def installed(self) -> bool:
        """Is there a directory of programs?"""
        return self.target == "install-quiet"


KINDS = {
    "test": Kind(ours=True, options=TEST, tests=True),
    "release": Kind(ours=True, options=RELEASE, tests=False),
    "exec-backend": Kind(ours=True, options=EXEC_BACKEND, tests=True),
    "stock": Kind(ours=False, options=TEST, tests=True),
    "stock-release": Kind(ours=False, options=RELEASE, tests=False),
    "doc": Kind(ours=True, options=DOC, tests=False, target="html",
                packages=("docbook-xml", "docbook-xsl", "libxml2-utils", "xsltproc")),
    "windows": Kind(ours=True, options=WINDOWS, tests=False, target="all",
                    packages=("gcc-mingw-w64-x86-64",)),
}


def tested_kinds() -> list[str]:
    """Return the kinds of our tree that come with programs for tests."""
    return [name for name, kind in KINDS.items() if kind.ours and kind.tests]


def build(paths: Paths, kind: str, source_tree: Path) -> Path:
    """Configure, compile and install `kind`; returns its bin directory."""
    with locked(paths):
        started = time.monotonic()
        for directory in (paths.build(kind), paths.prefix(kind), paths.root / "ccache"):
            give_to_user(directory)
        require_reachable(source_tree)
        _configure(paths, kind, source_tree)
        _compile(paths, kind)
        seconds = time.monotonic() - started
        say(f"{kind} build is ready after {seconds:.0f} s: {product(paths, kind)}")
    return bindir(paths, kind)


def bindir(paths: Paths, kind: str) -> Path:
    """Return the directory of the installed programs of `kind`."""
    return paths.prefix(kind) / "bin"


def product(paths: Paths, kind: str) -> Path:
    """Return the directory of what people use of a build."""
    if KINDS[kind].installed:
        return bindir(paths, kind)
    if KINDS[kind].target == "html":
        return paths.build(kind) / "doc" / "src" / "sgml" / "html"
    return paths.build(kind)


def is_built(paths: Paths, kind: str) -> bool:
    """Say whether `kind` was built and installed at some time."""
    return (bindir(paths, kind) / "pg_ctl").exists()


def introspect_tests(paths: Paths, kind: str) -> list[dict[str, Any]]:
    """Return meson's description of the tests of a configured build."""
    return json.loads(output(["meson", "introspect", "--tests", paths.build(kind)],
                             user=server_user(), env=clean_env(paths)))


def compiler_env(paths: Paths) -> dict[str, str]:
    """Return the environment to compile in."""
    env = clean_env(paths, CC=COMPILER)
    return {**env, "PATH": f"{CCACHE_LINKS}:{env.get('PATH', os.defpath)}"}


def _configure(paths, kind, source_tree):
    """Run `meson setup`, afresh if options or the source's place changed."""
    directory = paths.build(kind)
    setup = [*KINDS[kind].options, f"--prefix={paths.prefix(kind)}",
             str(directory), str(source_tree)]
    stamp = directory / ".dev-setup"
    wanted = hashlib.sha256("\n".join((f"CC={COMPILER}", *setup)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"configuring the {kind} build")
    shutil.rmtree(directory)
    give_to_user(directory)
    done = run(["meson", "setup", *setup], user=server_user(), env=compiler_env(paths),
               capture=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode()[-3000:])
        raise DevError("meson setup failed", f"see {directory}/meson-logs/meson-log.txt")
    stamp.write_text(wanted)


def _compile(paths, kind):
    """Compile and install, and compile what tests need besides."""
    directory = paths.build(kind)
    targets = [KINDS[kind].target]
    if KINDS[kind].tests:
        targets += _test_programs(paths, directory)
    say(f"compiling the {kind} build")
    command = ["ninja", "-C", str(directory), *targets]
    child = subprocess.Popen(command, env=compiler_env(paths), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True, errors="replace",
                             **identity(server_user()))
    follow(child.stdout, f"compiling the {kind} build", r"\[(\d+)/(\d+)\] ")
    if child.wait() != 0:
        raise DevError(f"the {kind} build failed", "the compiler's messages are above")


def _test_programs(paths, directory):
    """Return the targets that tests need, except those of the ecpg suite."""
    # What is new in a meson.build is known only when that has been read again.
    for query in (["build.ninja"], ["-t", "query", "testprep"]):
        answer = output(["ninja", "-C", directory, *query], user=server_user(),
                        env=compiler_env(paths))
    inputs = answer.partition("input: phony")[2].partition("outputs:")[0].split()
    return [name for name in inputs
            if name != "|" and not name.startswith("src/interfaces/ecpg/")]
