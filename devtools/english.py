"""Words that must not come back in comments and messages of C, in SGML, in tests and documents.

A comment names the process that acts: backend, checkpointer, startup process, flusher.  Pronouns
that leave it open send the reader searching for it; other words are read twice.  Tests in Perl and
documents have people in them, which some of the pronouns may mean.  Messages of patches and cover
letters are sent with the code, and keep its rule.  Of Python, comments and docstrings are read.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_WORDS = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody|everybody|he|him|his"
                    r"|but\s+for|in\s+vain)\b", re.IGNORECASE)
_PEOPLE = ("who", "whom", "anybody", "everybody", "he", "him", "his")
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_FILE = re.compile(r"^diff --git a/\S+ b/(\S+\.(?:[ch]|sgml))\n(.*?)(?=^diff --git |\Z)",
                   re.MULTILINE | re.DOTALL)
_HUNK = re.compile(r"^@@ .*\n((?:[-+ \\].*\n)*)", re.MULTILINE)


def words(text: str) -> list[str]:
    """Return the words in comments and messages of a C source that must not be there."""
    return [word for match in _COMMENT_OR_STRING.finditer(text)
            for word in plain_words(re.sub(r"\n[ \t]*\*", "\n", match[0]))]


def plain_words(text: str) -> list[str]:
    """Return the words in a text that must not be there; not those in comments of SGML."""
    return [" ".join(word.split()).lower()
            for word in _WORDS.findall(re.sub("<!--.*?-->", "", text, flags=re.DOTALL))]


def python_words(source: str) -> list[str]:
    """Return the words in comments and docstrings of a Python source that must not be there."""
    texts = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
             if token.type == tokenize.COMMENT]
    texts += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source))
              if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    return plain_words("\n".join(texts))


def added(diff: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each hunk in a C file: what is added, and of its context no words."""
    for path, hunks in _FILE.findall(diff):
        for hunk in _HUNK.findall(hunks):
            text = "".join(line[1:] if line[0] == "+" else re.sub(r"\w", "", line[1:])
                           for line in hunk.splitlines(keepends=True) if line[0] in "+ ")
            # A hunk may begin or end within a comment.
            if re.match(r"(?:(?!/\*).)*?\*/", text, re.DOTALL):
                text = "/*" + text
            yield path, text + "*/" if text.rfind("/*") > text.rfind("*/") else text


def is_readme(path: str) -> bool:
    """Return whether this is a README as PostgreSQL has them, in plain text."""
    name = path.rpartition("/")[2]
    return name.startswith("README") and not name.endswith(".md")


def of_file(path: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a source in C or Python, SQL, a README, a test in Perl or a document."""
    if path.endswith(".py"):
        found = python_words(text)
    else:
        plain = path.endswith((".sgml", ".md", ".pl", ".pm", ".sql")) or is_readme(path)
        found = plain_words(text) if plain else words(text)
    if path.endswith((".md", ".pl", ".pm")) and not path.startswith("patches/"):
        found = [word for word in found if word not in _PEOPLE]
    if found:
        yield f"{path} says {', '.join(dict.fromkeys(found))}"


def of_patch(name: str, diff: str, message: str = "") -> Iterator[str]:
    """Yield what is wrong with the message of a patch, and with the C sources that it changes."""
    found: dict[str, list[str]] = {"the message": plain_words(message)} if message else {}
    for path, text in added(diff):
        if said := plain_words(text) if path.endswith(".sgml") else words(text):
            found.setdefault(path, []).extend(said)
    for path, said in found.items():
        if said:
            yield f"{name}: {path} says {', '.join(dict.fromkeys(said))}"
