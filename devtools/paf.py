"""The cluster in packaging/paf, with Pacemaker: made in a copy of the machine that is thrown away.

Its packages come with daemons and users, so nothing of them is installed outside that copy.
"""

import os
import shutil
from pathlib import Path

from common.base import DevError, Paths, run, say, server_user

PACKAGES = ("corosync", "iproute2", "pacemaker", "pacemaker-cli-utils", "procps",
            "resource-agents-paf")

SCRIPT = "packaging/paf/try_paf"

# In namespaces of its own.  No service starts, as invoke-rc.d is told by its policy.
COPY = """
cd "$1"
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
cd root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
chmod 1777 tmp
printf '#!/bin/sh\\nexit 101\\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
shift
exec chroot . sh -ec '
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends $0 >/dev/null
	dpkg-query -W $0
	exec "$@"' "$@"
"""


def call(paths: Paths, bindir: Path) -> None:
    """Run the script with the programs in `bindir`; raises DevError if a check fails."""
    if os.getuid() != 0:
        raise DevError("a copy of the machine, and networks in it, need root")
    place = paths.root / "paf"
    shutil.rmtree(place, ignore_errors=True)
    for name in ("upper", "work", "root"):
        (place / name).mkdir(parents=True)
    say("trying PAF; if it fails, the logs stay in " + str(place / "upper" / "srv" / "paf"))
    run(["unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child",
         "--uts", "--ipc", "sh", "-ec", COPY, "sh", place, " ".join(PACKAGES),
         paths.repo / SCRIPT, bindir, server_user().pw_name],
        env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
             "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"})
    shutil.rmtree(place)
