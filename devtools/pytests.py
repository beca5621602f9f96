"""Run the Python tests of a directory, each for a limited time.

    python3 pytests.py DIRECTORY SECONDS

A test that takes longer ends the program, with the traceback of each thread:
nothing less ends a thread that waits for a server.
"""

import faulthandler
import os
import sys
import unittest

# Tests may redirect standard error.
ERRORS = os.fdopen(os.dup(2), "w")


class LimitedResult(unittest.TextTestResult):
    """Results that watch the clock of each test, and of what prepares a class."""

    seconds = None

    def watch(self):
        """Start the clock anew."""
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=ERRORS)

    def startTest(self, test):      # noqa: N802, as unittest has it
        """A test begins."""
        print(f"# test {test.id()}", file=ERRORS, flush=True)
        self.watch()
        super().startTest(test)

    def stopTest(self, test):       # noqa: N802, as unittest has it
        """A test has ended; what comes next may be another class's setUpClass()."""
        super().stopTest(test)
        self.watch()


def main(directory, seconds):
    """Run all tests below `directory`; returns the exit status."""
    LimitedResult.seconds = float(seconds)
    faulthandler.dump_traceback_later(LimitedResult.seconds, exit=True, file=ERRORS)
    suite = unittest.defaultTestLoader.discover(directory)
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=0, resultclass=LimitedResult)
    outcome = runner.run(suite)
    faulthandler.cancel_dump_traceback_later()
    return 0 if outcome.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
