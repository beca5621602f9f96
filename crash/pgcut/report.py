"""The outcome of a campaign: one line, a JSON file, and a page to read."""

import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import blockstates
from .controls import CONTROLS
from .states import FAULTS, LOG, RELATION, WAL

# The controls that violate the protocol in a way that the monitor knows.
MONITORED = frozenset(control.name for control in CONTROLS if control.monitored)

# Recordings whose time line is drawn; the rest is in results.json.
PICTURES = 6

# So many states of a scenario of which none has what it is about are no coincidence.
IMPLAUSIBLE = 20


def reasons_of(result: Any) -> list[str]:
    """Return what is wrong with one job or control; nothing if all is well."""
    name, reasons = result.name, []
    if result.error:
        reasons.append(f"{name}: {result.error.strip().splitlines()[-1]}")
    if result.control:
        if not result.error and not result.violations and name in MONITORED:
            reasons.append(f"control {name} was not seen by the protocol monitor")
        if not result.error and not result.failures:
            reasons.append(f"control {name} was not found in {result.tried} states")
    else:
        if result.failures:
            reasons.append(f"{name}: {len(result.failures)} of {result.tried} states failed")
        if result.findings:
            reasons.append(f"{name}: {result.findings[0]}")
        if result.violations:
            reasons.append(f"{name}: the protocol was violated, {result.violations[0]}")
    return reasons


def verdict(results: Sequence[Any]) -> list[str]:
    """Return the reasons why a campaign has failed; none if all is well."""
    reasons = [reason for result in results for reason in reasons_of(result)]
    tried = [state for r in results if not r.control for state in r.states]
    if len(tried) >= 100 and not any(state["restored"] for state in tried):
        reasons.append("no state needed the double-write log: nothing was exercised")
    reasons += [f"scenario {name}: not one of {tried} states has what it is about"
                for name, tried, effective in _scenarios(results)
                if tried >= IMPLAUSIBLE and not effective]
    return reasons


def write(directory: Path, results: Sequence[Any], seconds: float, arguments: Any) -> str:
    """Write results.json and report.html into `directory`; returns a summary."""
    data = [{**asdict(result), "reasons": reasons_of(result), "replayable": result.replayable}
            for result in results]
    (Path(directory) / "results.json").write_text(json.dumps(data))
    facts = figures(results, seconds)
    page = _render({**facts, "reasons": verdict(results), "arguments": arguments,
                    "findings": [r for r in results if r.findings and not r.control],
                    "broken_rules": [r for r in results if r.violations and not r.control],
                    "controls": _controls(results), "faults": _faults(results),
                    "scenarios": _scenarios(results),
                    "pictures": _recordings(results), "failures": _failures(results)})
    (Path(directory) / "report.html").write_text(page)
    lines = [f"crash: {reason}" for reason in verdict(results)]
    for result in filter(reasons_of, results):
        lines.append(f"again: ./dev crash {result.again}")
        if result.kept:
            lines.append(f"kept: {Path(directory) / result.kept}")
        if result.replayable:
            lines.append(f"again: ./dev crash replay {Path(directory) / result.replayable}"
                         " --minimise")
    lines.append("{writes} writes were held against the protocol, and {violating} of {recordings} "
                 "recordings violate it".format(**facts))
    lines.append("effective states: " + ", ".join(
        f"{name} {effective} of {tried}" for name, tried, effective in _scenarios(results)))
    if facts["ahead"]:
        lines.append("standbys that were behind: {replays} replays, of which {looking} looked ahead, in "
                     "{windows} windows of WAL, for {blocks} blocks".format(**facts["ahead"]))
    lines.append("{states} states, {effective} of them effective, {failed} failed; "
                 "{restoring} needed the log, {restored} pages restored; "
                 "{found} of {wanted} controls found; {rate:.0f} states a minute"
                 .format(**facts))
    return "\n".join(lines)


def figures(results: Sequence[Any], seconds: float) -> dict:
    """Return the figures of a campaign by name."""
    tried = [state for r in results if not r.control for state in r.states]
    everything = [state for r in results for state in r.states]
    controls = [r for r in results if r.control]
    effective = sum(state["effective"] for state in tried)
    return {
        "states": len(tried), "effective": effective,
        "failed": sum(state["failed"] for state in tried),
        "torn": sum(state["torn"] > 0 for state in tried),
        "restoring": sum(state["restored"] > 0 for state in tried),
        "restored": sum(state["restored"] for state in tried),
        "nested": sum(state["nested"] > 0 for state in tried),
        "found": sum(bool(r.failures) for r in controls), "wanted": len(controls),
        "control_states": len(everything) - len(tried),
        "rate": 60 * len(everything) / seconds if seconds else 0, "seconds": seconds,
        "bound": 3 / effective if effective else 1,
        **_protocol([r for r in results if r.monitored]),
        "ahead": _ahead([replay for r in results for replay in r.recording.get("replays", ())]),
        "phases": _phases(everything),
    }


def _protocol(monitored):
    """Return figures of what the protocol monitor has read."""
    return {"recordings": len(monitored), "violating": sum(bool(r.violations) for r in monitored),
            "writes": sum(r.monitored.get("home writes", 0) + r.monitored.get("batches", 0)
                          for r in monitored),
            "monitor_seconds": sum(r.monitored["seconds"] for r in monitored)}


def _ahead(replays):
    """Return figures of the times when standbys replayed what they were behind by, {} if none did."""
    return {"replays": len(replays), "looking": sum(replay["windows"] > 0 for replay in replays),
            **{what: sum(replay[what] for replay in replays)
               for what in ("windows", "blocks")}} if replays else {}


def _phases(states):
    """Return (phase, mean milliseconds) of the states that had it."""
    total, number = Counter(), Counter()
    for state in states:
        total.update(state["phases"])
        number.update(state["phases"].keys())
    return [(name, 1000 * total[name] / number[name]) for name in total]


def _controls(results):
    by_name = {r.name: r for r in results if r.control}
    return [(control, by_name[control.name]) for control in CONTROLS if control.name in by_name]


def _faults(results):
    """Return a row of counts for each fault that was tried."""
    rows = []
    models = {**{name: fault.model for name, fault in FAULTS.items()},
              **dict.fromkeys(blockstates.FAULTS, "F11")}
    for name, model in models.items():
        states = [s for r in results if not r.control for s in r.states if s["fault"] == name]
        if not states:
            continue
        rows.append((name, model, len(states), sum(s["effective"] for s in states),
                     sum(s["failed"] for s in states),
                     sum(s["torn"] > 0 for s in states), sum(s["restored"] for s in states)))
    return rows


def _scenarios(results):
    """Return (scenario, states tried, states that have what it and the fault are about)."""
    names = dict.fromkeys(r.scenario for r in results if not r.control and r.states)
    return [(name, len(states), sum(state["effective"] for state in states)) for name in names
            for states in [[s for r in results if r.scenario == name for s in r.states]]]


def _recordings(results):
    """Return (result, picture or None) of the recordings that were explored."""
    explored = [r for r in results if not r.control and r.recording]
    return [(r, _picture(r) if number < PICTURES else None)
            for number, r in enumerate(explored)]


def _failures(results):
    return [(r, number, failure) for r in results if not r.control
            for number, failure in enumerate(r.failures)]


_ROWS = {RELATION: ("data files", "tab:blue"), LOG: ("double-write log", "tab:orange"),
         WAL: ("WAL", "tab:green"), "device": ("block device", "tab:blue")}


def _picture(result):
    """Draw where the writes, the syncs and the cuts of a recording are."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 2.6), layout="constrained")
    rows = [(*_ROWS[where], places) for where, places in result.recording["writes"].items()]
    rows.append(("syncs", "tab:gray", result.recording["syncs"]))
    for height, (_, colour, places) in enumerate(rows):
        axes.eventplot(places, lineoffsets=height, linelengths=0.7, linewidths=0.3, colors=colour)
    for state in result.states:
        failed = state["failed"]
        axes.plot(state["cut"], len(rows), marker="x" if failed else "o", linestyle="none",
                  markersize=3 + min(6, state["restored"] ** 0.5),
                  color="tab:red" if failed else "tab:purple" if state["restored"] else "black",
                  alpha=0.6)
    axes.set_yticks(range(len(rows) + 1), [row[0] for row in rows] + ["power cuts"])
    axes.set_xlabel("operations of the server, in order")
    axes.set_xlim(0, result.recording["operations"])
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=80)
    pyplot.close(figure)
    return base64.b64encode(image.getvalue()).decode()


def _render(facts):
    import jinja2
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True,
                              lstrip_blocks=True).get_template("report.html.j2").render(facts)
