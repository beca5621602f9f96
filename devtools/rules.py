"""The alerting rules in packaging/monitoring, tried with Prometheus's own promtool; the dashboard.

Packages are unpacked, not installed: that would start a Prometheus.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, output, run, say

from .suites import NO_MODE, Result

PACKAGE = "prometheus"
PLACE = "packaging/monitoring"
QUERIES = "postgres_exporter.yaml"
RULES, TESTS = "prometheus-rules.yaml", "prometheus-rules-test.yaml"
DASHBOARD = "grafana-dashboard.json"


def check(paths: Paths) -> Result:
    """Check and test the rules; returns a Result."""
    promtool = unpacked(paths, PACKAGE, "promtool")
    place = paths.repo / PLACE
    failed = 0
    for command in (("check", "rules", RULES), ("test", "rules", TESTS)):
        done = subprocess.run([promtool, *command], cwd=place, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            say(f"promtool {' '.join(command)}\n{done.stdout}")
            failed += 1
    queries = (place / QUERIES).read_text()
    for complaint in (*complaints((place / RULES).read_text(), (place / TESTS).read_text(),
                                  (paths.repo / "docs" / "operations.md").read_text(), queries),
                      *of_dashboard(json.loads((place / DASHBOARD).read_text()), queries)):
        say(complaint)
        failed += 1
    return Result("dev/rules", NO_MODE, 0 if failed else 4, failed, 0, 0, again=("./dev rules",))


def complaints(rules: str, tests: str, runbook: str,
               queries: str) -> Iterator[str]:
    """Say which rules no test has fire, are in no runbook, or ask for what is not exported."""
    headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
                for line in re.findall(r"^#+ (.*)$", runbook, re.MULTILINE)}
    for name in re.findall(r"- alert: (\w+)", rules):
        if f'alertname="{name}"' not in tests:
            yield f"no test has rule {name} fire"
    for anchor in dict.fromkeys(re.findall(r'runbook: "#([^"]*)"', rules)):
        if anchor not in headings:
            yield f"docs/operations.md has no section {anchor}"
    asked = re.sub(r"^ *(summary|description):.*$", "", rules, flags=re.MULTILINE)
    for metric in _not_exported(asked, queries):
        yield f"rules ask for {metric}, which postgres_exporter.yaml does not have"


def of_dashboard(dashboard: Mapping[str, Any],
                 queries: str) -> Iterator[str]:
    """Say which panels ask for what is not exported, or do not tell servers apart."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            for metric in _not_exported(target["expr"], queries):
                yield f"panel {panel['title']} asks for {metric}, which is not exported"
            aggregate = re.search(r"\b(?:sum|avg|min|max)\b(?! by \([^)]*\binstance\b)",
                                  target["expr"])
            if "{{instance}}" not in target["legendFormat"] or aggregate:
                yield f"panel {panel['title']} does not say which server is which"


def _not_exported(text, queries):
    """Return the metrics of ours that a text has and the exporter does not."""
    exported = {f"{group}_{column}" for group, body in re.findall(
        r"^(\w+):\n((?: .*\n|\n)*)", queries, re.MULTILINE)
        for column in re.findall(r"^    - (\w+):", body, re.MULTILINE)}
    return sorted(set(re.findall(r"\bpg_(?:double_write|atomic)\w*", text)) - exported)


def unpacked(paths: Paths, package: str, program: str) -> Path:
    """Return a program: the machine's, else that of its package, unpacked at first use."""
    found = shutil.which(program)
    if found:
        return Path(found)
    place = paths.root / "promtool"
    target = place / "usr" / "bin" / program
    if not target.exists():
        say(f"unpacking {program} of package {package}")
        place.mkdir(exist_ok=True)
        # Downloading wants lists of packages, which a new machine does not have.
        if not output(["apt-cache", "policy", package]) and os.getuid() == 0:
            run(["apt-get", "update", "-qq"])
        run(["apt-get", "download", "-qq", package], cwd=place)
        packages = list(place.glob(f"{package}_*.deb"))
        if not packages:
            raise DevError(f"cannot download package {package}")
        run(["dpkg-deb", "--extract", packages[0], place])
        packages[0].unlink()
    return target
