"""The cluster in packaging/patroni that Patroni looks after: what it needs, how it is called."""

from common.base import clean_env, give_to_user, require_reachable, run, say, server_user

from . import deps

# etcd is started by the script itself; the package's service is not used.
PACKAGES = ("etcd-server", "python3-psycopg2", "python3-venv")

# Debian's may be too old: 3.0 drops settings that it does not know.
REQUIREMENT = "patroni[etcd3]>=4.1,<5"


def call(paths, bindir):
    """Run the script with the programs in `bindir`; raises DevError if a check fails."""
    deps.ensure(paths, PACKAGES)
    programs = _installed(paths)
    scratch = paths.root / "patroni"
    give_to_user(scratch)
    require_reachable(scratch)
    say("trying Patroni; if it fails, the logs stay in " + str(scratch))
    run(["/usr/bin/python3", paths.repo / "packaging" / "patroni" / "try_patroni.py",
         "--bindir", bindir, "--scratch", scratch, "--patroni", programs],
        cwd="/", user=server_user(), env=clean_env(paths))


def _installed(paths):
    """Return the directory of Patroni's programs, installed with pip on first use."""
    venv = paths.root / "patroni-venv"
    if not (venv / "bin" / "patronictl").exists():
        say(f"installing Patroni with pip into {venv}")
        # With the machine's psycopg2.
        run(["/usr/bin/python3", "-m", "venv", "--system-site-packages", venv])
        run([venv / "bin" / "pip", "install", "--quiet", REQUIREMENT])
    return venv / "bin"
