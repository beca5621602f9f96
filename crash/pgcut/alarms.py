"""Errors that only a broken server, or broken storage, reports: SQLSTATEs of classes XX and 58.

A client that gets any other error may have read stale data: that its table does not exist, or
that a key exists which it has not used yet.  So where nothing is made to fail, only errors that
other clients cause are allowed.
"""

import re

CLASSES = ("XX", "58")

# Connections end, transactions are in each other's way, resources or locks are not to be had, and
# a standby is for reading only.
CAUSED_BY_OTHERS = ("08", "40", "53", "55", "57", "25006")

# Without a SQLSTATE: no client gets in before a server is ready, nor after a stop has begun.
_NOT_ADMITTED = re.compile(r"FATAL: +(?!the database system is |terminating |sorry, too many clients"
                           r"|remaining connection slots)")
_ROLLED_BACK = "COMMIT rolled back"

_LINE = re.compile(r"^.*\] (\w{2})\w{3} .*(?:ERROR|FATAL|PANIC):.*$", re.MULTILINE)


# Of class XX whatever the reason.  Where writes are made to fail, checkpoints may.
_CHECKPOINT_FAILED = "checkpoint request failed"

# With a few dozen shared buffers, as these servers have, many clients at once can pin all of
# them, in stock as well.
_ALL_PINNED = "no unpinned buffers available"


def of_clients(events, classes=CLASSES):
    """Return the errors in the events of a load that are findings.

    With other classes than CLASSES something was made to fail, and no other error is a finding.
    """
    return list(dict.fromkeys(
        f"{event['client']} was told {event.get('sqlstate', '')}: {event['error']}"
        for event in events if event["what"] == "fail"
        and _is_wrong(event.get("sqlstate", ""), event["error"], classes)))


def _is_wrong(code, text, classes):
    if _ALL_PINNED in text or "58" not in classes and text.startswith(_CHECKPOINT_FAILED):
        return False
    if code[:2] in classes or classes != CLASSES:
        return code[:2] in classes
    return not code.startswith(CAUSED_BY_OTHERS) if code else \
        bool(_NOT_ADMITTED.search(text)) or text.startswith(_ROLLED_BACK)


def of_server(log, classes=CLASSES):
    """Return the lines of a server log that are findings; their prefix is that of matrix.FIXED."""
    return list(dict.fromkeys(match[0] for match in _LINE.finditer(log)
                              if match[1] in classes and _ALL_PINNED not in match[0]))
