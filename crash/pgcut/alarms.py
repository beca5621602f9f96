"""What a server says only if it, or its storage, is broken: SQLSTATEs of classes XX and 58.

Clients that are told anything else may have read something old: that a table of theirs is not
there, or that a key is which they have not used yet.  So where nothing is made to fail they may
be told only what others cause.
"""

import re

CLASSES = ("XX", "58")

# Connections end, transactions are in each other's way, resources or locks are not to be had, and
# a standby is for reading only.
CAUSED_BY_OTHERS = ("08", "40", "53", "55", "57", "25006")

# Without a SQLSTATE: nobody gets in before a server is ready, nor after a stop has begun.
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
    """Return what clients were told, by the events of a load, that nobody should be told.

    With other classes than CLASSES something was made to fail, and what else they are told is
    no finding.
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
    """Return the lines of a server log, with the prefix that matrix.FIXED has, that alarm."""
    return list(dict.fromkeys(match[0] for match in _LINE.finditer(log)
                              if match[1] in classes and _ALL_PINNED not in match[0]))
