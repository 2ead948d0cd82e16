"""Rows of Arrow data as messages to send."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.errors import FlintError
from ...protocol.storage.reader.parts import Ints
from ...protocol.storage.record import KEY_SEPARATOR, PROPERTY_UNIQ_KEY
from ..core.produce.packer import check_queue
from ..core.produce.receipts import DeliveryFailed
from ..errors import InvalidArgument, InvalidArgumentType, InvalidMessage
from ..message import Message, check_properties, check_tag, check_text, check_topic, join_keys
from .errors import RowsNotSent

# ---- The rows of a record batch, taken out of Arrow and checked before any of them is sent.
#
# The rules for keys, tags, properties and names are the client's own (``flintmq.client.message``); an error
# names its row and column.

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


# ---- Arrow data as messages to send: which column is which part of a message, and the rows of each piece.

PIECE_ROWS = 65_536
"""Maximum number of rows that are taken out of Arrow at once."""
_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "body": (pa.large_binary(),),
    "keys": (pa.large_string(), pa.list_(pa.string())),
    "tags": (pa.large_string(),),
    "sharding_key": (pa.large_string(),),
    "queue": (pa.int32(),),
}
"""The types that the rows of a part may have; a column is cast to the first that is possible."""


class TableRows:
    """The rows of Arrow data with these columns; iterate it once.

    ``named``: the column of each part of a message, None for a part without one; ``properties``: columns that become
    properties. Raises ``InvalidArgument`` for a column that is not there, or cannot be that part.
    """

    def __init__(self, data: Any, topic: str, named: Mapping[str, str | None], properties: Sequence[str]) -> None:
        if not hasattr(data, "__arrow_c_stream__"):
            raise InvalidArgumentType(
                f"data must be a data frame, table or stream with __arrow_c_stream__, not {type(data).__name__}"
            )
        if isinstance(properties, str):
            raise InvalidArgumentType(f"properties must be several names of columns, not {properties!r}")
        self._reader = pa.RecordBatchReader.from_stream(data)
        self._topic = topic
        self._named = {part: name for part, name in named.items() if name is not None}
        self._properties = properties
        self._types = {part: self._type_of(part, name) for part, name in self._named.items()}
        for name in properties:
            kind = self._field(name, "properties").type
            if pa.types.is_nested(kind) or (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
                raise InvalidArgumentType(f"properties: column {name!r} is {kind}; a property is a text: convert it")

    def _field(self, name: str, part: str) -> pa.Field:
        names = self._reader.schema.names
        if names.count(name) != 1:
            near = difflib.get_close_matches(str(name), names, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            there = "is there twice" if name in names else f"is not there{meant}"
            raise InvalidArgument(f"{part}: column {name!r} {there}; the data has {', '.join(names) or 'no columns'}")
        return self._reader.schema.field(name)

    def _type_of(self, part: str, name: str) -> pa.DataType:
        kind = self._field(name, part).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        wanted = _TYPES[part]
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        fits = {
            "body": is_text or is_bytes or pa.types.is_fixed_size_binary(kind),
            "keys": is_text or is_list,
            "queue": pa.types.is_integer(kind),
        }
        if not (fits.get(part, is_text) or pa.types.is_null(kind)):
            takes = {"body": "bytes or text", "keys": "texts or lists of texts", "queue": "whole numbers"}
            raise InvalidArgumentType(f"{part}: column {name!r} is {kind}; it must have {takes.get(part, 'texts')}")
        return wanted[-1] if is_list else wanted[0]

    def __iter__(self) -> Iterator[tuple[int, CheckedRows]]:
        """Yield the number of the first row of each piece, and its rows. Raises ``InvalidMessage``."""
        rows_before = 0
        for batch in self._reader:
            for first in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(first, PIECE_ROWS)
                yield rows_before, self._rows(piece, Place(None, rows_before, self._named))
                rows_before += piece.num_rows

    def _rows(self, batch: pa.RecordBatch, place: Place) -> CheckedRows:
        columns = {part: self._cast(batch.column(name), part) for part, name in self._named.items()}
        rows = checked_rows(pa.RecordBatch.from_pydict(columns), self._topic, place)
        return replace(rows, shared=self._shared_properties(batch, place)) if self._properties else rows

    def _cast(self, column: pa.Array, part: str) -> pa.Array:
        try:
            return _cast(column, self._types[part])
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"{part}: column {self._named[part]!r}: {error}") from None

    def _shared_properties(self, batch: pa.RecordBatch, place: Place) -> Distinct:
        """Return the properties of all rows, as their distinct combinations; none for a null or an empty string."""
        columns = {name: _cast(batch.column(name), pa.large_string()) for name in self._properties}
        codes = np.zeros(batch.num_rows, np.int64)
        for column in columns.values():
            encoded = pc.dictionary_encode(pc.fill_null(column, ""))
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
            codes = np.unique(codes, return_inverse=True)[1]  # renumbered, so that any number of columns can follow
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        values = zip(*(column.take(pa.array(first)).to_pylist() for column in columns.values()), strict=True)
        found = []
        for row, of_row in zip(first.tolist(), values, strict=True):
            own = {name: value for name, value in zip(columns, of_row, strict=True) if value}
            try:
                found.append(check_properties(own) or None)
            except InvalidMessage as error:
                raise place.invalid(row, ", ".join(columns), error) from None
        return Distinct(found, codes.astype(np.int64) if len(found) > 1 else None) if found else NOTHING


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary.cast(kind).take(column.indices)
    return column.cast(kind)


# ---- Turns the rows of a batch into as few calls of a producer as their order allows.
#
# ``send_bulk`` takes bodies and keys as columns, and one topic, tag, sharding key and queue for all. A
# message costs a seventh of its cost with ``send_many``, which needs a ``Message`` for each. So rows are
# grouped by the values that must be equal, unless the groups would be small or would reorder rows that share
# a queue or a sharding key.

T = TypeVar("T")

GROUP_ROWS_MIN = 256
"""Minimum average number of rows in a group: with fewer, each group's round trip costs more than it saves."""


class RowProducer(Protocol):
    @property
    def send_bulk(self) -> Callable[..., object]: ...

    @property
    def send_many(self) -> Callable[..., object]: ...


class Send(Protocol):
    """One call of a producer."""

    @property
    def rows(self) -> Ints:
        """Positions in the batch of the rows that it sends."""

    def run(self, producer: RowProducer, prepare: str | None) -> None:
        """Send the rows and return when all are acknowledged; raises ``DeliveryFailed`` with the errors by index in
        ``rows``. ``prepare`` is the producer's argument."""


@dataclass(frozen=True, slots=True)
class ColumnSend:
    """Rows that differ only in body and keys."""

    rows: Ints
    topic: str
    bodies: list[bytes]
    keys: Sequence[Any] | None
    tags: str | None
    sharding_key: str | None
    queue: int | None
    properties: dict[str, str] | None = None

    def run(self, producer: RowProducer, prepare: str | None) -> None:
        producer.send_bulk(
            self.topic,
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            sharding_key=self.sharding_key,
            queue=self.queue,
            prepare=prepare,
        )


@dataclass(frozen=True, slots=True)
class MessageSend:
    """Rows of any kind that go to one queue, or to any queue."""

    rows: Ints
    messages: list[Message]
    queue: int | None

    def run(self, producer: RowProducer, prepare: str | None) -> None:
        producer.send_many(self.messages, queue=self.queue, prepare=prepare)


def sends(rows: CheckedRows) -> list[Send]:
    """Return the calls that, one after the other, send all rows.

    Raises ``InvalidMessage`` for the first row whose properties cannot be sent.
    """
    found: list[Send] = []
    for mine in _split(np.arange(len(rows)), rows.queues):
        found += _sends_to_queue(rows, mine, rows.queues.value(mine[0]))
    return found


def _sends_to_queue(rows: CheckedRows, mine: Ints, queue: int | None) -> Iterator[Send]:
    """Yield the calls for the rows that go to ``queue``, or to any queue if it is None."""
    if rows.properties is None:
        groups = list(_split(mine, rows.topics, rows.tags, rows.sharding_keys, rows.shared))
        is_large = len(groups) == 1 or len(groups) * GROUP_ROWS_MIN <= len(mine)
        if is_large and _order_holds(rows, mine, queue, len(groups)):
            yield from (_column_send(rows, group, queue) for group in groups)
            return
    yield _message_send(rows, mine, queue)


def _order_holds(rows: CheckedRows, mine: Ints, queue: int | None, groups: int) -> bool:
    """Return whether each sequence that must stay in order (a topic's queue or sharding key) is in one group."""
    if groups == 1 or (queue is None and rows.sharding_keys is NOTHING):
        return True
    in_order = (rows.topics,) if queue is not None else (rows.topics, rows.sharding_keys)
    return sum(1 for _ in _split(mine, *in_order)) == groups


def _split(mine: Ints, *columns: Distinct) -> Iterator[Ints]:
    """Yield the rows ``mine``, split by their values in ``columns``; each part ascends."""
    combined = None
    for column in columns:
        if column.codes is not None:
            codes = column.codes[mine]
            combined = codes if combined is None else _combined(combined, codes, len(column.values))
    if combined is None or not len(mine):
        yield mine
        return
    order = np.argsort(combined, kind="stable")
    bounds = np.flatnonzero(np.diff(combined[order])) + 1
    yield from np.split(mine[order], bounds)


def _combined(first: Ints, second: Ints, second_values: int) -> Ints:
    """Return one number for each pair of codes; renumbered, so that any number of columns can follow."""
    codes: Ints = np.unique(first * second_values + second, return_inverse=True)[1].astype(np.int64)
    return codes


def _column_send(rows: CheckedRows, mine: Ints, queue: int | None) -> ColumnSend:
    first = mine[0]
    return ColumnSend(
        rows=mine,
        topic=rows.topics.value(first),
        bodies=_taken(rows.bodies, mine),
        keys=None if rows.keys is None else _taken(rows.keys, mine),
        tags=rows.tags.value(first),
        sharding_key=rows.sharding_keys.value(first),
        queue=queue,
        properties=rows.shared.value(first),
    )


def _message_send(rows: CheckedRows, mine: Ints, queue: int | None) -> MessageSend:
    keys, properties, shared = rows.keys, rows.properties, rows.shared.value
    topic, tags, sharding_key = rows.topics.value, rows.tags.value, rows.sharding_keys.value
    messages = []
    for row in mine.tolist():
        try:
            message = Message(
                topic(row),
                rows.bodies[row],
                keys=(keys[row] or ()) if keys is not None else (),
                tags=tags(row),
                properties=properties[row] if properties is not None else shared(row),
                sharding_key=sharding_key(row),
            )
        except InvalidMessage as error:
            raise rows.invalid_properties(row, error) from None
        messages.append(message)
    return MessageSend(mine, messages, queue)


def _taken(values: list[T], mine: Ints) -> list[T]:
    return values if len(mine) == len(values) else [values[row] for row in mine.tolist()]


# ---- the work of ``Producer.send_arrow``


class ArrowData(Protocol):
    """A data frame, table or stream with the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def send_rows(
    producer: RowProducer, topic: str, data: ArrowData, named: Mapping[str, str | None], properties: Sequence[str]
) -> int:
    """Do the work of ``Producer.send_arrow``. ``named``: the column of each part of a message, None without one."""
    check_topic(topic)
    done = 0
    for first, rows in TableRows(data, topic, named, properties):
        failed: dict[int, FlintError] = {}
        for send in sends(rows):
            try:
                send.run(producer, None)
            except DeliveryFailed as failure:
                numbers = send.rows.tolist()
                failed |= {first + numbers[index]: error for index, error in failure.errors.items()}
                break
            finally:
                done += len(send.rows)
        if failed:
            raise RowsNotSent(failed, done - len(failed))
    return done
