"""Pages of the reference with the Python interface, read from the classes themselves."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import flintmq.client
import flintmq.client.aio
import flintmq.testing
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.client.groups.push.options import PushOptions, ReceiveOptions
from flintmq.client.groups.transactions.shell import HalfOptions

from .code_pages import prose

LINE_CHARS = 100
OPTIONS = (AccessOptions, PushOptions, ReceiveOptions, HalfOptions)
"""Keyword arguments that several classes share."""


def client_page() -> str:
    """Return the interface of ``flintmq.client``."""
    intro = "The clients for programs with threads, and the values that they take and return; [the errors](errors.md)."
    return "\n\n".join([_module(flintmq.client, intro), "## Options", *map(_options, OPTIONS)])


def asyncio_page() -> str:
    """Return the interface of ``flintmq.client.aio``."""
    intro = "The same clients for asyncio; values and errors are those of [`flintmq.client`](client.md)."
    return _module(flintmq.client.aio, intro)


def testing_page() -> str:
    """Return the interface of ``flintmq.testing``."""
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
