"""Run the Python tests of a directory, each for a limited time.

    python3 pytests.py DIRECTORY SECONDS [NAME ...]

A test that takes longer ends the program, with the traceback of each thread:
nothing less ends a thread that waits for a server.  When one fails, the logs that are below
the directory for temporary files are copied there to `failed`, before the test removes them.
"""

import faulthandler
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from failures import copy_logs

# Logs of tests that have failed.
FAILED = "failed"

# Tests may redirect standard error.
ERRORS = os.fdopen(os.dup(2), "w")


class LimitedResult(unittest.TextTestResult):
    """Results that watch the clock of each test, and of what prepares a class."""

    seconds = 0.0

    def watch(self) -> None:
        """Start the clock anew."""
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=ERRORS)

    def keep(self, test: unittest.TestCase) -> None:
        """Keep the logs of a test that has just failed."""
        place = Path(tempfile.gettempdir())
        for entry in place.iterdir():
            if entry.is_dir() and entry.name != FAILED:
                copy_logs(entry, place / FAILED / test.id() / entry.name)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """A test, or what prepares or ends one, has raised what it should not."""
        self.keep(test)
        super().addError(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """A test has failed."""
        self.keep(test)
        super().addFailure(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        """A part of a test has ended."""
        if err is not None:
            self.keep(test)
        super().addSubTest(test, subtest, err)

    def startTest(self, test: unittest.TestCase) -> None:
        """A test begins."""
        print(f"# test {test.id()}", file=ERRORS, flush=True)
        self.watch()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        """A test has ended; what comes next may be another class's setUpClass()."""
        super().stopTest(test)
        self.watch()


def main(directory: str, seconds: str, *names: str) -> int:
    """Run all tests below `directory`, or those of these names; returns the exit status."""
    LimitedResult.seconds = float(seconds)
    faulthandler.dump_traceback_later(LimitedResult.seconds, exit=True, file=ERRORS)
    loader = unittest.defaultTestLoader
    sys.path.insert(0, directory)
    suite = loader.loadTestsFromNames(names) if names else loader.discover(directory)
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=0, resultclass=LimitedResult)
    outcome = runner.run(suite)
    faulthandler.cancel_dump_traceback_later()
    return 0 if outcome.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
