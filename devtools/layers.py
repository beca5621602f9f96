"""Layers: which file may call which, stated once and compared with the code.

The engine's order stands in the table of its README, from top to bottom; that of
the modules of our packages in the docstring of each, from bottom to top; that of the packages
here.  A file uses only what lies below it, so there are no circles.
"""

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence

# Packages, and which others each may use.
MAY_USE: dict[str, tuple[str, ...]] = {"common": (), "bench": ("common",), "crash/pgcut": ("common",),
           "devtools": ("common", "bench")}
PACKAGES = {path.rpartition("/")[2] for path in MAY_USE}

# A function of PostgreSQL's begins in the first column, and so does its body.
_FUNCTION = re.compile(r"^(\w+)\([^;{}]*\)\n\{", re.MULTILINE)
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_ROW = re.compile(r"^    (\w+\.c) ", re.MULTILINE)
_HEADING = re.compile(r"^/\* (\w+\.c)\b", re.MULTILINE)
_PROTOTYPE = re.compile(r"^extern [^;(]*?(\w+)\(", re.MULTILINE)


def bare(text: str) -> str:
    """Return a C source without comments and strings, line by line as before."""
    return _COMMENT_OR_STRING.sub(lambda match: "\n" * match[0].count("\n"), text)


def functions(text: str) -> list[tuple[str, int]]:
    """Return [(name, offset)] of the functions that a bare C source defines."""
    return [(match[1], match.start()) for match in _FUNCTION.finditer(text)]


def order_of_readme(readme: str) -> list[str]:
    """Return the names of the files listed under "Files", from top to bottom."""
    section = re.search(r"^## Files\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    return _ROW.findall(section[1]) if section else []


def _uses(text: str, known: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield (caller, name) for each name in `known` that a bare source mentions."""
    own = functions(text)
    mine = {name for name, _ in own}
    for match in re.finditer(r"\b\w+\b", text):
        if match[0] in known and match[0] not in mine:
            yield next((name for name, start in reversed(own) if start < match.start()),
                       "the file itself"), match[0]


def engine(order: Sequence[str], sources: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with C files {name: text}, given their order from top to bottom."""
    for name in sorted(set(sources) ^ set(order)):
        yield f"{name} is " + ("not in the list of README" if name in sources
                               else "in the list of README, but does not exist")
    texts = {name: bare(text) for name, text in sources.items() if name in order}
    home = {function: name for name, text in texts.items() for function, _ in functions(text)}
    for name, text in texts.items():
        for caller, callee in dict.fromkeys(_uses(text, home)):
            if order.index(home[callee]) < order.index(name):
                yield (f"{name}: {caller}() uses {callee}() of {home[callee]}, "
                       "which stands above it")


def prototypes(header: str, sources: dict[str, str]) -> Iterator[str]:
    """Yield the prototypes of a header that stand under the name of another file."""
    home = {function: name for name, text in sources.items()
            for function, _ in functions(bare(text))}
    headings = list(_HEADING.finditer(header))
    for match in _PROTOTYPE.finditer(header):
        name = next((h[1] for h in reversed(headings) if h.start() < match.start()), None)
        if home.get(match[1]) != name:
            yield (f"{match[1]}() is declared under {name}, "
                   f"but defined in {home.get(match[1], 'no file of the engine')}")


def order_of_package(source: str) -> list[str]:
    """Return the names of the modules in a package's docstring, from bottom to top."""
    return re.findall(r"^    (\w+)  +\S", ast.get_docstring(ast.parse(source), clean=False) or "",
                      re.MULTILINE)


def _imports(source: str) -> tuple[set[str], set[str]]:
    """Return the modules of the same package that a source imports, and the other packages."""
    own: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            own |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            others.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
    return own, others & PACKAGES


def modules(order: Sequence[str], sources: dict[str, str],
            may_use: Iterable[str] = ()) -> Iterator[str]:
    """Yield what is wrong with modules {name: source}, given their order from bottom to top.

    `may_use` are the other packages of ours that they may use.
    """
    for name in sorted(set(sources) ^ set(order)):
        yield f"{name} is " + ("not in the docstring of the package" if name in sources
                               else "in the docstring of the package, but does not exist")
    for name in order:
        own, others = _imports(sources.get(name, ""))
        for other in sorted(own):
            if other not in order[:order.index(name)]:
                yield f"{name} imports {other}, which does not stand above it in the docstring"
        for other in sorted(others.difference(may_use)):
            yield f"{name} imports {other}, a package that this one may not use"
