"""How to read messages as Arrow batches: the arguments of ``Consumer.arrow`` and their rules. Needs no PyArrow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from ..core.consume.batch import TagFilter, check_filter, parse_tags
from ..core.rpc.timeouts import check_timeout
from ..core.texts import check_unicode
from ..errors import InvalidArgument, InvalidArgumentType

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65_536
"""Maximum number of rows of a batch, and the default."""
OnLoss = Literal["raise", "report"]


class ArrowOptions(TypedDict, total=False):
    """Options of a read; all may be left out.

    ``tags``, ``filter``: as for ``Consumer.pull``. ``key``: only messages with this key or id, newest first, from the
    broker's index. ``columns``: names, in the order wanted. ``batch_rows``: maximum number of rows of a batch (at most
    and by default 65,536); a batch also has at most 4 MiB of stored messages, or one message.

    ``on_loss``: ``"raise"`` (default) fails at a message that is damaged or lost; ``"report"`` reads the others, logs
    the loss, and lists it in the stream's ``losses``.

    ``json_schema``: a ``pyarrow.Schema``: the bodies are JSON objects, whose fields become columns; ``infer``: the same
    with the schema of this many of the first messages. A body that is not such an object has nulls there, and a column
    ``error`` says why. ``timeout``: seconds for which the broker may be away.
    """

    tags: str | Iterable[str] | None
    filter: str | None
    key: str | None
    columns: Iterable[str] | None
    batch_rows: int
    on_loss: OnLoss
    json_schema: pa.Schema | None
    infer: int | None
    timeout: float | None


@dataclass(frozen=True)
class ReadRules:
    """The checked options of a read, except for the columns."""

    tags: TagFilter
    condition: str
    key: str | None
    batch_rows: int
    on_loss: OnLoss
    timeout: float | None


def read_rules(given: ArrowOptions) -> ReadRules:
    """Check the options. Raises ``InvalidArgument``."""
    options: dict[str, Any] = dict(given)
    if unknown := sorted(options.keys() - ArrowOptions.__annotations__.keys()):
        raise InvalidArgumentType(f"there is no argument {unknown[0]!r}; use {', '.join(ArrowOptions.__annotations__)}")
    rows = options.get("batch_rows", BATCH_ROWS)
    if type(rows) is not int or not 1 <= rows <= BATCH_ROWS:
        raise InvalidArgument(f"batch_rows is {rows!r}; it must be a whole number from 1 to {BATCH_ROWS:,}")
    on_loss = options.get("on_loss", "raise")
    if on_loss not in get_args(OnLoss):
        raise InvalidArgument(f"on_loss is {on_loss!r}; it must be 'raise' or 'report'")
    key, condition = options.get("key"), check_filter(options.get("filter"))
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidArgumentType(f"key is {key!r}; it must be a str that is not empty")
    if key is not None:
        check_unicode("key", key)
    if key is not None and condition:
        raise InvalidArgument("key and filter exclude each other: the index does not filter. Filter the result")
    timeout = options.get("timeout")
    if timeout is not None:
        check_timeout("timeout", timeout)
    return ReadRules(parse_tags(options.get("tags")), condition, key, rows, on_loss, timeout)
