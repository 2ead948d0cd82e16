"""Arrow data as messages to send: which column is which part of a message, and the rows of each piece."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidArgument, InvalidArgumentType, InvalidMessage
from ..message import check_properties
from .message_rows import NOTHING, CheckedRows, Distinct, Place, checked_rows

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
