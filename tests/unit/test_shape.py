"""Shape is a test: files of more than 1,000 lines, functions of more than 100, and names without a use or with two.

Each test prints every place that breaks its rule, so that one run shows all of them. ``python -m
tests.unit.test_shape`` prints a report: the longest files and functions, and the functions with the most parameters.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from heapq import nlargest
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("broker", "client", "protocol", "conf", "testing")
ALL = (*PRODUCT, "scripts", "tests")
FILE_LINES_MAX = 1_000
FUNCTION_LINES_MAX = 100
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAIRED = {"aio", "sync"}
"""Rooms whose classes have the same name on purpose: one is the asyncio version of the other."""
ONE_MEANING = {"CorruptLog"}
"""Names that two packages define with the same meaning, because neither may import the other."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method: file and line where it begins and its name, and its figures."""

    place: str
    lines: int
    parameters: int
    docstring: str
    is_kernel: bool
    """Whether Numba compiles it: arrays of different types cannot travel in one parameter, and a loop that is divided
    into calls passes its state through memory."""


@dataclass(frozen=True, slots=True)
class Public:
    """A public class, function, method or constant of a module."""

    name: str
    is_class: bool
    is_decorated: bool


@dataclass(frozen=True, slots=True)
class Module:
    """The figures of a file that the tests need: its syntax tree has a hundred times as many objects."""

    text: str
    functions: list[Function]
    public: list[Public]


@cache
def module(path: Path) -> Module:
    """Parse a Python file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    name = path.relative_to(ROOT)
    found = [
        Function(
            f"{name}:{node.lineno}: {node.name}",
            (node.end_lineno or 0) - node.lineno + 1,
            parameters(node),
            ast.get_docstring(node) or "",
            any(ast.unparse(each).split("(")[0] in {"inlined", "kernel"} for each in node.decorator_list),
        )
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    ]
    return Module(text, found, list(public_definitions(tree)))


def parsed(folders: tuple[str, ...]) -> dict[str, Module]:
    """Return each Python file in ``folders`` by its path within the project."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    files = {str(path.relative_to(ROOT)): module(path) for path in paths}
    assert files
    return files


def functions(folders: tuple[str, ...]) -> Iterator[Function]:
    """Yield each function and method in ``folders``."""
    for each in parsed(folders).values():
        yield from each.functions


def public_definitions(tree: ast.Module) -> Iterator[Public]:
    """Yield each public class, function, method and constant of one module."""
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if not node.name.startswith("_"):
                is_class = isinstance(node, ast.ClassDef)
                yield Public(node.name, is_class, not is_class and bool(node.decorator_list))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    yield Public(target.id, False, False)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters that a caller of ``node`` may pass."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_files_are_short() -> None:
    assert not [path for path, each in parsed(ALL).items() if each.text.count("\n") > FILE_LINES_MAX]


def test_functions_are_short() -> None:
    long = [each.place for each in functions(ALL) if each.lines > FUNCTION_LINES_MAX and not each.is_kernel]
    assert not long, "\n".join(long)


def test_no_docstring_only_points_elsewhere() -> None:
    pointers = [
        f"{each.place}: {each.docstring}"
        for each in functions(PRODUCT)
        if re.fullmatch(r"See [^\n]{1,80}", each.docstring)
    ]
    assert not pointers, "\n".join(pointers)


def test_the_formatter_decides_every_line() -> None:
    marks = re.compile(r"#\s*fmt:\s*(?:skip|off|on)")
    assert not [path for path, each in parsed(ALL).items() if marks.search(each.text)]


def test_every_ignored_type_error_has_a_reason() -> None:
    """``# type: ignore[code]  # reason``: without one, no reader knows when the mark may go."""
    bare = re.compile(r"#\s*type:\s*ignore(?:\[[^\]]*\])?\s*$")
    found = [
        f"{path}:{number}"
        for path, each in parsed(ALL).items()
        for number, line in enumerate(each.text.splitlines(), 1)
        if bare.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_public_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path, each in parsed(PRODUCT).items():
        for public in each.public:
            if public.is_class:
                places[public.name].append(path)
    twice = {
        name: paths
        for name, paths in places.items()
        if len(paths) > 1 and name not in ONE_MEANING and not (len(paths) == 2 and is_pair(paths))
    }
    assert not twice, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in twice.items())


def is_pair(paths: list[str]) -> bool:
    """Return whether two modules are the blocking and the asyncio version of one thing."""
    words = [set(re.split(r"[/_.]", path)) for path in paths]
    return words[0] | words[1] >= PAIRED or sum("aio" in each for each in words) == 1


def test_every_public_name_is_used() -> None:
    """A name counts as used if the product, a script or a document mentions it beside its definition."""
    words: Counter[str] = Counter()
    for each in parsed((*PRODUCT, "scripts")).values():
        words.update(re.findall(r"\w+", each.text))
    for document in [ROOT / "pyproject.toml", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]:
        words.update(re.findall(r"\w+", document.read_text(encoding="utf-8")))
    unused = [
        f"{path}: {public.name}"
        for path, each in parsed(PRODUCT).items()
        for public in each.public
        if words[public.name] < 2 and not public.is_decorated
    ]
    assert not unused, "\n".join(unused)


def report() -> None:
    """Print the ten longest files and functions, and the ten functions with the most parameters."""
    lines = ((each.text.count("\n"), path) for path, each in parsed(ALL).items())
    measured = [each for each in functions(PRODUCT) if not each.is_kernel]
    for title, rows in (
        ("lines of a file", lines),
        ("lines of a function", ((each.lines, each.place) for each in measured)),
        ("parameters of a function", ((each.parameters, each.place) for each in measured)),
    ):
        sys.stdout.write(f"{title}\n")
        for number, place in nlargest(10, rows):
            sys.stdout.write(f"{number:6,}  {place}\n")


if __name__ == "__main__":
    report()
