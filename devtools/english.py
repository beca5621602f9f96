"""Words that must not come back in comments of C.

A comment names the process that acts: backend, checkpointer, startup process, flusher.  Words that
leave it open send the reader searching for it; "but for" and "in vain" are read twice.
"""

import re
from collections.abc import Iterator

_WORDS = re.compile(r"\b(?:who|whoever|nobody|somebody|he|him|his|but\s+for|in\s+vain)\b",
                    re.IGNORECASE)
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_FILE = re.compile(r"^diff --git a/\S+ b/(\S+\.[ch])\n(.*?)(?=^diff --git |\Z)",
                   re.MULTILINE | re.DOTALL)
_HUNK = re.compile(r"^@@ .*\n((?:[-+ \\].*\n)*)", re.MULTILINE)

# Files that still have such words.  A file leaves the list when it has been rewritten.
NOT_YET = frozenset("""
overlay/src/backend/access/transam/instantrecovery.c
overlay/src/backend/storage/doublewrite/remove.c
overlay/src/backend/storage/doublewrite/stage.c
overlay/src/include/storage/doublewrite_internal.h
patches/fixes/0004-don-t-truncate-pg-subtrans-at-restartpoints-of-crash.patch
patches/doublewrite/0001-add-a-double-write-log-and-restore-torn-pages-from-i.patch
patches/doublewrite/0004-exempt-pages-that-wal-rebuilds-from-double-writes.patch
patches/recovery/0004-choose-blocks-in-wal-that-another-process-may-read.patch
patches/recovery/0008-spare-redo-three-locks-for-each-record.patch
patches/recovery/0009-let-clients-in-before-the-checkpoint-that-ends-crash.patch
""".split())


def words(text: str) -> list[str]:
    """Return the words in the comments of a C source that must not be there."""
    return [" ".join(word.split()).lower() for match in _COMMENT_OR_STRING.finditer(text)
            if match[0].startswith("/*")
            for word in _WORDS.findall(re.sub(r"\n[ \t]*\*", "\n", match[0]))]


def added(diff: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each hunk in a C file: what is added, and of its context no words."""
    for path, hunks in _FILE.findall(diff):
        for hunk in _HUNK.findall(hunks):
            text = "".join(line[1:] if line[0] == "+" else re.sub(r"\w", "", line[1:])
                           for line in hunk.splitlines(keepends=True) if line[0] in "+ ")
            # A hunk may begin within a comment.
            if re.match(r"(?:(?!/\*).)*?\*/", text, re.DOTALL):
                text = "/*" + text
            yield path, text


def of_file(path: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a C source, or with the list of those not done yet."""
    found = words(text)
    if path in NOT_YET and not found:
        yield f"{path} has none of these words any more: take it off the list in english.py"
    elif path not in NOT_YET and found:
        yield f"{path}: comments say {', '.join(dict.fromkeys(found))}"


def of_patch(name: str, diff: str) -> Iterator[str]:
    """Yield what is wrong with the C sources that a patch changes, or with that list."""
    found: dict[str, list[str]] = {}
    for path, text in added(diff):
        if said := words(text):
            found.setdefault(path, []).extend(said)
    if name in NOT_YET and not found:
        yield f"{name} has none of these words any more: take it off the list in english.py"
    elif name not in NOT_YET:
        for path, said in found.items():
            yield f"{name}: comments in {path} say {', '.join(dict.fromkeys(said))}"
