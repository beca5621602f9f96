"""Histories drawn at random, and what a number of them covers."""

import random
from collections import Counter

from . import matrix, steps
from .history import History, Step
from .states import FAULTS
from .steps import ILLEGAL_KINDS, MODE, MODES, NAMES, WHOLE_FAULTS

STEPS = (6, 14)             # of a history
ILLEGAL_SHARE = 0.1
LOADED_SHARE = 0.75         # of the steps that can go on under load

# How often each kind is tried; most attempts are not legal where they come.
WEIGHTS = {"start": 16, "single": 2, "stop": 6, "cut": 8, "edit": 6, "reload": 5, "work": 5,
           "faulty": 2, "checkpoint": 4, "kill": 5, "promote": 8, "follow": 7, "backup": 3,
           "restore": 12, "rewind": 30, "tool": 2}

# What a history is about: kinds that come so many times as often.
THEMES = ({}, {"edit": 3, "stop": 2, "cut": 2}, {"follow": 5, "promote": 2, "cut": 2, "edit": 2},
          {"start": 2, "cut": 3}, {"faulty": 8, "work": 2}, {"backup": 4, "restore": 3},
          {"follow": 4, "promote": 4, "rewind": 3})
# Steps that belong together and would rarely meet by chance: (kind, what is not drawn).
# "join" lets another server follow this one; what is "below" is done to one that does.
TOGETHER = (
    (("join", {}), ("stop", {"how": "fast"}), ("edit", {}), ("start", {"point": ""}),
     ("cut below", {}), ("start below", {"point": ""})),
    (("join", {}), ("promote below", {}), ("stop", {"how": "fast"}), ("rewind", {}),
     ("start", {"point": ""}), ("cut", {})),
)
ALONE = (
    (("stop", {"how": "fast"}), ("edit", {}), ("start", {"point": ""}), ("cut", {}),
     ("start", {"then": "kill"}), ("cut", {}), ("start", {"point": ""})),
    (("cut", {}), ("start", {"then": "fast"}), ("tool", {"illegal": True})),
    (("stop", {"how": "kill"}), ("start", {"point": "", "verify": False}),
     ("stop", {"how": "immediate", "load": None}), ("start", {"point": ""}),
     ("stop", {"how": "kill"}), ("wrong-log", {"log": "stale", "illegal": True})),
)
RECIPE_SHARE = 0.15         # of the places where one may begin

# Where servers are held or crash, and at which pass at most.
POINTS = {"doublewrite-armed": 1, "doublewrite-restore-run": 4, "doublewrite-restored": 1,
          "doublewrite-log-written": 12, "doublewrite-log-synced": 12,
          "doublewrite-home-written": 12, "doublewrite-home-run-written": 30,
          "doublewrite-checkpoint-drained": 2, "doublewrite-checkpoint-marked": 2,
          "doublewrite-before-low-water": 3, "doublewrite-after-low-water": 3,
          "doublewrite-marker-written": 1, "doublewrite-disarmed": 1,
          "doublewrite-before-images-off": 1, "doublewrite-sync-cycle": 1,
          "doublewrite-sync-removals": 2, "create-restart-point": 1}
# Those at which whoever waits keeps nobody from stopping the server.
HOLD_POINTS = ("doublewrite-armed", "doublewrite-restore-run", "doublewrite-restored")

PROCESSES = ("checkpointer", "background writer", "walwriter", "client", "startup", "walreceiver")
TOOLS = ("checksums-enable", "checksums-disable", "checksums-check", "state", "list", "check",
         "dry-run", "ledger")
# Kinds of load whose tables change by rows alone, so that a snapshot shows what the
# journal says; and the others.
STEADY = ("transfer", "method", "hint", "toast", "scan")
KINDS = (*STEADY, "copy", "index", "truncate", "refill", "recreate", "vacuum", "unlogged",
         "sequence", "prepared")
FILE_FAULTS = ("write:base/:{skip}:{count}:5", "write:base/:{skip}:4000:5",
               "write:base/:{skip}:{count}:28", "write:pg_doublewrite/:{skip}:{count}:5",
               "write:pg_doublewrite/:{skip}:{count}:28", "shortwrite:base/:{skip}:{count}:0",
               "shortwrite:pg_doublewrite/:{skip}:{count}:0",
               "create:pg_doublewrite:{skip}:{count}:28", "sync:base/:{skip}:{count}:5",
               "sync:pg_doublewrite/:{skip}:{count}:5")

# What a history's servers have in common beside what the matrix says.
FIXED = {"wal_level": "replica", "wal_keep_size": "64MB", "hot_standby": "on",
         "wal_retrieve_retry_interval": "100ms", "log_line_prefix": "%m [%p] %e ",
         "autovacuum_naptime": "1s", "max_wal_senders": "8", "archive_mode": "off",
         "full_page_writes": "on", "double_write_buffer_size": "16MB",
         "wal_consistency_checking": "",
         "checkpoint_timeout": "30s", "log_min_messages": "warning",
         "max_standby_streaming_delay": "-1", "max_standby_archive_delay": "-1"}
DRAWN = {"restart_after_crash": ("on", "off"), "max_wal_size": ("8MB", "64MB"),
         "double_write_stage_size": ("1MB", "2MB"),
         "checkpoint_timeout": ("30s", "10min"), "shared_buffers": ("512kB", "1MB", "4MB")}


def draw(seed):
    """Return the History of a seed."""
    rng = random.Random(f"history/{seed}")
    settings, checksums = matrix.draw(seed, **FIXED)
    settings.update({name: rng.choice(values) for name, values in DRAWN.items()})
    settings[MODE] = rng.choice(MODES[:2] * 3 + MODES[2:])
    history = History(seed, settings, checksums, ())
    world = history.world()
    theme = rng.choice(THEMES)
    weights = {kind: weight * theme.get(kind, 1) for kind, weight in WEIGHTS.items()}
    servers = NAMES[:rng.choice((2, 2, 3) if "follow" in theme else (1, 1, 1, 2, 2, 3))]
    drawn = [Step("start", "a", {"program": "ours", "point": "", "then": ""})]
    steps.apply(world, drawn[0])
    planned = []
    wanted = rng.randint(*STEPS)
    while len(drawn) < wanted or planned:
        if not planned and rng.random() < RECIPE_SHARE:
            server = rng.choice(servers)
            recipe = rng.choice(ALONE + (TOGETHER * 2 if len(servers) > 1 else ()))
            planned = [(server, *part) for part in recipe if part[0] != "join" or
                       not _followers(world, server)]
        if planned:
            step = _planned(rng, world, servers, planned.pop(0), len(drawn))
            planned = planned if step else []
        elif rng.random() < ILLEGAL_SHARE:
            step = _illegal(rng, world, servers, len(drawn))
        else:
            step = _legal(rng, world, servers, len(drawn), weights)
        if step:
            steps.apply(world, step)
            drawn.append(step)
    return history.with_steps(drawn)


def _followers(world, server):
    return [name for name, member in world.members.items() if member.upstream == server]


def _planned(rng, world, servers, part, number):
    """Return a step of a recipe, or None if it cannot be taken now."""
    server, kind, fixed = part
    illegal = fixed.get("illegal", False)
    below = _followers(world, server)
    kind, _, is_below = kind.partition(" ")
    if kind == "join":
        kind, fixed = "follow", {"of": server}
        server = rng.choice([name for name in servers if name != server])
    elif is_below:
        if not below:
            return None
        server = rng.choice(below)
    for _ in range(200):
        step = _step(rng, world, kind, server, number, illegal)
        if step is None or any(step.get(name) != value for name, value in fixed.items()
                               if name != "illegal"):
            continue
        why = steps.objection(world, step)
        if not why and not illegal or illegal and why and steps.tryable(world, step):
            return step
    return None


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


def load(rng, world, server, kinds=KINDS):
    """Return a load for a server, or for the primary that it follows, or None."""
    member = world.members[server]
    on = server if member.role == "primary" else member.upstream
    if not on:
        return None
    chosen = rng.sample(kinds, min(rng.randint(2, 4), len(kinds)))
    return {"on": on, "seed": rng.randrange(1 << 30), "kinds": {kind: 1 for kind in chosen},
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
        return {"program": program, "point": "", "then": "", "verify": rng.random() < 0.7}
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
        settings["double_write_compression"] = rng.choice(("off", "lz4"))
    return {"settings": settings}


def _reload(rng, world, server, number, illegal):
    if illegal:
        return {"scope": "role", "mode": rng.choice(("off", "double_writes")), "load": None}
    scope = rng.choice(("server", "server", "server", "role", "database"))
    mode = "full_pages" if scope != "server" else rng.choice(MODES[:2] * 4 + MODES[2:])
    return {"scope": scope, "mode": mode, "load": _maybe_load(rng, world, server, illegal)}


def _work(rng, world, server, number, illegal):
    return {"load": load(rng, world, server)}


def _faulty(rng, world, server, number, illegal):
    faults = [rng.choice(FILE_FAULTS).format(skip=rng.randrange(30), count=rng.randint(1, 6))
              for _ in range(rng.randint(1, 3))]
    return {"faults": faults, "then": rng.choice(("kill", "immediate")),
            "load": load(rng, world, server)}


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
    "restore": _restore, "rewind": _rewind,
    "single": lambda rng, world, server, number, illegal: {"load": None},
    "stop": lambda rng, world, server, number, illegal: {
        "how": rng.choice(("fast", "fast", "immediate", "kill")),
        "load": _maybe_load(rng, world, server, illegal)},
    "kill": lambda rng, world, server, number, illegal: {
        "process": rng.choice(PROCESSES), "load": _maybe_load(rng, world, server, illegal)},
    "backup": lambda rng, world, server, number, illegal: {
        "name": f"backup-{number}", "load": _maybe_load(rng, world, server, illegal)},
    "tool": lambda rng, world, server, number, illegal: {"tool": rng.choice(TOOLS)},
    "wrong-log": lambda rng, world, server, number, illegal: {
        "log": rng.choice(("none", "stale"))},
    "bad-edit": lambda rng, world, server, number, illegal: {"value": "sometimes"},
}


# Coverage ---------------------------------------------------------------


def variant(step):
    """Return the kind of a step with the parameter that matters most."""
    which = {"start": step.get("program", ""), "stop": step.get("how"), "cut": step.get("fault"),
             "reload": step.get("scope"), "tool": step.get("tool"), "kill": step.get("process"),
             "restore": step.get("log"), "wrong-log": step.get("log")}.get(step.do)
    if step.do == "start" and step["point"]:
        which = step["point"].split(":")[0]
    return f"{step.do}{':' + which if which else ''}{' illegal' if step.illegal else ''}"


def covered(histories):
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
