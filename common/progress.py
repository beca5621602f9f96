"""How far a long step is: one line that changes on a terminal, else a line now and then."""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from .base import say

# Seconds between lines in a log, and between changes of the line on a terminal.
PLAIN_SECONDS = 15
SHOWN_SECONDS = 0.2


class Progress:
    """Shows how much of `total` is done; a context, at whose end the line goes.

    What else is written meanwhile must go through write(), so that it does not end up
    in the middle of the line.
    """

    def __init__(self, what: str, total: int = 0, stream: TextIO | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.total, self.clock = what, total, clock
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.started = self.shown = clock()
        self.line = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._show("")

    def step(self, done: int, total: int | None = None, detail: str = "") -> None:
        """Note that `done` of `total` is done."""
        self.total = total or self.total
        now = self.clock()
        if now - self.shown < (SHOWN_SECONDS if self.terminal else PLAIN_SECONDS):
            return
        self.shown = now
        if self.terminal:
            self._show(" ".join(filter(None, (self.text(done), detail))))
        else:
            say(f"{self.what}: {done} of {self.total}")

    def text(self, done: int) -> str:
        """Return what the line says: percentage and time left, once it can be known."""
        share = min(1, done / self.total) if self.total else 0
        text = f"{self.what}: {100 * share:3.0f} %"
        elapsed = self.clock() - self.started
        if share and elapsed >= 2:
            text += f", {duration(elapsed * (1 - share) / share)} left"
        return text

    def write(self, text: str) -> None:
        """Write lines of something else, above the line of progress."""
        line = self.line
        self._show("")
        self.stream.write(text)
        self._show(line)

    def _show(self, line: str) -> None:
        """Replace the line on the terminal."""
        if not self.terminal:
            return
        width = shutil.get_terminal_size().columns - 1
        self.line = line[:width]
        self.stream.write(f"\r\033[K{self.line}")
        self.stream.flush()


def duration(seconds: float) -> str:
    """Return a duration as a person says it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"


def follow(lines: Iterable[str], what: str, step: str, total: int = 0) -> None:
    """Pass on lines, those that `step` matches as progress.

    `step` is a regular expression whose first groups are what is done and the total.
    """
    with Progress(what, total) as progress:
        for line in lines:
            match = re.match(step, line)
            if match:
                progress.step(int(match[1]), int(match[2]))
            else:
                progress.write(line)
