"""Tests of what is installed: with apt, and with pip once, and anew for another version."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from common.base import Paths
from devtools import deps


class AptTest(unittest.TestCase):

    def test_waits_for_another_apt(self):
        """A machine that upgrades itself meanwhile has the command wait, not fail."""
        with mock.patch.object(deps, "run") as run, mock.patch.object(deps, "say"), \
                mock.patch.object(deps, "_root_prefix", return_value=[]):
            deps._install(["one"])
        command = run.call_args.args[0]
        self.assertEqual(command[-1], "one")
        self.assertIn(f"DPkg::Lock::Timeout={deps.LOCK_SECONDS}", command)


class FromPipTest(unittest.TestCase):
    """Nothing is installed: commands are only noted."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.paths = Paths(Path(scratch.name), Path(scratch.name))
        for name, replacement in (("run", self.run_command), ("say", mock.Mock())):
            patch = mock.patch.object(deps, name, replacement)
            patch.start()
            self.addCleanup(patch.stop)
        self.commands = []
        self.works = True

    def run_command(self, command):
        self.commands.append([str(part) for part in command])
        if "venv" in command:
            Path(command[-1]).mkdir(exist_ok=True)
        elif not self.works:
            raise deps.DevError("no network")

    def installed(self, requirement):
        """Return what was installed for a call."""
        self.commands.clear()
        place = deps.from_pip(self.paths, "tool", requirement)
        self.assertEqual(place, self.paths.root / "tool" / "bin")
        return [command[-1] for command in self.commands if "install" in command]

    def test_once_for_each_version(self):
        self.assertEqual(self.installed("tool==1"), ["tool==1"])
        self.assertEqual(self.installed("tool==1"), [])
        self.assertEqual(self.installed("tool==2"), ["tool==2"])

    def test_again_after_a_failure(self):
        self.works = False
        with self.assertRaises(deps.DevError):
            self.installed("tool==1")
        self.works = True
        self.assertEqual(self.installed("tool==1"), ["tool==1"])

    def test_options_of_the_environment(self):
        deps.from_pip(self.paths, "tool", "tool==1", "--system-site-packages")
        self.assertIn("--system-site-packages", self.commands[0])
