"""Pages of the reference, made from the code: settings, metrics, errors, commands, and the Python interface."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import flintmq.client
import flintmq.client.aio
import flintmq.testing
from flintmq.broker.app import daemon
from flintmq.broker.app.daemon import main as broker_program
from flintmq.broker.config import FIELDS, valid_values
from flintmq.broker.handlers.broker_admin import HOT_SETTINGS
from flintmq.broker.metrics.catalog import METRICS
from flintmq.broker.tools import commands, output
from flintmq.client import FlintError
from flintmq.client.cli import failures
from flintmq.client.cli.command import common_options
from flintmq.client.cli.main import SECTIONS, root
from flintmq.client.cli.settings import COMMON
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.client.groups.push.options import PushOptions, ReceiveOptions
from flintmq.client.groups.transactions.shell import HalfOptions
from flintmq.protocol.errors import BrokerError

ROOT = Path(__file__).resolve().parents[2]


def table(heads: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return a Markdown table; ``heads``: its heads, divided by ``|``."""
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    return "\n".join(lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows])


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    # Code may contain a bar; outside of code it would end the cell.
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def prose(text: str | None) -> str:
    """Return a docstring or help text as Markdown: its code is between double backticks."""
    return (text or "").replace("``", "`").strip()


def settings_page() -> str:
    """Return every setting with its default, its valid values and its meaning, from ``conf/broker.toml``."""
    parts = [
        "# Settings",
        "Every setting of `flintmq-broker`. A later source overrides an earlier one: defaults, `--config FILE`, the "
        "environment (`FLINTMQ_SECTION__NAME`), `--set SECTION.NAME=VALUE`. A *hot* setting can be changed while the "
        "broker runs: `flintmq config set SECTION.NAME=VALUE`.",
    ]
    section, rows = "", list[tuple[object, ...]]()
    seen = set[str]()
    for line in (ROOT / "conf" / "broker.toml").read_text(encoding="utf-8").splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            if rows:
                parts += [f"## `[{section}]`", table("setting | default | valid values | meaning", rows)]
            section, rows = header[1], []
        elif setting := re.match(r"(\w+) = (.*?)\s+#\s+(\S.*)", line):
            name = f"{section}.{setting[1]}"
            seen.add(name)
            hot = "*hot* · " if name in HOT_SETTINGS else ""
            rows.append((f"`{name}`", f"`{setting[2]}`", _escaped(valid_values(name)), hot + _escaped(setting[3])))
    parts += [f"## `[{section}]`", table("setting | default | valid values | meaning", rows)]
    assert seen == set(FIELDS), "conf/broker.toml has every setting"
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def metrics_page() -> str:
    """Return every metric, from the catalog."""
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for metric in METRICS
    ]
    return "\n\n".join(
        [
            "# Metrics",
            "Every metric that `/metrics` shows. `conf/alerts.yml` has alerts for them, "
            "`conf/grafana-dashboard.json` a panel for each.",
            table("name | kind | labels | meaning", rows),
        ]
    )


def error_page() -> str:
    """Return the tree of errors, the results of the protocol with their classes, and the exit codes."""
    tree = "\n".join(f"{'    ' * depth}- `{cls.__name__}`: {_first(cls)}" for depth, cls in _descendants(FlintError))
    results = [
        (cls.code, f"`{cls.name}`", f"`{cls.__name__}`", "yes" if cls.retriable else "no", prose(cls.__doc__))
        for cls in sorted(BrokerError.__subclasses__(), key=lambda cls: cls.code)
    ]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that FlintMQ raises on purpose is a `flintmq.client.FlintError`. Its message says what "
            "happened, to which object, why, and what to do next.",
            "## Errors in Python",
            tree,
            "## Results of the broker",
            "The command line shows an error as `RESULT (code)`. *Retry helps*: the same request can succeed later; "
            "clients try such requests again by themselves until their timeout.",
            table("code | result | class | retry helps | meaning", results),
            "## Exit codes of `flintmq`",
            table("exit code | meaning", _exit_codes(Path(failures.__file__))),
            "## Exit codes of `flintmq-broker serve`",
            table("exit code | meaning", [(0, "Done."), *_exit_codes(Path(daemon.__file__))]),
            "## Exit codes of the other commands of `flintmq-broker`",
            table(
                "exit code | meaning",
                [(0, "Done."), *_exit_codes(Path(commands.__file__)), *_exit_codes(Path(output.__file__))],
            ),
        ]
    )


def _descendants(cls: type[Exception], depth: int = 0) -> Iterator[tuple[int, type[Exception]]]:
    yield depth, cls
    for child in sorted(cls.__subclasses__(), key=lambda each: each.__name__):
        if child.__module__.startswith("flintmq."):
            yield from _descendants(child, depth + 1)


def _first(cls: type[Exception]) -> str:
    return " ".join(prose(cls.__doc__).partition("\n\n")[0].split())


def _exit_codes(module: Path) -> Iterator[tuple[object, ...]]:
    """Yield the values and texts of the constants ``EXIT_…`` of a module."""
    text = module.read_text(encoding="utf-8")
    for _, value, meaning in re.findall(r'^EXIT_(\w+) = (\d+)(?:\n"""(.*?)""")?', text, re.MULTILINE | re.DOTALL):
        yield value, meaning or "Done."


# ---- Every command, its arguments and its options, from click.


def client_command_page() -> str:
    ctx = click.Context(root, info_name="flintmq")
    parts = [
        "# `flintmq`: every command",
        "How the commands work together, positions, output formats and `--format`: [the command line](cli.md). Every "
        "command takes the common options, before or after its name:",
        _command_options(common_options(), ctx),
    ]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}")
        for name in names:
            command = root.get_command(ctx, name)
            assert command is not None
            parts += _command(command, click.Context(command, info_name=name, parent=ctx))
    return "\n\n".join(parts)


def broker_command_page() -> str:
    ctx = click.Context(broker_program, info_name="flintmq-broker")
    parts = ["# `flintmq-broker`: every command", "The broker itself, and the tools for its store."]
    for name in sorted(broker_program.commands):
        command = broker_program.commands[name]
        parts += _command(command, click.Context(command, info_name=name, parent=ctx))
    return "\n\n".join(parts)


def _command(command: click.Command, ctx: click.Context, depth: int = 3) -> Iterator[str]:
    """Yield the parts of a command's description, and of those below it."""
    yield f"{'#' * depth} `{ctx.command_path}`"
    yield prose(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            if not below.hidden:
                yield from _command(below, click.Context(below, info_name=name, parent=ctx), depth + 1)
        return
    yield f"```text\n{' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)])}\n```"
    own = [param for param in command.params if param.name not in COMMON]
    if options := _command_options(own, ctx):
        yield options


def _command_options(params: list[click.Parameter], ctx: click.Context) -> str:
    records = [record for param in params if (record := param.get_help_record(ctx)) and record[1]]
    rows = [(f"`{option}`", meaning.replace("<", "&lt;").replace("*", "\\*")) for option, meaning in records]
    return table("option | meaning", rows) if rows else ""


# ---- The Python interface, read from the classes themselves.

LINE_CHARS = 100
OPTIONS = (AccessOptions, PushOptions, ReceiveOptions, HalfOptions)
"""Keyword arguments that several classes share."""


def client_page() -> str:
    intro = "The clients for programs with threads, and the values that they take and return; [the errors](errors.md)."
    return "\n\n".join([_module(flintmq.client, intro), "## Options", *map(_options, OPTIONS)])


def asyncio_page() -> str:
    intro = "The same clients for asyncio; values and errors are those of [`flintmq.client`](client.md)."
    return _module(flintmq.client.aio, intro)


def testing_page() -> str:
    intro = "Brokers for tests; the fixtures are in [Test with pytest](../how-to/testing.md)."
    return _module(flintmq.testing, intro)


def _module(module: ModuleType, intro: str) -> str:
    parts = [f"# `{module.__name__}`", intro]
    exported = {name: getattr(module, name) for name in module.__all__}
    classes = {name: each for name, each in exported.items() if inspect.isclass(each)}
    clients = [name for name, each in classes.items() if _is_client(each)]
    values = [name for name, each in classes.items() if not _is_client(each) and not issubclass(each, Exception)]
    functions = [name for name, each in exported.items() if inspect.isfunction(each)]
    for title, names in (("Classes to use", clients), ("Values", values), ("Functions", functions)):
        if names:
            parts.append(f"## {title}")
        for name in names:
            parts += _class(name, exported[name]) if name in classes else _callable(name, exported[name], 3)
    return "\n\n".join(parts)


def _options(options: type) -> str:
    """Return the keyword arguments that ``Unpack[options]`` stands for."""
    fields = "\n".join(f"    {name}: {_annotation(each)}" for name, each in options.__annotations__.items())
    return f"### `{options.__name__}`\n\n{_text(options.__doc__)}\n\n```python\n{fields}\n```"


def _annotation(annotation: object) -> str:
    return getattr(annotation, "__forward_arg__", None) or str(annotation)


def _is_client(cls: type) -> bool:
    return hasattr(cls, "close") or hasattr(cls, "stop")


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"### `{name}`"
    if issubclass(cls, enum.Enum):
        yield _text(cls.__doc__)
        yield "\n".join(f"- `{name}.{each.name}`" for each in cls)
        return
    yield f"```python\n{_signature(name, cls)}\n```"
    yield _text(cls.__doc__)
    attributes = [
        f"- `{each}`: {' '.join(_text(inspect.getdoc(member)).split())}"
        for each, member in _members(cls)
        if isinstance(member, property)
    ]
    if attributes:
        yield "\n".join(attributes)
    for each, member in _members(cls):
        if callable(member) and not inspect.isclass(member):
            yield from _callable(each, member, 4, f"{name}.")


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class that have a text, those of its bases in FlintMQ included."""
    own = {name for base in cls.__mro__ if base.__module__.startswith("flintmq.") for name in vars(base)}
    for name, member in inspect.getmembers(cls):
        is_shown = isinstance(member, property) or inspect.isroutine(member)
        if name in own and not name.startswith("_") and is_shown and inspect.getdoc(member):
            yield name, member


def _callable(name: str, function: Callable[..., Any], depth: int, owner: str = "") -> Iterator[str]:
    yield f"{'#' * depth} `{owner}{name}`"
    yield f"```python\n{_signature(name, function)}\n```"
    yield _text(inspect.getdoc(function))


def _signature(name: str, of: Callable[..., Any]) -> str:
    """Return how to call it; a long one takes a line for each parameter."""
    try:
        signature = inspect.signature(of)
    except ValueError:  # a class made in C
        return f"{name}(…)"
    kept = [each for each in signature.parameters.values() if each.name != "self"]
    signature = signature.replace(parameters=kept)
    if inspect.isclass(of):
        signature = signature.replace(return_annotation=signature.empty)
    begin = "async def " if inspect.iscoroutinefunction(of) else ""
    short = f"{begin}{name}{_unquoted(str(signature))}"
    if len(short) <= LINE_CHARS:
        return short
    lines = [_unquoted(str(each)) for each in kept]
    first_named = next((at for at, each in enumerate(kept) if each.kind is each.KEYWORD_ONLY), None)
    if first_named is not None and not any(each.kind is each.VAR_POSITIONAL for each in kept):
        lines.insert(first_named, "*")
    returns = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    return "\n".join([f"{begin}{name}(", *(f"    {line}," for line in lines), f"){_unquoted(returns)}"])


def _unquoted(text: str) -> str:
    """Return a signature without the quotes around its annotations and the addresses of objects."""
    text = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", text)
    text = re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _text(docstring: str | None) -> str:
    return prose(inspect.cleandoc(docstring or ""))


# ---- The functions for data frames and Spark, read from their sources: importing them needs libraries.

FUNCTIONS = {
    "flintmq.client.polars": ("client/polars/frames.py", ("scan", "scan_store")),
    "flintmq.client.arrow": ("client/arrow/store_reader/store.py", ("read_store",)),
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
        yield f"```python\n{_source_signature(node)}\n```"
        yield prose(inspect.cleandoc(ast.get_docstring(node) or ""))


def _source_signature(node: ast.FunctionDef) -> str:
    """Return how to call it; a long one takes a line for each parameter."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = ast.unparse(node.args)
    short = f"{node.name}({arguments}){returns}"
    if len(short) <= LINE_CHARS:
        return short
    each = re.split(r", (?![^\[]*\])", arguments)  # a comma between brackets belongs to a type
    return "\n".join([f"{node.name}(", *(f"    {argument}," for argument in each), f"){returns}"])
