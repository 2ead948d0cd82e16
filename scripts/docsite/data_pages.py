"""The page of the functions for data frames and Spark, read from their sources: importing them needs libraries."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from .code_pages import prose
from .python_pages import LINE_CHARS

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = {
    "flintmq.client.polars": ("client/polars/frames.py", ("scan", "scan_store")),
    "flintmq.client.arrow": ("client/arrow/archive/store.py", ("read_store",)),
    "flintmq.client.spark": ("client/spark/sessions.py", ("session", "register")),
}
"""Modules with their file and their functions, by the names that programs import."""


def data_page() -> str:
    """Return the functions of ``flintmq.client.polars``, ``arrow`` and ``spark``."""
    parts = [
        "# Functions for data frames and Spark",
        "How to use them: [data frames](../how-to/arrow.md) and [Spark](../how-to/spark.md). `Consumer.arrow` and "
        "`Producer.send_arrow` are on the page of [`flintmq.client`](client.md).",
    ]
    for module, (path, names) in FUNCTIONS.items():
        parts += [f"## `{module}`", *_functions(ROOT / path, names)]
    return "\n\n".join(parts)


def _functions(path: Path, names: tuple[str, ...]) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in names:
        node = found[name]
        yield f"### `{name}`"
        yield f"```python\n{_signature(node)}\n```"
        yield prose(inspect.cleandoc(ast.get_docstring(node) or ""))


def _signature(node: ast.FunctionDef) -> str:
    """Return how to call it; a long one takes a line for each parameter."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = ast.unparse(node.args)
    short = f"{node.name}({arguments}){returns}"
    if len(short) <= LINE_CHARS:
        return short
    each = re.split(r", (?![^\[]*\])", arguments)  # a comma between brackets belongs to a type
    return "\n".join([f"{node.name}(", *(f"    {argument}," for argument in each), f"){returns}"])
