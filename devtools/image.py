"""The container image, built from our packages and run once, without a registry.

Its base is the clean chroot that the packages were built in, under the name that
the recipe asks for.  Everything stays below the build root.
"""

import shutil
import tarfile

from common.base import run, say

from . import chroot, deb, deps

PACKAGES = ("buildah",)

SUITE = deb.SUITES[deb.DEFAULT_SUITE]
BASE = f"localhost/debian:{SUITE.name}-slim"
IMAGE = "localhost/postgres-dw:18"

# What is asked of a server in the image, as the user that the image has for it.
TRIAL = r"""
docker-entrypoint.sh postgres &
until psql -U postgres -Atc 'SHOW io_torn_pages_protection' 2>/dev/null | grep -x double_writes; do
    kill -0 $! || exit 1
    sleep 1
done
psql -U postgres -Atc 'SHOW server_version'
kill -INT $!
wait $!
"""


def build_and_try(paths):
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
        _build(paths, directory)
        say("starting a server in the image")
        _buildah(directory, "from", "--pull-never", "--name", "trial", IMAGE)
        _buildah(directory, "run", "-e", "POSTGRES_PASSWORD=trial", "trial", "--", "sh", "-ec", TRIAL)
    finally:
        _buildah(directory, "rm", "--all")
        shutil.rmtree(directory)


def _build(paths, directory):
    say(f"building the container image {IMAGE}")
    base = directory / "base.tar"
    with tarfile.open(base, "w") as tar:
        tar.add(chroot.clean(paths, SUITE.name), arcname=".")
    _buildah(directory, "from", "--name", "base", "scratch")
    _buildah(directory, "add", "--quiet", "base", base, "/")
    _buildah(directory, "commit", "--quiet", "--rm", "base", BASE)
    base.unlink()
    context = directory / "context"
    shutil.copytree(paths.repo / "packaging" / "container", context)
    shutil.copytree(deb.packages(paths, SUITE), context / "packages")
    _buildah(directory, "bud", "--quiet", "--from", BASE, "--pull-never", "--tag", IMAGE, context)


def _buildah(directory, *arguments):
    """Run buildah with images and containers below `directory`, in chroots."""
    run(["buildah", "--root", directory / "root", "--runroot", directory / "run",
         "--storage-driver", "vfs", *arguments], env=_environment())


def _environment():
    return {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
            "HOME": "/root", "BUILDAH_ISOLATION": "chroot"}
