"""The cluster in packaging/patroni that Patroni looks after: what it needs, how it is called."""

from pathlib import Path

from common.base import (
    SYSTEM_PYTHON,
    Paths,
    clean_env,
    give_to_user,
    require_reachable,
    run,
    say,
    server_user,
)

from . import deps

# etcd is started by the script itself; the package's service is not used.
PACKAGES = ("etcd-server", "python3-psycopg2", "python3-venv")

# Debian's may be too old: 3.0 drops settings that it does not know.
REQUIREMENT = "patroni[etcd3]>=4.1,<5"


def call(paths: Paths, bindir: Path) -> None:
    """Run the script with the programs in `bindir`; raises DevError if a check fails."""
    deps.ensure(paths, PACKAGES)
    # With the machine's psycopg2.
    programs = deps.from_pip(paths, "patroni-venv", REQUIREMENT, "--system-site-packages")
    scratch = paths.root / "patroni"
    give_to_user(scratch)
    require_reachable(scratch)
    say("trying Patroni; if it fails, the logs stay in " + str(scratch))
    run([SYSTEM_PYTHON, paths.repo / "packaging" / "patroni" / "try_patroni.py",
         "--bindir", bindir, "--scratch", scratch, "--patroni", programs],
        cwd="/", user=server_user(), env=clean_env(paths))
