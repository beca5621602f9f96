"""Linters of files that other programs read, each by a tool of its kind: `./dev lint`.

The manifest for Kubernetes against its schema; the dashboard against Grafana's, which is in
TypeScript; the RPM spec by rpmlint, and its %prep by rpmbuild, which shows that the series
applies with patch(1).  Nothing is compiled.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common.base import DevError, Paths, run, say

from . import deps, lock, rules, series
from . import patch as patches
from .source import Source
from .suites import NO_MODE, Result

PACKAGES = ("patch", "python3-venv", "rpm", "rpmlint")
SCHEMA = ("@grafana/schema@13", "typescript@7")
VALIDATOR = "kubernetes-validate>=1.34,<2"

MANIFEST = "packaging/kubernetes/statefulset.yaml"
SPEC = "packaging/rpm/postgresql-dw.spec"
CONTAINER = "packaging/container/Containerfile"
PATRONI = "packaging/patroni/1_double_writes.yml"


def check(paths: Paths, source: Source) -> Result:
    """Run the linters; returns a Result."""
    spec, manifest, recipe = ((paths.repo / name).read_text()
                              for name in (SPEC, MANIFEST, CONTAINER))
    outcomes = (_kubernetes(paths), _grafana(paths), _rpmlint(paths), _prepare(paths, source),
                list(complaints(spec, lock.read(paths.lock_file).version, manifest, recipe)),
                list(of_patroni((paths.repo / PATRONI).read_text(),
                                "".join((paths.patches / name).read_text()
                                        for name in patches.files(paths.patches)))))
    for complaint in (line for said in outcomes for line in said):
        say(complaint)
    failed = sum(1 for said in outcomes if said)
    return Result("dev/lint", NO_MODE, len(outcomes) - failed, failed, 0, 0, again=("./dev lint",))


def complaints(spec: str, version: str, manifest: str, recipe: str) -> Iterator[str]:
    """Say where the spec and the manifest do not fit the rest of the repository."""
    of_spec = re.search(r"^Version: +(\S+)", spec, re.MULTILINE)[1]
    if of_spec != version:
        yield f"{SPEC} is of {of_spec}, upstream.lock of {version}"
    copied = " ".join(re.findall(r"^COPY .*", recipe, re.MULTILINE)).split()
    for program in sorted(set(re.findall(r"command: \[([\w-]+)", manifest)) - set(copied)):
        yield f"{MANIFEST} calls {program}, which {CONTAINER} does not install"


def of_patroni(known: str, diffs: str) -> Iterator[str]:
    """Say which settings and values of the patches Patroni would not know, and the reverse."""
    settings = set(re.findall(r'^\+\t\t\{"(?!debug_)(\w+)", PGC_', diffs, re.MULTILINE))
    settings.add("checkpoint_timeout")      # which is stock's, but may be shorter
    for name in sorted(settings ^ set(re.findall(r"^  (\w+):$", known, re.MULTILINE))):
        yield (f"{PATRONI} lacks {name}" if name in settings else
               f"{PATRONI} has {name}, which is no setting of ours")
    # Patroni knows "off" and "on" where it knows a Boolean.
    values = set(re.findall(r'^\+\t\{"(\w+)", \w+, false\}', diffs, re.MULTILINE)) - {"off", "on"}
    for value in sorted(values - set(re.findall(r"^    - '?(\w+)'?$", known, re.MULTILINE))):
        yield f"{PATRONI} lacks the value {value}"


def _kubernetes(paths):
    programs = deps.from_pip(paths, "kubernetes-venv", VALIDATOR)
    return _said([programs / "kubernetes-validate", "--strict", paths.repo / MANIFEST])


def _grafana(paths):
    place = paths.root / "grafana-schema"
    if not (place / "node_modules").exists():
        if not shutil.which("npm"):
            raise DevError("there is no npm, which installs Grafana's schema")
        say(f"installing {' and '.join(SCHEMA)} with npm into {place}")
        place.mkdir(exist_ok=True)
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place, *SCHEMA])
    dashboard = (paths.repo / rules.PLACE / rules.DASHBOARD).read_text()
    program = place / "dashboard.ts"
    program.write_text('import { Dashboard } from "@grafana/schema";\n'
                       f"export const dashboard: Dashboard = {dashboard}")
    return _said([place / "node_modules" / ".bin" / "tsc", "--noEmit", "--strict",
                  "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext",
                  program])


def _rpmlint(paths):
    """Give errors and warnings, except what is on purpose."""
    said = _said(["rpmlint", paths.repo / SPEC], fails=False)
    # rpm has had no use for a tag BuildRoot since 4.6, and the second archive is made here.
    return [line for line in said if re.search(r": [EW]: ", line)
            and not re.search(r"no-buildroot-tag|invalid-url Source1", line)]


def _prepare(paths, source):
    """Have rpmbuild unpack the sources and apply the series."""
    with tempfile.TemporaryDirectory(prefix="rpm-", dir=paths.root) as directory:
        place = Path(directory)
        mails, sources = place / "mails", place / "SOURCES"
        mails.mkdir()
        sources.mkdir()
        series.write(paths, source, mails)
        tree = Path(source.tree)
        for archive, top in ((f"postgresql-{source.version}.tar.bz2", tree),
                             (f"double-writes-{source.version}.tar.gz", mails)):
            # Uncompressed, which rpmbuild sees.
            run(["tar", "-cf", sources / archive, "-C", top.parent, top.name])
        shutil.copy(paths.repo / SPEC, place)
        return _said(["rpmbuild", "-bp", "--nodeps", "--define", f"_topdir {place}",
                      place / Path(SPEC).name])


def _said(command, fails=True):
    """Return the last lines that a program has said; none if all is well with it."""
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done.stdout.splitlines()[-20:] if done.returncode or not fails else []
