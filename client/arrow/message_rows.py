"""The rows of a record batch, taken out of Arrow and checked before any of them is sent.

The rules for keys, tags, properties and names are the client's own (``flintmq.client.message``); an error names its
row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.storage.record import KEY_SEPARATOR, PROPERTY_UNIQ_KEY
from ..core.produce.grouping import check_queue
from ..errors import InvalidArgument, InvalidMessage
from ..message import check_tag, check_text, check_topic, join_keys
from .scan import Ints

Keys: TypeAlias = list[str | list[str] | None]
"""Keys of each row: one, several, or none."""
Properties: TypeAlias = list[dict[str, str] | None]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a batch: its Spark partition (None: no Spark), the number of the rows before it, and what the caller
    calls its columns, if not as here."""

    partition: int | None
    rows_before: int
    names: Mapping[str, str] = field(default_factory=dict)

    def row(self, row: int) -> str:
        """Return the name of a row of the batch for errors."""
        where = "" if self.partition is None else f"partition {self.partition}, "
        return f"{where}row {self.rows_before + row}"

    def invalid(self, row: int, column: str, why: object) -> InvalidMessage:
        """Return the error for a row that cannot be sent."""
        return InvalidMessage(f"{self.row(row)}: column {self.names.get(column, column)!r}: {why}")


@dataclass(frozen=True, slots=True)
class Distinct:
    """A column of few values: the distinct values, and the index of each row's; ``codes`` is None for one value."""

    values: Sequence[Any]
    codes: Ints | None

    def value(self, row: int) -> Any:
        """Return the value of a row."""
        return self.values[0 if self.codes is None else self.codes[row]]


NOTHING = Distinct((None,), None)


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """A batch, checked except for the content of ``properties``. A column without values is None, or ``NOTHING``.

    ``shared``: checked properties in place of ``properties``, as the distinct combinations of them.
    """

    bodies: list[bytes]
    topics: Distinct
    keys: Keys | None
    tags: Distinct
    sharding_keys: Distinct
    queues: Distinct
    properties: Properties | None
    place: Place
    properties_column: str
    shared: Distinct = NOTHING

    def __len__(self) -> int:
        return len(self.bodies)

    def invalid_properties(self, row: int, why: object) -> InvalidMessage:
        """Return the error for a row whose properties cannot be sent."""
        return self.place.invalid(row, self.properties_column, why)


def checked_rows(batch: pa.RecordBatch, topic: str | None, place: Place) -> CheckedRows:
    """Return the rows of a batch whose schema was checked. ``topic``: the topic of all rows, or None.

    Raises ``InvalidMessage`` for the first row that cannot be sent.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    properties_column = "headers" if "headers" in columns else "properties"
    return CheckedRows(
        bodies=_bodies(columns["body"], place),
        topics=Distinct((topic,), None) if topic is not None else _topics(columns["topic"], place),
        keys=_keys(columns["keys"], place) if "keys" in columns else None,
        tags=_distinct(columns.get("tags"), "tags", check_tag, place),
        sharding_keys=_distinct(columns.get("sharding_key"), "sharding_key", _check_sharding_key, place),
        queues=_distinct(columns.get("queue"), "queue", check_queue, place),
        properties=_properties(columns.get(properties_column), properties_column, place),
        place=place,
        properties_column=properties_column,
    )


def _bodies(column: pa.Array, place: Place) -> list[bytes]:
    if column.null_count:
        raise place.invalid(_first(column.is_null()), "body", "it is null; filter such rows out, or give them a body")
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    bodies: list[bytes] = column.to_pylist()
    return bodies


def _first(rows: pa.BooleanArray) -> int:
    return int(np.argmax(rows.to_numpy(zero_copy_only=False)))


# ---- columns of few values ----


def _topics(column: pa.Array, place: Place) -> Distinct:
    if column.null_count:
        raise place.invalid(
            _first(column.is_null()), "topic", 'it is null; give the row a topic, or all rows one: option("topic", …)'
        )
    return _distinct(column, "topic", check_topic, place)


def _check_sharding_key(sharding_key: str) -> None:
    check_text("the sharding key", sharding_key)


def _distinct(column: pa.Array | None, name: str, check: Callable[[Any], Any], place: Place) -> Distinct:
    """Return a column whose distinct values have each been checked once."""
    if column is None or column.null_count == len(column):
        return NOTHING
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for code, value in enumerate(values):
        try:
            if value is not None:
                check(value)
        except (InvalidMessage, InvalidArgument) as error:
            raise place.invalid(int(np.argmax(codes == code)), name, error) from None
    return Distinct(values, codes if len(values) > 1 else None)


# ---- keys ----


def _keys(column: pa.Array, place: Place) -> Keys | None:
    if column.null_count == len(column):
        return None
    keys: Keys
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        keys = column.to_pylist()
    else:
        keys = _keys_of_lists(column, place)
    return _checked_keys(keys, place)


def _keys_of_lists(column: pa.Array, place: Place) -> Keys:
    """Return lists of keys; a list with one key as that key, an empty one as None."""
    flat = column.flatten()
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts)
    if flat.null_count:
        row = int(np.searchsorted(ends, _first(flat.is_null()), side="right"))
        raise place.invalid(row, "keys", "there is a null among the keys; leave it out (in Spark: array_compact(keys))")
    values = flat.to_pylist()
    if (counts == 1).all():
        keys: Keys = values
        return keys
    pairs = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    return [values[start:end] if end - start > 1 else values[start] if end > start else None for start, end in pairs]


def _checked_keys(keys: Keys, place: Place) -> Keys | None:
    if set(map(type, keys)) == {str}:
        joined = "".join(keys)  # type: ignore[arg-type]  # only str
        if joined.isprintable() and KEY_SEPARATOR not in joined and all(keys):
            return keys
    for row, entry in enumerate(keys):
        try:
            if entry is not None:
                join_keys((entry,) if isinstance(entry, str) else entry)
        except InvalidMessage as error:
            raise place.invalid(row, "keys", error) from None
    return keys if any(entry is not None for entry in keys) else None


# ---- properties ----


def _properties(column: pa.Array | None, name: str, place: Place) -> Properties | None:
    """Return the properties of each row; ``Message`` checks names and values when it is created."""
    if column is None or column.null_count == len(column):
        return None
    make = _dict_of_headers if name == "headers" else _dict_of_pairs
    found: Properties = []
    for row, pairs in enumerate(column.to_pylist()):
        try:
            found.append(make(pairs) if pairs else None)
        except InvalidMessage as error:
            raise place.invalid(row, name, error) from None
    return found if any(found) else None


def _dict_of_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if PROPERTY_UNIQ_KEY in found:
        raise InvalidMessage(
            f"it has {PROPERTY_UNIQ_KEY}, which the broker adds: properties that were read include the broker's and "
            "the columns' own. Read with includeHeaders instead, and write the column 'headers', which lacks those"
        )
    return found


def _dict_of_headers(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        if pair is None:
            raise InvalidMessage("it has an entry that is null; leave such entries out")
        name, value = pair["key"], pair["value"]
        if name in found:
            raise InvalidMessage(f"it has {name!r} twice, but a message can have a property only once")
        try:
            found[name] = None if value is None else value.decode()
        except UnicodeDecodeError:
            raise InvalidMessage(
                f"the value of {name!r} is not UTF-8, as properties must be; put it into the body"
            ) from None
    return found
