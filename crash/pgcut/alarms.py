"""What a server says only if it, or its storage, is broken: SQLSTATEs of classes XX and 58."""

import re

CLASSES = ("XX", "58")

_LINE = re.compile(r"^.*\] (\w{2})\w{3} .*(?:ERROR|FATAL|PANIC):.*$", re.MULTILINE)


# Of class XX whatever the reason.  Where writes are made to fail, checkpoints may.
_CHECKPOINT_FAILED = "checkpoint request failed"

# With a few dozen shared buffers, as these servers have, many clients at once can pin all of
# them, in stock as well.
_ALL_PINNED = "no unpinned buffers available"


def of_clients(events, classes=CLASSES):
    """Return what clients were told, by the events of a load, that nobody should be told."""
    return list(dict.fromkeys(
        f"{event['client']} was told {event['sqlstate']}: {event['error']}" for event in events
        if event["what"] == "fail" and event.get("sqlstate", "")[:2] in classes
        and not ("58" not in classes and event["error"].startswith(_CHECKPOINT_FAILED))
        and _ALL_PINNED not in event["error"]))


def of_server(log, classes=CLASSES):
    """Return the lines of a server log, with the prefix that matrix.FIXED has, that alarm."""
    return list(dict.fromkeys(match[0] for match in _LINE.finditer(log)
                              if match[1] in classes and _ALL_PINNED not in match[0]))
