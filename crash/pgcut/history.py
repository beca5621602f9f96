"""Histories: what happens to one, two or three servers, step by step.

A `Step` has all its parameters, so a history, which is a list of steps and the
settings of the first server, can be written down, played again and made shorter.
What each kind of step is, when it is legal and what it leaves is in steps.py;
drawing.py draws histories, play.py plays them.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from . import matrix, steps
from .minimise import ddmin
from .world import World


@dataclass(frozen=True)
class Step:
    """One thing that is done to a server.

    `illegal` says that it is refused, or does no harm, if all is well.
    """

    do: str
    server: str
    args: dict = field(default_factory=dict)
    illegal: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.args.get(name, default)

    def __str__(self) -> str:
        load = self.args.get("load")
        args = " ".join(f"{name}={value}" for name, value in self.args.items()
                        if value and name != "load")
        return f"{self.do} {self.server}{' ' if args else ''}{args}" \
            + (f" under load {load['seed']}" if load else "") + (" (illegal)" if self.illegal else "")

    def as_json(self) -> dict:
        return {"do": self.do, "server": self.server, **self.args,
                **({"illegal": True} if self.illegal else {})}

    @staticmethod
    def from_json(data: Any) -> "Step":
        args = dict(data)
        return Step(args.pop("do"), args.pop("server"), args, args.pop("illegal", False))


@dataclass(frozen=True)
class History:
    """A list of steps, and how the first server is made."""

    seed: int
    settings: dict
    checksums: bool
    steps: tuple

    def world(self) -> World:
        """Return the World in which it begins."""
        return World(self.settings, self.checksums)

    def with_steps(self, chosen: Any) -> "History":
        """Return the same with other steps."""
        return History(self.seed, self.settings, self.checksums, tuple(chosen))

    def as_json(self) -> str:
        return json.dumps({"seed": self.seed, "settings": self.settings,
                           "checksums": self.checksums,
                           "steps": [step.as_json() for step in self.steps]}, indent=1)

    @staticmethod
    def from_json(text: str) -> "History":
        data = json.loads(text)
        return History(data["seed"], data["settings"], data["checksums"],
                       tuple(map(Step.from_json, data["steps"])))


def with_atomic_writes(history: History, share: float = 1) -> History:
    """Return the same with atomic_writes where it says double_writes, in this share of the places."""
    rng = random.Random(f"atomic/{history.seed}")

    def renamed(value):
        if isinstance(value, dict):
            return {name: renamed(one) for name, one in value.items()}
        return "atomic_writes" if value == "double_writes" and rng.random() < share else value

    renamed_steps = (replace(step, args=renamed(step.args)) for step in history.steps)
    return History(history.seed, {**renamed(history.settings), **matrix.PRETENDED},
                   history.checksums, tuple(renamed_steps))


def sanitised(history: History) -> tuple:
    """Return (history without what cannot be done, [why each step was left out]).

    A step stays if it is legal where it stands, or illegal there and meant to be.
    """
    world, kept, left_out = history.world(), [], []
    for step in history.steps:
        why = steps.objection(world, step)
        if not step.illegal and why:
            left_out.append(f"{step}: {why}")
        elif step.illegal and not why:
            left_out.append(f"{step}: it is legal here")
        elif step.illegal and not steps.tryable(world, step):
            left_out.append(f"{step}: it cannot be tried here")
        else:
            steps.apply(world, step)
            kept.append(step)
    return history.with_steps(kept), left_out


def shrunk(history: History, fails: Callable[..., bool]) -> "History":
    """Return a history with as few steps as still make `fails(history)` true.

    What becomes illegal because something before it is gone goes as well.
    """
    def subset_fails(subset):
        smaller, _ = sanitised(history.with_steps(step for _, step in subset))
        return bool(smaller.steps) and fails(smaller)

    pieces = ddmin(list(enumerate(history.steps)), subset_fails)
    return sanitised(history.with_steps(step for _, step in pieces))[0]
