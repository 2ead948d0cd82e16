"""Style is a test: names, sizes, docstrings, and prose in plain English.

``PLAIN`` lists the folders and documents whose prose is checked: all of them.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "client", "protocol")
NOUNS = {"escaping", "grouping", "missing", "routing"}
"""Last words of module names that end in -ing and are nouns of the field, or adjectives."""
PLAIN = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "conf",
    "broker/app",
    "broker/background",
    "broker/budgets",
    "broker/delivery",
    "broker/filters",
    "broker/handlers",
    "broker/metrics",
    "broker/migration",
    "broker/net",
    "broker/requests",
    "broker/security",
    "client/README.md",
    "client/aio",
    "client/cli",
    "client/core",
    "client/groups",
    "client/sync",
    "scripts",
    "tests",
)
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8
LONG_FUNCTIONS = {"dispatch", "examine"}
"""Kernels whose loop over records would be slower in parts: the compiler keeps their variables in registers."""
WIDE_PLACES = ("broker/kernels/", "client/")
"""Kernels take one array for each column. The client's functions take keywords, which a program names one by one."""
NO_WORDS = {"list_contexts", "list_delays", "list_settings", "list_topics", "set_settings"}
"""Commands of the command line, which click finds by their decorator."""
TWICE = {"CorruptLog"}
"""Public class names that exist twice with one meaning: neither of the two packages may import the other."""
STUMBLES = {
    "a noun phrase without a noun": r"^(?:What|Whoever|Whom?|Whether|As many|As much) (?!is this|does this|do )[a-z]",
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
    """Yield number and text of each line of a document, or of the docstrings, long strings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
        elif token.type == tokenize.STRING and ("\n" in token.string or len(token.string) > 40):
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


@functools.cache
def product() -> dict[Path, ast.Module]:
    """Return the syntax trees of the product's modules by path relative to the checkout."""
    paths = [path for path in modules() if path.relative_to(ROOT).parts[0] in PACKAGES]
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[Path, Function]]:
    """Yield every function and method of the product, with its module."""
    for path, tree in product().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield path, node


def public() -> Iterator[tuple[Path, Function | ast.ClassDef]]:
    """Yield the public functions and classes of the product's modules."""
    for path, tree in product().items():
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                yield path, node


def test_no_module_is_long() -> None:
    sizes = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in product()}
    assert not {path: lines for path, lines in sizes.items() if lines > FILE_LINES_MAX}


def test_no_function_is_long() -> None:
    lines = {f"{path}: {node.name}": (node.end_lineno or 0) - node.lineno + 1 for path, node in functions()}
    long = {place: count for place, count in lines.items() if count > FUNCTION_LINES_MAX}
    assert {place.rpartition(" ")[2] for place in long} <= LONG_FUNCTIONS, long


def test_no_function_has_many_parameters() -> None:
    wide = []
    for path, node in functions():
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > PARAMETERS_MAX and not str(path).startswith(WIDE_PLACES):
            wide.append(f"{path}: {node.name} has {count}")
    assert not wide


def test_no_two_public_classes_have_one_name_except_the_drivers_of_the_client() -> None:
    places = collections.defaultdict(list)
    for path, node in public():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(path)
    for name, paths in places.items():
        asynchronous = [path for path in paths if "aio" in str(path)]
        others = len(paths) - len(asynchronous)
        assert (others <= 1 and len(asynchronous) <= 1) or name in TWICE, f"{name}: {', '.join(map(str, paths))}"


def test_every_public_name_is_used() -> None:
    texts = [*modules(), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*/README.md"), *ROOT.glob("*.md")]
    words = collections.Counter(
        word for path in texts for word in re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace"))
    )
    assert not [f"{path}: {node.name}" for path, node in public() if words[node.name] < 2 and node.name not in NO_WORDS]


def test_every_public_function_and_class_has_a_docstring_of_its_own() -> None:
    docstrings = {f"{path}: {node.name}": ast.get_docstring(node) or "" for path, node in public()}
    assert not [place for place, text in docstrings.items() if not text or re.fullmatch(r"See [^.]*\.?", text)]


def test_every_exception_from_the_formatter_has_a_reason() -> None:
    assert not [str(path) for path in modules() if re.search(r"fmt: skip\s*$", path.read_text("utf-8"), re.MULTILINE)]
