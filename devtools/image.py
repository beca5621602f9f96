"""The container image, built from our packages and run once, without a registry.

Its base is a minimal chroot of the suite, under the name that the recipe asks for.
Everything stays below the build root.
"""

import json
import shutil
import tarfile
import time
from pathlib import Path

from common.base import Paths, output, run, say

from . import chroot, deb, deps, sbom
from .source import sha256

PACKAGES = ("buildah", *sbom.PACKAGES)

SUITE = deb.SUITES[deb.DEFAULT_SUITE]
BASE = f"localhost/debian:{SUITE.name}-slim"
IMAGE = "localhost/postgres-dw:18"

# What is asked of a server in the image, as the user that the image has for it.
TRIAL = r"""
# The network is the machine's.
export PGPORT=54318
began=$(date +%s)
docker-entrypoint.sh postgres &
until psql -U postgres -Atc 'SHOW io_torn_pages_protection' 2>/dev/null | grep -x double_writes; do
    kill -0 $! || exit 1
    sleep 1
done
echo "$(psql -U postgres -Atc 'SHOW server_version'), protected after $(($(date +%s) - began)) s"
kill -INT $!
wait $!
"""

# What CloudNativePG does with an image (docs/operators.md): without the entry point, as a user
# with a number, which calls these programs; it cannot write but to volumes.
CONTRACT = r"""
touch /tmp/file 2>&1 | grep 'Read-only file system'
for program in du initdb pg_basebackup pg_controldata pg_ctl pg_isready pg_rewind postgres psql; do
    command -v $program
done
locale -a | grep -x en_US.utf8
data=/var/lib/postgresql/data/pgdata
initdb --pgdata=$data --username=postgres --auth=trust --data-checksums >/dev/null
pg_ctl --pgdata=$data --wait --log=/controller/log --options="-k /controller -h ''" start >/dev/null
psql -h /controller -U postgres -Atc 'SHOW io_torn_pages_protection' | grep -x double_writes
pg_basebackup --host=/controller --username=postgres --pgdata=/controller/copy --checkpoint=fast
pg_ctl --pgdata=$data --wait --mode=fast stop >/dev/null
pg_controldata --pgdata=$data | grep 'cluster state: *shut down$'
pg_controldata --pgdata=/controller/copy | grep 'cluster state: *in production$'
"""
USER = "999:999"

# How it is run: with these volumes upon a root file system that is read-only.  buildah has no
# option for that.  Arguments: that file system, the user, and what the user runs.
READ_ONLY = r"""
mount --bind "$1" "$1"
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
for volume in controller dev/shm run var/lib/postgresql/data; do
    mkdir -p "$1/$volume"
    mount -t tmpfs tmpfs "$1/$volume"
done
mount -o remount,bind,ro "$1"
exec chroot --userspec="$2" "$1" sh -ec "$3"
"""


def build_and_try(paths: Paths) -> None:
    """Build the image from the packages built last, and start a server in it.

    Raises DevError if there are no packages or the server does not do what it
    should.
    """
    deb.require_packages(paths, SUITE)
    deps.ensure(paths, PACKAGES)
    directory = paths.root / "image"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    try:
        _import_base(paths, directory)
        began = time.monotonic()
        _build(paths, directory)
        say(f"starting a server in the image, made in {time.monotonic() - began:.0f} s")
        _buildah(directory, "from", "--pull-never", "--name", "trial", IMAGE)
        _describe(paths, Path(_buildah(directory, "mount", "trial", call=output)))
        _buildah(directory, "run", "-e", "POSTGRES_PASSWORD=trial", "trial", "--", "sh", "-ec", TRIAL)
        say(f"as CloudNativePG uses it, as user {USER}, the root file system read-only")
        _use_read_only(directory)
    finally:
        _buildah(directory, "rm", "--all")
        shutil.rmtree(directory)


def _import_base(paths, directory):
    """Make the image that the recipe begins with, as a registry would give it."""
    base = directory / "base.tar"
    with tarfile.open(base, "w") as tar:
        tar.add(chroot.clean(paths, SUITE.name, chroot.MINIMAL), arcname=".")
    _buildah(directory, "from", "--name", "base", "scratch")
    _buildah(directory, "add", "--quiet", "base", base, "/")
    _buildah(directory, "commit", "--quiet", "--rm", "base", BASE)
    base.unlink()


def _build(paths, directory):
    say(f"building the container image {IMAGE}")
    context = directory / "context"
    shutil.copytree(paths.repo / "packaging" / "container", context)
    shutil.copytree(deb.packages(paths, SUITE), context / "packages")
    _buildah(directory, "bud", "--quiet", "--from", BASE, "--pull-never", "--tag", IMAGE, context)


def _describe(paths, root):
    """Write an SPDX document of the image whose root this is, and checksums of its files."""
    packages = deb.packages(paths, SUITE)
    version = deb.version_in(packages)
    result = chroot.fresh(deb.place(paths, SUITE) / "image")
    sbom.write(paths, result / f"postgres-dw_{version}.spdx.json", root, version,
               "container image of PostgreSQL with double writes",
               {"packages-sha256": sha256(packages / "Packages")})
    sbom.write_sums(result, root.rglob("*"), root)
    say(f"its SBOM, and the checksums of its files, are in {result}")


def _use_read_only(directory):
    """Run CONTRACT in the container "trial", with the environment that its image sets."""
    config = json.loads(_buildah(directory, "inspect", "trial", call=output))["OCIv1"]["config"]
    root = _buildah(directory, "mount", "trial", call=output)
    chroot.isolated(["sh", "-ec", READ_ONLY, "sh", root, USER, CONTRACT],
                    dict(variable.split("=", 1) for variable in config["Env"]))


def _buildah(directory, *arguments, call=run):
    """Run buildah with images and containers below `directory`, in chroots."""
    return call(["buildah", "--root", directory / "root", "--runroot", directory / "run",
                 "--storage-driver", "vfs", *arguments], env=_environment())


def _environment():
    return {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
            "HOME": "/root", "BUILDAH_ISOLATION": "chroot"}
