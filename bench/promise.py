"""How long a crash recovery takes, and how long it was predicted to take.

One server crashes again and again, after as many transactions as a random number
says, the same ones each time, and starts with nothing in the kernel's cache.  It
learns from each recovery, so the first prediction is judged apart.  With a target the
server makes checkpoints to keep recoveries short.  While it recovers it says how much time
is left to clients that it refuses: that is judged at half-way.
"""

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass

from . import clients, counters
from .loads import PREWARM, Point
from .restart import SAMPLE_SECONDS, carry_out

# A prediction that is off by more does not count as right.
RIGHT_PERCENT = 25

# Time left is told in tenths of a second, so nothing follows from less time than this.
LEAST_SECONDS = 1

# So often a client comes: that takes little of the processors' time.
ASK_SECONDS = 0.1

# Transactions before a crash, as shares of those of the case.
LEAST, MOST = 0.15, 1.2

# The last recovery on record, part by part, and all of it.
SCORE = """SELECT part, coalesce(predicted_ms, 0), actual_ms
    FROM pg_double_write_recoveries ORDER BY finished DESC, part LIMIT 6"""

RECORDED = """SELECT coalesce(max(finished) > pg_postmaster_start_time(), false)
    FROM pg_double_write_recoveries"""


@dataclass(frozen=True)
class Promise:
    """So many crashes, each after transactions by pgbench with these arguments."""

    transactions: int
    arguments: tuple
    crashes: int

    def __call__(self, session):
        server, random_number = session.server, random.Random(clients.SEED)
        server.sql("CREATE EXTENSION IF NOT EXISTS pg_doublewrite_stats")
        recoveries, told, shown, seconds, costs, carried_out = [], [], [], 0, Counter(), 0
        for _ in range(self.crashes):
            number = int(self.transactions * random_number.uniform(LEAST, MOST))
            took, counts, log, texts = self._crash(session, number)
            told.append([(round(when, 3), text) for when, text in texts])
            shown.append(wrong_at_half_way(log, texts))
            seconds += took
            costs.update(counts)
            carried_out += number
            wait_for_record(server)
            recoveries.append({part: (float(predicted) / 1000, float(actual) / 1000)
                               for part, predicted, actual in server.rows(SCORE)})
        session.volume.release()
        (session.raw / "recoveries.json").write_text(json.dumps(recoveries, indent=1) + "\n")
        (session.raw / "told.json").write_text(json.dumps(told, indent=1) + "\n")
        return [*points(recoveries, costs, carried_out, seconds), *half_way(shown)]

    def _crash(self, session, transactions):
        """Carry out transactions, crash, recover.

        Returns the seconds that the transactions took, what they have moved, the server's log
        of its recovery, and what clients were told meanwhile: (time, text).
        """
        server, volume = session.server, session.volume
        volume.release()
        server.sql(PREWARM)
        server.sql("CHECKPOINT")
        volume.hold()
        before, begun = session.snapshot(), time.monotonic()
        carry_out(server, transactions, self.arguments)
        seconds = time.monotonic() - begun
        counts = counters.difference(session.snapshot(), before)
        server.stop("immediate")
        volume.release()
        volume.cool()
        volume.hold()
        offset = session.log_size()
        server.start(wait=False)
        told = []

        def ask():
            if not told or time.time() > told[-1][0] + ASK_SECONDS:
                told.append((time.time(), server.refusal()))

        text = server.until_ready(offset, SAMPLE_SECONDS, ask)
        return seconds, counts, text, told


def wait_for_record(server):
    """Wait until the checkpointer has put the last recovery on record."""
    deadline = time.monotonic() + server.patience_seconds
    while server.sql(RECORDED) != "t":
        if time.monotonic() > deadline:
            raise server.failure("did not record its recovery")
        time.sleep(SAMPLE_SECONDS)


# Pure functions ---------------------------------------------------------------


def points(recoveries, costs, transactions, seconds):
    """Return Points for recoveries [{part: (predicted, actual)}], the oldest first.

    `costs` is what so many transactions have moved in so many seconds, with the checkpoints
    that were made meanwhile.  All loads count as one: some are too short for a checkpoint.
    """
    totals = [recovery["total"] for recovery in recoveries]
    off = [off_percent(*total) for total in totals]
    right = [percent for percent in off[1:] if abs(percent) <= RIGHT_PERCENT]
    facts = {"off in the first, %": off[0],
             "off at most in others, %": max(map(abs, off[1:]), default=0)}
    return [
        Point(f"predictions within {RIGHT_PERCENT} %", 100 * len(right) / max(1, len(off) - 1), "%",
              True, len(totals), extra=facts),
        Point("longest recovery but the first", max(actual for _, actual in totals[1:]), "s",
              False, len(totals), extra={"first, s": totals[0][1]}),
        Point("transactions a second", round(transactions / seconds, 1), "1/s", True,
              transactions, dict(costs), extra={"checkpoints": costs["checkpoint.num_done"]}),
    ]


def wrong_at_half_way(log, told):
    """Return by how many percent the time left was wrong when half of redo had passed.

    `told` has (time, text) of clients that came then and were refused.  None if redo was too
    short to judge, or nobody was told.
    """
    begun = float(re.search(r"^([\d.]+) .*redo starts at", log, re.MULTILINE)[1])
    ended = float(re.search(r"^([\d.]+) .*redo done at", log, re.MULTILINE)[1])
    if ended - begun < LEAST_SECONDS:
        return None
    for when, text in told:
        if (begun + ended) / 2 <= when < ended:
            left = re.search(r"about ([\d.]+) s to go", text)
            return left and 100 * (float(left[1]) / (ended - when) - 1)
    return None


def half_way(shown):
    """Return Points for how wrong the time left was at half-way of redo, in percent.

    None stands for a redo that was too short to be told of.
    """
    told = [percent for percent in shown if percent is not None]
    if not told:
        return []
    right = [percent for percent in told if abs(percent) <= RIGHT_PERCENT]
    return [Point(f"time left within {RIGHT_PERCENT} % at half-way", 100 * len(right) / len(told),
                  "%", True, len(told), extra={"off at most, %": max(map(abs, told))})]


def off_percent(predicted, actual):
    """Return by how much a recovery took longer than predicted, in percent."""
    return round(100 * (actual / predicted - 1)) if predicted else 0
