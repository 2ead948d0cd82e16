"""Style is a test: names of modules, packages that say what they are for, and prose in plain English.

``PLAIN`` lists the folders and documents whose prose is checked: all of them.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "client", "protocol", "testing")
NOUNS = {"escaping", "grouping", "missing", "remoting", "routing"}
"""Last words of module names that end in -ing and are nouns of the field, or adjectives."""
PLAIN = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "broker",
    "client",
    "conf",
    "distributions",
    "docs",
    "protocol",
    "scripts",
    "testing",
    "tests",
)
STUMBLES = {
    "a noun phrase without a noun": r"^(?:What|Whoever|Whom?|Whether|As many|As much) (?!is this|does this|do )[a-z]",
    "'is no X' for 'is not an X'": (
        r"(?<=\S )(?<!there )(?<!There )\b(?:is|are|was|were|becomes?) no "
        r"(?!(?:faster|larger|less|longer|more|one|other|part|such)\b)[a-z]"
    ),
    "'is none' for 'is not one'": r"(?<=\S )(?<!there )(?<!There )\b(?:is|are|was|were) none\b",
    "'also if' for 'even if'": r"\b[Aa]lso (?:if|after)\b",
    "'the begin' for 'the start'": r"(?:\b(?:an?|its|the|their)|'s) begin\b(?! time)",
    "an unnamed subject": r"(?<![`\"])\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody)\b",
    "'anew' for 'again' or 'from scratch'": r"\banew\b",
    "'go on' for 'continue'": r"\b(?:go|goes|went) on\b",
    "'but for' for 'except'": r"\bbut for\b",
    "'lies' or 'stands' for 'is'": r"\b(?:lies|lie|stands|stand) (?:in|on|at|there|behind|under|here)\b",
}


def modules() -> list[Path]:
    """Return the Python files of the product and the scripts, without those of an environment."""
    return sorted(path for name in (*PACKAGES, "scripts") for path in (ROOT / name).rglob("*.py"))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of a document, or of the docstrings, comments and long strings of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
        elif token.type == tokenize.STRING and (token.string.startswith('"""') or len(token.string) > 40):
            for number, line in enumerate(token.string.strip("frb\"'").splitlines(), token.start[0]):
                yield number, line.strip()


def plain_files() -> list[Path]:
    """Return every Markdown, TOML and Python file in ``PLAIN`` except this one, which quotes the patterns."""
    files: list[Path] = []
    for name in PLAIN:
        path = ROOT / name
        files += [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in {".md", ".py", ".toml"})
    return [file for file in files if file != Path(__file__)]


@functools.cache
def plain_prose() -> list[tuple[str, str]]:
    """Return place and text of each line of prose in ``PLAIN``; read once, because tokenizing takes seconds."""
    return [(f"{path.relative_to(ROOT)}:{number}", line) for path in plain_files() for number, line in prose(path)]


@pytest.mark.parametrize("problem", STUMBLES)
def test_prose_is_plain(problem: str) -> None:
    pattern = re.compile(STUMBLES[problem])
    found = [f"{place}: {line}" for place, line in plain_prose() if pattern.search(line)]
    assert not found, "\n".join([f"{problem}:", *found])


def test_no_module_is_named_after_an_activity() -> None:
    names = {path.relative_to(ROOT): path.stem.rsplit("_", 1)[-1] for path in modules()}
    assert not [str(path) for path, word in names.items() if word.endswith("ing") and word not in NOUNS]


def test_every_package_has_a_docstring() -> None:
    packages = [path for path in modules() if path.name == "__init__.py"]
    assert packages
    missing = [
        str(p.relative_to(ROOT)) for p in packages if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))
    ]
    assert not missing
