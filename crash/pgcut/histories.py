"""Many histories: drawn, played, made shorter if they fail, and reported."""

import copy
import json
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import drawing, recipes
from .controls import Control
from .history import History, sanitised, shrunk, with_atomic_writes
from .judged import Finding
from .limits import require_time
from .machine import Templates, Tools
from .play import Play

# A history that fails is played so often, in shorter and shorter forms, at most.
SHRINKING_PLAYS = 40
SHRINKING_SECONDS = 900
# Timing decides some failures: a form that does not fail is tried once more.
ATTEMPTS = 2
# One of so many histories has atomic_writes, in a half of the places.
ATOMIC_ONE_OF = 4
ATOMIC_SHARE = 0.5
# A control that so many histories do not find is not found.
CONTROL_HISTORIES = 24


@dataclass
class Result:
    """What became of one history."""

    history: History
    played: int = 0             # steps
    seconds: float = 0
    findings: list = field(default_factory=list)
    figures: Counter = field(default_factory=Counter)
    smaller: History = None     # with as few steps as fail
    logs: dict = field(default_factory=dict)


class Campaign:
    """Plays histories in a directory in memory."""

    def __init__(self, tools: Tools, report_progress: Callable[..., Any] = print) -> None:
        self._tools = tools
        self._templates = Templates(tools)
        self._say = report_progress
        self._plays = 0
        self.pending: Result | None = None  # what is known of the one under way, if it is cut short

    def with_programs(self, bindir: str) -> "Campaign":
        """Return the same with other programs for servers."""
        other = copy.copy(self)
        other._tools = replace(self._tools, bindir=bindir)
        return other

    def play(self, history: History) -> Result:
        """Play a history once; returns its Result."""
        started = time.monotonic()
        self._plays += 1
        place = Path(tempfile.mkdtemp(prefix=f"history-{history.seed}-", dir=self._tools.scratch))
        play = Play(history, self._tools, self._templates, place)
        try:
            try:
                play.run()
            except Exception:           # nothing that one history meets may end the others
                play.findings.append(Finding(play.played, "explorer", traceback.format_exc()))
            except BaseException:
                play.findings.append(Finding(play.played, "explorer", traceback.format_exc()))
                self.pending = self.pending or _result(play, started)
                raise
            return _result(play, started)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def run(self, seeds: Iterable[int], deadline: Any = None, shrink: bool = True,
            recipe: Any = None, atomic: Any = False) -> Iterator[Result]:
        """Yield the Results of histories with these seeds, until the deadline."""
        for seed in seeds:
            if deadline is not None and time.monotonic() > deadline:
                return
            require_time("playing histories")
            result = self.play(_drawn(seed, recipe, atomic))
            self._say(told(result))
            if result.findings and shrink:
                self.pending = result
                result.smaller = self.shrink(result)
                self.pending = None
                self._say(f"        {len(result.smaller.steps)} of its "
                          f"{len(result.history.steps)} steps fail as well")
            yield result

    def hunt(self, control: Control, seeds: Sequence[int], directed: Any = True) -> dict:
        """Play histories, of the control's recipe or any, until one of them shows it.

        The programs are already those of its mutation.  Returns what the table in
        README.md says of that.
        """
        started, played, found = time.monotonic(), 0, ""
        recipe = recipes.named(control.recipe) if directed else None
        for result in self.run(seeds, shrink=False, recipe=recipe):
            played += 1
            if result.findings:
                found = _texts(result)[0]
                break
        return {"seed": seeds[0], "histories": played,
                "seconds": round(time.monotonic() - started), "found": " ".join(found.split())}

    def shrink(self, result: Any) -> History:
        """Return the shortest history that is found to fail in the same way."""
        wanted = {finding.signature() for finding in result.findings}
        started, plays = time.monotonic(), self._plays

        def fails(history):
            for _ in range(ATTEMPTS):
                if self._plays - plays > SHRINKING_PLAYS or \
                        time.monotonic() - started > SHRINKING_SECONDS:
                    return False
                again = self.play(history)
                if wanted & {finding.signature() for finding in again.findings}:
                    return True
            return False

        # Nothing that came after the failing step has had a part in it.
        upto = result.history.with_steps(result.history.steps[:result.played + 1])
        return shrunk(upto, fails)


def _result(play, started):
    """Return the Result of what was played, with the logs of all servers if it has failed."""
    logs = {name: machine.log.read_text(errors="replace")
            for name, machine in play.machines.items()} if play.findings else {}
    return Result(play.history, play.played, time.monotonic() - started, play.findings,
                  play.figures, logs=logs)


def _drawn(seed, recipe, atomic):
    """Return the History of a seed, with atomic_writes if asked for, or in some of them."""
    history = drawing.draw(seed, recipe)
    if atomic:
        return with_atomic_writes(history)
    if not recipe and seed % ATOMIC_ONE_OF == 0:
        return with_atomic_writes(history, ATOMIC_SHARE)
    return history


def told(result: Any) -> str:
    """Return what the terminal says of a history."""
    figures = result.figures
    lines = [f"    history {result.history.seed}: {result.played} of {len(result.history.steps)} "
             f"steps, {figures['acknowledged']} transactions, {figures['cuts']} cuts, "
             f"{figures['verdicts']} verdicts, {len(result.findings)} findings "
             f"({result.seconds:.0f} s)"]
    return "\n".join([*lines, *(f"        {text}" for text in _texts(result)[:4])])


def _texts(result):
    return [f"step {finding.step}, {finding.what}: {finding.text[:600]}"
            for finding in result.findings]


def save(output: Any, result: Any) -> None:
    """Keep a history that failed, with its shorter form and the servers' logs."""
    place = Path(output) / f"history-{result.history.seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "history.json").write_text(result.history.as_json())
    if result.smaller:
        (place / "shrunk.json").write_text(result.smaller.as_json())
    (place / "findings.json").write_text(json.dumps(list(map(asdict, result.findings)), indent=1))
    for name, text in result.logs.items():
        (place / f"{name}.log").write_text(text)


def report(output: Any, results: Sequence[Any], seconds: float) -> str:
    """Write the report; returns its text."""
    single, pairs = drawing.covered(
        result.history.with_steps(result.history.steps[:result.played]) for result in results)
    figures = sum((result.figures for result in results), Counter())
    failed = [result for result in results if result.findings]
    lines = [f"{len(results)} histories with {sum(single.values())} steps in {seconds:.0f} s: "
             f"{len(failed)} failed",
             *(f"history {result.history.seed} failed in step {result.played + 1} "
               f"of {len(result.history.steps)}: "
               f"{_texts(result)[0]}" for result in failed),
             "", "Figures: " + ", ".join(f"{value} {name}" for name, value in
                                         sorted(figures.items())),
             "", "Steps:", *(f"{count:7}  {name}" for name, count in sorted(single.items())),
             "", f"Kinds that followed each other on one server: {len(pairs)} pairs of "
                 f"{len(drawing.WEIGHTS)} times {len(drawing.WEIGHTS)}; once only:",
             *(f"         {first}, {then}" for (first, then), count in sorted(pairs.items())
               if count == 1), ""]
    text = "\n".join(lines)
    Path(output).mkdir(parents=True, exist_ok=True)
    (Path(output) / "histories.txt").write_text(text)
    (Path(output) / "histories.json").write_text(json.dumps(
        [{"seed": result.history.seed, "played": result.played, "seconds": result.seconds,
          "findings": list(map(asdict, result.findings)), "figures": result.figures}
         for result in results], indent=1))
    return text


def read(file: Path) -> tuple:
    """Return (the History in a file without what cannot be done, what was left out)."""
    return sanitised(History.from_json(Path(file).read_text()))
