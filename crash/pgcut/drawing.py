"""Histories drawn at random, and what a number of them covers."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from . import matrix, recipes, steps
from .history import History, Step
from .scripts import ENDING, SCRIPTS
from .states import FAULTS
from .steps import ILLEGAL_KINDS, WHOLE_FAULTS
from .world import MODE, MODES, NAMES, World

STEPS = (6, 14)             # of a history
ILLEGAL_SHARE = 0.1
LOADED_SHARE = 0.75         # of the steps that can go on under load

# How often each kind is tried; most attempts are not legal where they come.
WEIGHTS = {"start": 16, "single": 3, "stop": 6, "cut": 8, "edit": 6, "reload": 5, "work": 5,
           "faulty": 2, "script": 1, "clock": 2, "checkpoint": 4, "kill": 5, "promote": 8,
           "follow": 7, "backup": 3, "point": 3, "restore": 12, "recover": 12, "rewind": 30,
           "tool": 2}

# What a history is about: kinds that come so many times as often.
THEMES = ({}, {"edit": 3, "stop": 2, "cut": 2}, {"follow": 5, "promote": 2, "cut": 2, "edit": 2},
          {"start": 2, "cut": 3}, {"faulty": 8, "work": 2},
          {"backup": 4, "restore": 3, "point": 4, "recover": 3},
          {"follow": 4, "promote": 4, "rewind": 3})
RECIPE_SHARE = 0.15         # of the places where a recipe may begin
DIRECTED_SHARE = 0.35       # of the histories, which begin with a recipe
CLOCK_SHARE = 0.03          # of the starts: it makes a server slow
NOISE_SHARE = 0.1           # of the places within such a recipe, where one of these may come
NOISE = {"work": 3, "checkpoint": 1, "kill": 2, "tool": 1, "backup": 1}
ATTEMPTS = 200

# Where servers are held or crash, and at which pass at most.
POINTS = {"doublewrite-armed": 1, "doublewrite-restore-run": 4, "doublewrite-restored": 1,
          "doublewrite-log-written": 12, "doublewrite-log-synced": 12,
          "doublewrite-home-written": 12, "doublewrite-home-run-written": 30,
          "doublewrite-checkpoint-drained": 2, "doublewrite-checkpoint-marked": 2,
          "doublewrite-before-low-water": 3, "doublewrite-after-low-water": 3,
          "doublewrite-marker-written": 1, "doublewrite-disarmed": 1,
          "doublewrite-before-images-off": 1, "doublewrite-sync-cycle": 1,
          "doublewrite-sync-removals": 2, "create-restart-point": 1}
# Those at which recovery of a backup is cut, if it gets there.
RECOVERY_POINTS = ("doublewrite-marker-written:1", "doublewrite-armed:1",
                   "doublewrite-home-written:2", "doublewrite-home-run-written:5")
# Those at which a process that is held does not keep the server from being stopped.
HOLD_POINTS = ("doublewrite-armed", "doublewrite-restore-run", "doublewrite-restored")

PROCESSES = ("checkpointer", "background writer", "walwriter", "client", "startup", "walreceiver")
# "check" is there twice, so that seeds draw what they drew when there was one command more
TOOLS = ("checksums-enable", "checksums-disable", "checksums-check", "state", "list", "check",
         "dry-run", "check")
# Kinds of load whose tables change by rows alone, so that a snapshot shows what the
# journal says; and the others.
STEADY = ("transfer", "method", "hint", "toast", "scan")
KINDS = (*STEADY, "copy", "index", "truncate", "refill", "recreate", "vacuum", "unlogged",
         "sequence", "prepared", "chains")
FILE_FAULTS = ("write:base/:{skip}:{count}:5", "write:base/:{skip}:4000:5",
               "write:base/:{skip}:{count}:28", "write:pg_doublewrite/:{skip}:{count}:5",
               "write:pg_doublewrite/:{skip}:{count}:28", "shortwrite:base/:{skip}:{count}:0",
               "shortwrite:pg_doublewrite/:{skip}:{count}:0",
               "create:pg_doublewrite:{skip}:{count}:28", "sync:base/:{skip}:{count}:5",
               "sync:pg_doublewrite/:{skip}:{count}:5", "read-only")

# What a history's servers have in common beside what the matrix says.
FIXED = {MODE: "double_writes", "wal_level": "replica", "wal_keep_size": "64MB", "hot_standby": "on",
         "wal_retrieve_retry_interval": "100ms", "log_line_prefix": "%m [%p] %e ",
         "autovacuum_naptime": "1s", "max_wal_senders": "8",
         "full_page_writes": "on", "double_write_buffer_size": "16MB",
         "wal_consistency_checking": "",
         "checkpoint_timeout": "30s", "log_min_messages": "warning",
         # for readers, but not for ever: they may wait for replay, too
         "max_standby_streaming_delay": "10s", "max_standby_archive_delay": "10s"}
DRAWN = {"archive_mode": ("off", "off", "on"), "summarize_wal": ("off", "off", "on"),
         "restart_after_crash": ("on", "off"), "max_wal_size": ("8MB", "64MB"),
         "double_write_stage_size": ("1MB", "2MB"),
         "checkpoint_timeout": ("30s", "10min"), "shared_buffers": ("512kB", "1MB", "4MB")}


def draw(seed: int, recipe: Any = None) -> History:
    """Return the History of a seed, which is of a recipe if one is named."""
    rng = random.Random(f"history/{seed}")
    settings, checksums = matrix.draw(seed, **FIXED)
    # stock servers take part
    settings = {name: settings[name] for name in settings if name not in matrix.SLOWLY}
    settings.update({name: rng.choice(values) for name, values in DRAWN.items()})
    settings[MODE] = rng.choice(MODES[:2] * 3 + MODES[2:])
    if not recipe and rng.random() < DIRECTED_SHARE:
        recipe = rng.choice(recipes.RECIPES)
    if recipe:
        settings.update(recipes.resolved(rng, recipe.settings))
        checksums = checksums if recipe.checksums is None else recipe.checksums
    history = History(seed, settings, checksums, ())
    theme = rng.choice(THEMES)
    servers = NAMES[:rng.choice((2, 2, 3) if "follow" in theme else (1, 1, 1, 2, 2, 3))]
    world, drawn = history.world(), []
    if recipe:
        world, drawn = _directed(rng, history, recipe)
        servers = NAMES[:max(len(servers), len(recipe.servers))]
    else:
        drawn.append(Step("start", "a", {"program": "ours", "point": "", "then": ""}))
        steps.apply(world, drawn[0])
    wanted = len(drawn) if recipe and rng.random() < 0.5 else rng.randint(*STEPS)
    return history.with_steps(_go_on(rng, world, servers, drawn, wanted, theme))


def _directed(rng, history, recipe):
    """Return the World after all steps of a recipe, and the steps."""
    for attempt in range(ATTEMPTS):
        world, drawn = history.world(), []
        for part in _bound(recipe, NAMES):
            if drawn and attempt < ATTEMPTS // 2 and rng.random() < NOISE_SHARE:
                # No other server may be up yet, and noise must leave the server as it is.
                calm = [name for name, member in world.members.items() if member.state == "up"]
                step = calm and _legal(rng, world, calm, len(drawn), NOISE)
                if step:
                    steps.apply(world, step)
                    drawn.append(step)
            step = _planned(rng, world, part, len(drawn))
            if step is None:
                break
            steps.apply(world, step)
            drawn.append(step)
        else:
            return world, drawn
    raise ValueError(f"recipe {recipe.name} cannot be followed")


def _bound(recipe, names):
    """Return the steps of a recipe with names for its servers."""
    real = dict(zip(recipe.servers, names))
    return [(real[server], kind, {name: real[value] if name in ("of", "source") else value
                                  for name, value in fixed.items()})
            for server, kind, fixed in recipe.steps]


def _go_on(rng, world, servers, drawn, wanted, theme):
    """Return steps with more of them, as many as wanted, and with recipes among them."""
    weights = {kind: weight * theme.get(kind, 1) for kind, weight in WEIGHTS.items()}
    planned = []
    while len(drawn) < wanted or planned:
        if not planned and rng.random() < RECIPE_SHARE:
            planned = _joined(rng, world, servers)
        if planned:
            step = _planned(rng, world, planned.pop(0), len(drawn))
            planned = planned if step else []
        elif rng.random() < ILLEGAL_SHARE:
            step = _illegal(rng, world, servers, len(drawn))
        else:
            step = _legal(rng, world, servers, len(drawn), weights)
        if step:
            steps.apply(world, step)
            drawn.append(step)
    return drawn


def _joined(rng, world, servers):
    """Return the steps of a recipe that may begin now, except those whose effect is there."""
    fitting = [recipe for recipe in recipes.RECIPES
               if recipe.anywhere and len(recipe.servers) <= len(servers)]
    recipe = rng.choice(fitting)
    parts = _bound(recipe, rng.sample(servers, len(recipe.servers)))
    first, _, _ = parts[0]
    return parts[1:] if world.members[first].state == "up" else parts


def _planned(rng, world, part, number):
    """Return a step of a recipe, or None if it cannot be taken now."""
    server, kind, fixed = part
    illegal = fixed.get("illegal", False)
    for _ in range(ATTEMPTS // 4):
        step = _step(rng, world, kind, server, number, illegal)
        if step is None:
            continue
        step = Step(kind, server, _filled(rng, world, step, fixed), illegal)
        why = steps.objection(world, step)
        if not why and not illegal or illegal and why and steps.tryable(world, step):
            return step
    return None


def _filled(rng, world, step, fixed):
    """Return arguments of a step with those that a recipe says."""
    filled = dict(step.args)
    for name, value in recipes.resolved(rng, fixed).items():
        if name == "load" and value is not None:
            drawn = step.get("load") or load(rng, world, step.server)
            value = drawn and {**drawn, **value}
        elif name == "on" and value == "earlier":
            value = step["on"]
        elif name == "faults":
            value = [_fault(rng, fault) for fault in value]
        if name != "illegal":
            filled[name] = value
    return filled


def _legal(rng, world, servers, number, weights):
    """Return a step that is legal now; there is always one."""
    while True:
        kind = rng.choices(list(weights), weights.values())[0]
        step = _step(rng, world, kind, rng.choice(servers), number)
        if step and not steps.objection(world, step):
            return step


def _illegal(rng, world, servers, number, kinds=ILLEGAL_KINDS):
    """Return a step that is not legal now, but can be tried; None if chance finds none."""
    for _ in range(100):
        step = _step(rng, world, rng.choice(kinds), rng.choice(servers), number, True)
        if step and steps.objection(world, step) and steps.tryable(world, step):
            return step
    return None


def _step(rng, world, kind, server, number, illegal=False):
    """Return a step of a kind, legal or not; None if it has no parameters now."""
    args = _ARGUMENTS[kind](rng, world, server, number, illegal)
    if args is None:
        return None
    return Step(kind, server, args, illegal)


def load(rng: random.Random, world: World, server: str,
         kinds: Sequence[str] = KINDS) -> dict | None:
    """Return a load for a server, or for the primary that it follows, or None."""
    member = world.members[server]
    on = server if member.role == "primary" else member.upstream
    if not on:
        return None
    chosen = rng.sample(kinds, min(rng.randint(2, 4), len(kinds)))
    return {"on": on, "seed": rng.randrange(1 << 30), "kinds": dict.fromkeys(chosen, 1),
            "transactions": rng.choice((5, 10, 25)), "acks": rng.choice((0, 5, 15, 40)),
            "readers": rng.random() < 0.5}


def _maybe_load(rng, world, server, illegal):
    member = world.members[server]
    if illegal or member.state == "absent" or rng.random() > LOADED_SHARE:
        return None
    return load(rng, world, server)


def _start(rng, world, server, number, illegal):
    program = "stock" if rng.random() < (0.6 if illegal else 0.12) else "ours"
    if illegal or program == "stock" or rng.random() < 0.75:
        return {"program": program, "point": "", "then": "", "verify": rng.random() < 0.7,
                "clock": program == "ours" and rng.random() < CLOCK_SHARE}
    action = rng.choice(("hold", "crash", "crash"))
    point = rng.choice(HOLD_POINTS if action == "hold" else list(POINTS))
    return {"program": "ours", "point": f"{action}:{point}:{rng.randint(1, POINTS[point])}",
            "then": rng.choice(("fast", "fast", "immediate", "kill")) if action == "hold" else "kill",
            "load": load(rng, world, server) if action == "crash" else None}


def _cut(rng, world, server, number, illegal):
    exposed = world.members[server].exposed
    faults = [name for name, fault in FAULTS.items()
              if not fault.rotten and (name in WHOLE_FAULTS or not exposed)]
    return {"fault": rng.choices(faults, [FAULTS[name].weight for name in faults])[0],
            "seed": rng.randrange(1 << 30), "unit": rng.choice((512, 512, 4096)),
            "load": _maybe_load(rng, world, server, illegal)
            if world.members[server].state == "up" else None}


def _edit(rng, world, server, number, illegal):
    mode = world.members[server].mode
    settings = {MODE: rng.choice([one for one in MODES[:2] * 4 + MODES[2:] if one != mode])}
    if rng.random() < 0.3:
        settings["wal_pipeline"] = rng.choice(("on", "off"))
    if rng.random() < 0.3:
        settings["double_write_compression"] = rng.choice(("off", "zstd", "lz4"))
    return {"settings": settings}


def _reload(rng, world, server, number, illegal):
    if illegal:
        return {"scope": "role", "mode": rng.choice(("off", "double_writes")), "load": None}
    scope = rng.choice(("server", "server", "server", "role", "database"))
    mode = "full_pages" if scope != "server" else rng.choice(MODES[:2] * 4 + MODES[2:])
    return {"scope": scope, "mode": mode, "load": _maybe_load(rng, world, server, illegal)}


def _work(rng, world, server, number, illegal):
    return {"load": load(rng, world, server)}


def _fault(rng, rule):
    """Return a rule for the recorder with what is still open in it."""
    return rule.format(skip=rng.randrange(30), count=rng.randint(1, 6))


def _faulty(rng, world, server, number, illegal):
    return {"faults": [_fault(rng, rng.choice(FILE_FAULTS)) for _ in range(rng.randint(1, 3))],
            "then": rng.choice(("kill", "immediate", "goes on")),
            "load": load(rng, world, server)}


def _script(rng, world, server, number, illegal):
    name = rng.choice(sorted(SCRIPTS))
    return {"name": name, "seed": rng.randrange(1 << 30),
            "then": "kill" if name in ENDING else rng.choice(("kill", ""))}


def _backup(rng, world, server, number, illegal):
    earlier = [] if illegal else world.backups_of(world.members[server])
    return {"name": f"backup-{number}", "on": rng.choice(["", *earlier]),
            "load": _maybe_load(rng, world, server, illegal)}


def _recover(rng, world, server, number, illegal):
    if not world.points:
        return None
    point = rng.choice(sorted(world.points))
    _, backups = world.points[point]
    if not backups:
        return None
    return {"point": point, "backup": rng.choice(backups), "mode": rng.choice(MODES[:2]),
            "fault": rng.choice(("", "torn-pages", "storm", "all-lost", "subset")),
            "at": rng.choice(("", "", *RECOVERY_POINTS)),
            "seed": rng.randrange(1 << 30), "unit": rng.choice((512, 512, 4096))}


def _plain(rng, world, server, number, illegal):
    """Arguments of what has none but a load."""
    return {"load": _maybe_load(rng, world, server, illegal)}


def _follow(rng, world, server, number, illegal):
    others = [name for name in world.up() if name != server]
    if not others:
        return None
    of = rng.choice(others)
    return {"of": of, "mode": rng.choice(MODES[:2] * 4 + MODES[2:]),
            "load": _maybe_load(rng, world, of, illegal)}


def _restore(rng, world, server, number, illegal):
    if not world.backups:
        return None
    return {"backup": rng.choice(sorted(world.backups)), "mode": rng.choice(MODES[:2]),
            "log": rng.choice(("own", "none", "stale"))}


def _rewind(rng, world, server, number, illegal):
    others = [name for name in world.up("primary") if name != server]
    if not others:
        return None
    source = rng.choice(others)
    return {"source": source, "mode": rng.choice(MODES[:2]),
            "load": _maybe_load(rng, world, source, illegal)}


_ARGUMENTS = {
    "start": _start, "cut": _cut, "edit": _edit, "reload": _reload, "work": _work,
    "faulty": _faulty, "checkpoint": _plain, "promote": _plain, "follow": _follow,
    "restore": _restore, "rewind": _rewind, "script": _script, "clock": _plain,
    "backup": _backup, "recover": _recover,
    "point": lambda rng, world, server, number, illegal: {
        "name": f"point-{number}", "load": _maybe_load(rng, world, server, illegal)},
    "copied": lambda rng, world, server, number, illegal: {},
    "single": lambda rng, world, server, number, illegal: {"load": None},
    "stop": lambda rng, world, server, number, illegal: {
        "how": rng.choice(("fast", "fast", "immediate", "kill")),
        "load": _maybe_load(rng, world, server, illegal)},
    "kill": lambda rng, world, server, number, illegal: {
        "process": rng.choice(PROCESSES), "load": _maybe_load(rng, world, server, illegal)},
    "tool": lambda rng, world, server, number, illegal: {"tool": rng.choice(TOOLS)},
    "wrong-log": lambda rng, world, server, number, illegal: {
        "log": rng.choice(("none", "stale")), "owner": rng.choice(("old", "own", "none"))},
    "bad-edit": lambda rng, world, server, number, illegal: {"value": "sometimes"},
}


# Coverage ---------------------------------------------------------------


def variant(step: Step) -> str:
    """Return the kind of a step with the parameter that matters most."""
    which = {"start": step.get("program", ""), "stop": step.get("how"), "cut": step.get("fault"),
             "reload": step.get("scope"), "tool": step.get("tool"), "kill": step.get("process"),
             "restore": step.get("log"), "wrong-log": step.get("log"),
             "script": step.get("name"), "backup": "incremental" if step.get("on") else "",
             }.get(step.do)
    if step.do == "start" and step["point"]:
        which = step["point"].split(":")[0]
    return f"{step.do}{':' + which if which else ''}{' illegal' if step.illegal else ''}"


def covered(histories: Iterable[History]) -> tuple:
    """Return ({variant: how often}, {(kind, next kind on the same server): how often})."""
    single, pairs = Counter(), Counter()
    for history in histories:
        last = {}
        for step in history.steps:
            single[variant(step)] += 1
            if step.server in last:
                pairs[last[step.server], step.do] += 1
            last[step.server] = step.do
    return single, pairs
