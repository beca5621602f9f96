"""What redo page by page must know, compared with PostgreSQL's source.

Each resource manager's `rm_identify` names its record types.  The document that
classifies them is to have each, and no other; and each file that looks at relation files.
"""

import re
from collections.abc import Iterable, Iterator

DOCUMENT = "docs/instant-restart.md"
MANAGERS = "src/include/access/rmgrlist.h"
DESCRIPTIONS = "src/backend/access/rmgrdesc/"

CLASSES = ("page", "analysis", "drop", "barrier")

# What stands for the record types of a resource manager that has no names for them.
ANY = "any"

# Where calls of the functions that look at relation files count, and where they are defined.
CALLERS = ("src/backend/*.c", "contrib/*.c", ":!src/backend/storage/smgr/smgr.c",
           ":!src/backend/storage/smgr/md.c")
READS = (r"(^|[^[:alnum:]_])"
         r"(smgr(read|readv|startreadv|prefetch|nblocks|nblocks_cached|truncate|extend|zeroextend)"
         r"|Flush(RelationBuffers|DatabaseBuffers|RelationsAllBuffers)|PrefetchSharedBuffer"
         r"|RelationCopyStorage|copydir|copy_file|sendFile|DoubleWriteHoldHomeWrites) *\(")


def record_types(managers: str, descriptions: Iterable[str]) -> dict[str, set[str]]:
    """Return {resource manager: {record type}}, given the texts of these files."""
    texts = list(descriptions)
    found = {}
    for name, identify in re.findall(r'^PG_RMGR\(\w+, "(\w+)", \w+, \w+, (\w+),', managers,
                                     re.MULTILINE):
        pattern = re.compile(rf"^{identify}\(uint8 info\)\n\{{(.*?)^\}}", re.MULTILINE | re.DOTALL)
        bodies = [match[1] for match in map(pattern.search, texts) if match]
        found[name] = set(re.findall(r"(?:\bcase|==) (\w+)", "".join(bodies))) or {ANY}
    return found


def readers(listing: str, commit: str) -> set[str]:
    """Return {file} that `git grep -l` has found in a commit."""
    return {line.removeprefix(f"{commit}:") for line in listing.splitlines()}


def _rows(document: str, header: str) -> list[list[str]]:
    """Return the rows, cell by cell, of the table with this first cell in its header."""
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)*)", document, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")]
            for row in table[1].splitlines()] if table else []


def missing_types(document: str, types: dict[str, set[str]]) -> Iterator[str]:
    """Yield what is wrong with the table of record types."""
    seen = set()
    for manager, cell, kind, *reason in _rows(document, "resource manager"):
        names = re.findall(r"`(\w+)`", cell) or [cell]
        if kind not in CLASSES or not "".join(reason).strip():
            yield f"{manager}: {cell} has no class of {', '.join(CLASSES)}, or no reason"
        for name in names:
            if name not in types.get(manager, ()):
                yield f"{manager} has no record type {name}"
            if (manager, name) in seen:
                yield f"{name} of {manager} stands there twice"
            seen.add((manager, name))
    for manager, known in types.items():
        for name in sorted(known):
            if (manager, name) not in seen:
                yield f"record type {name} of {manager} is not there"


def missing_readers(document: str, found: set[str]) -> Iterator[str]:
    """Yield what is wrong with the table of files that look at relation files."""
    listed = [row[0].strip("`") for row in _rows(document, "file")]
    for path in sorted(found - set(listed)):
        yield f"{path} looks at relation files, and is not there"
    for path in sorted(set(listed) - found):
        yield f"{path} does not look at relation files"
    for path in sorted({path for path in listed if listed.count(path) > 1}):
        yield f"{path} stands there twice"
