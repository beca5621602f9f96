"""What in the logs of servers, the errors of clients and the complaints of the oracle is a finding.

Only a broken server, or broken storage, reports SQLSTATEs of the classes XX and 58.  A client
that gets any other error may have read stale data: that its table does not exist, or that a key
exists which it has not used yet.  So where nothing is made to fail, only errors that other
clients cause are allowed.
"""

import re
from pathlib import Path
from typing import Any

CLASSES = ("XX", "58")

# Connections end, transactions are in each other's way, resources or locks are not to be had, and
# a standby is for reading only.
CAUSED_BY_OTHERS = ("08", "40", "53", "55", "57", "25006")

# Without a SQLSTATE: no client gets in before a server is ready, nor after a stop has begun, nor
# while replay has to remove what the client would look up in catalogs.
_NOT_ADMITTED = re.compile(r"FATAL: +(?!the database system is |terminating |sorry, too many clients"
                           r"|remaining connection slots"
                           r"|canceling statement due to conflict with recovery)")
_ROLLED_BACK = "COMMIT rolled back"

_LINE = re.compile(r"^.*\] (\w{2})\w{3} .*(?:ERROR|FATAL|PANIC):.*$", re.MULTILINE)

# Always of class XX.  Where writes are made to fail, checkpoints may fail.
_CHECKPOINT_FAILED = "checkpoint request failed"

# With a few dozen shared buffers, as these servers have, many clients at once can pin all of
# them, in stock as well.
_ALL_PINNED = "no unpinned buffers available"

# What a server that crashes says, or the postmaster of one of its processes: signal 6 is that of a
# PANIC as well.
_CRASH = re.compile(r"^.*(?:TRAP:|(?P<panic>PANIC:)"
                    r"|\(PID \d+\) was terminated by signal (?P<signal>4|6|7|8|9|11)\b).*$",
                    re.MULTILINE)
# Some seconds after an immediate stop, or a crash, the postmaster kills what is still there.
_POSTMASTER_KILLS = "to recalcitrant children"

_BAD_PAGE = re.compile(r"^.*(?:invalid page|page verification failed).*$", re.MULTILINE)

# A free space map is a hint, is not logged, and repairs itself with this message,
# which checksums precede with another.
_MENDED_MAP = re.compile(r'^(.*page verification failed.*\n(.*(?:CONTEXT|STATEMENT):.*\n)?)?'
                         r'.*_fsm"; zeroing out page.*$', re.MULTILINE)

TORN_MAP = re.compile(r"of its fsm fork \(.*\) is not a page")
# Messages of a server that has read a rotten page, or a rotten part of the log, and of the oracle,
# which compares some files byte by byte.
_REPORTED = re.compile("invalid page in block|page verification failed"
                       "|double-write log is damaged|could not read page copy"
                       "|could not read the copy of block"
                       "|double-write log in .* is missing or unreadable"
                       "|has an LSN after the end of WAL|file .* differs in block|is not a page")
# ... in particular a part of the log, and a page in a line that names no file.
_REPORTED_LOG = re.compile("double-write log|could not read page copy")
_NAMELESS = "page verification failed"
# Messages of both about a file that cannot be read.
UNREADABLE = re.compile("could not read")
NO_VERDICT = re.compile("no verdict|exit status|server exited with|a server cannot go on from here")
# A server that has opened before redo says so of each file that has to be whole, and its
# checkpoints fail.
_NOT_REDONE = re.compile(f"could not be redone after the last crash|{_CHECKPOINT_FAILED}")
# Killed by a signal other than that of a PANIC
KILLED = re.compile(r"(?:exit status(?: is)?|exited with) -(?!6\b)\d")
ORPHAN = re.compile(r"^(?:promoted: )?file (\S+) of \d+ bytes belongs to no relation$")
# Of a database that was dropped, and could not be removed.
ORPHAN_DIRECTORY = re.compile(r"^(?:promoted: )?directory (\S+) belongs to no database$")
# Where redo has ended.
_REDO_DONE = re.compile(r"redo done at (\S+)")


def of_clients(events: Any, classes: Any = CLASSES) -> list:
    """Return the errors in the events of a load that are findings.

    With other classes than CLASSES something was made to fail, and no other error is a finding.
    """
    return list(dict.fromkeys(
        f"{event['client']} was told {event.get('sqlstate', '')}: {event['error']}"
        for event in events if event["what"] == "fail"
        and _is_wrong(event.get("sqlstate", ""), event["error"], classes)))


def _is_wrong(code, text, classes):
    if _is_expected(text, classes):
        return False
    if code[:2] in classes or classes != CLASSES:
        return code[:2] in classes
    return not code.startswith(CAUSED_BY_OTHERS) if code else \
        bool(_NOT_ADMITTED.search(text)) or text.startswith(_ROLLED_BACK)


def _is_expected(text, classes):
    return _ALL_PINNED in text or "58" not in classes and _CHECKPOINT_FAILED in text


def of_server(log: str, classes: Any = CLASSES) -> list[str]:
    """Return the lines of a server log that are findings; their prefix is that of matrix.FIXED."""
    return list(dict.fromkeys(match[0] for match in _LINE.finditer(log)
                              if match[1] in classes and not _is_expected(match[0], classes)))


def replayed(log: Any) -> str | None:
    """Return the location of the last record that redo has read, by a server log; None if it has none."""
    found = _REDO_DONE.search(Path(log).read_text(errors="replace"))
    return found[1] if found else None


def crashes(log: str, fails: bool = False, kills: bool = False) -> list[str]:
    """Return the lines of a server log that tell of a crash, of the server or of a process.

    With `fails` something is made to fail, for which a PANIC may be right, but nothing else; with
    `kills` we have killed processes ourselves.
    """
    kills = kills or _POSTMASTER_KILLS in log
    return [match[0] for match in _CRASH.finditer(log)
            if not (fails and (match["panic"] or match["signal"] == "6")
                    or kills and match["signal"] == "9")]


def crashes_of_unreadable(log: str) -> list[str]:
    """Return those that are findings even if the server cannot read a file."""
    return [line for line in crashes(log) if "TRAP:" in line or not UNREADABLE.search(line)]


def bad_lines(log: str, kills: bool = False) -> list[str]:
    """Return the lines of a server log that no recovery may write; `kills` as in crashes()."""
    return crashes(log, kills=kills) + _BAD_PAGE.findall(_MENDED_MAP.sub("", log))


def left_over(complaints: Any) -> list[str]:
    """Return the files and directories that belong to nothing, by complaints of the oracle."""
    found = [ORPHAN.search(text) or ORPHAN_DIRECTORY.search(text) for text in complaints]
    return [match[1] for match in found if match]


def excused(complaint: str, rotten: Any, log: str) -> bool:
    """Say whether a complaint only reports what is rotten in an image.

    `rotten` are the places, `log` is that of the server.  A server that does not start, or that
    cannot redo a page, but does not crash either, must have named one of the places there.
    """
    if NO_VERDICT.search(complaint) or _NOT_REDONE.search(complaint):
        return not (crashes(f"{complaint}\n{log}") or KILLED.search(complaint)) and any(
            _reports(text, rotten) for text in (complaint, *log.splitlines()))
    return _reports(complaint, rotten)


def _reports(text, rotten):
    """Say whether a text reports one of the places that are rotten."""
    numbers = [place.rpartition("/")[2].partition(".")[0] for place in rotten]
    if not rotten or not _REPORTED.search(text):
        return False
    return _NAMELESS in text or any(re.search(rf"\b{number}\b", text) for number in numbers) or \
        "pg_doublewrite/" in "".join(rotten) and _REPORTED_LOG.search(text) is not None
