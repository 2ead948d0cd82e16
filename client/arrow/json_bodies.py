"""Bodies that are JSON objects, as columns. Any other body has nulls there, and the reason in the column ``error``.

``pyarrow.json`` reads many objects from one buffer and does not say which text a row came from. So each body is put
into an object of its own, ``{"b": …}`` on one line: then a body gives at least one row or an error, whatever it holds,
and as many rows as bodies mean one row each.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ..errors import InvalidArgument, InvalidArgumentType
from .decoder import ALL_COLUMNS, COLUMNS, Column, Decoder, chosen
from .records import RecordBlock
from .slices import contiguous

ERROR = "error"
INFER_MAX = 100_000
_FIELD = "b"
_BEFORE, _BEHIND = b'{"b":', b"}\n"
_UNSAFE = ((b"\n", b" "), (b"\r", b" "), (b"\0", b"\1"))
"""Bytes with a meaning for the reader. In valid JSON, a line's end is only ever white space, and NUL never occurs."""
_ERROR_CHARS_MAX = 200


class JsonDecoder(Decoder):
    """Converts records to batches of the columns ``names``: the messages' and those of ``schema``, in this order."""

    def __init__(self, names: Sequence[str], schema: pa.Schema) -> None:
        super().__init__([ALL_COLUMNS[name] for name in names if name in ALL_COLUMNS])
        fields = list(schema) if ERROR in names else [field for field in schema if field.name in names]
        self._kind = pa.struct(fields)
        of_messages = self.schema
        self.schema = pa.schema([_field(name, of_messages, schema) for name in names])

    def batch(self, block: RecordBlock, topic: str | None = None) -> pa.RecordBatch:
        """Return a batch with one row per record, as ``Decoder`` does."""
        columns = dict(zip(self._names, super()._arrays(block, topic), strict=True))
        found, errors = _parse(block.bodies(), self._kind)
        columns |= {field.name: pc.struct_field(found, [field.name]) for field in self._kind}
        columns[ERROR] = errors
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _field(name: str, of_messages: pa.Schema, schema: pa.Schema) -> pa.Field:
    if name == ERROR:
        return pa.field(ERROR, pa.string())
    return of_messages.field(name) if name in ALL_COLUMNS else schema.field(name).with_nullable(True)


def decoder_of(columns: Iterable[str] | None, schema: pa.Schema | None) -> Decoder:
    """Return the decoder for these columns, of messages and of the JSON schema; None: all (but ``body`` only without a
    schema). Raises ``InvalidArgument``."""
    if schema is None:
        return Decoder(chosen(columns))
    _check_schema(schema)
    of_json = (*schema.names, ERROR)
    if columns is None:
        names = [column.name for column in COLUMNS if column.name != "body"] + list(of_json)
    else:
        names = list(columns) if not isinstance(columns, str) else []
        offered = {name: Column(name, pa.null(), "") for name in of_json} | ALL_COLUMNS
        names = [column.name for column in chosen(names or columns, offered)]
    if not set(names) & set(of_json):
        return Decoder(chosen(names))
    return JsonDecoder(names, schema)


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, pa.Schema):
        raise InvalidArgumentType(f"json_schema must be a pyarrow.Schema, not {type(schema).__name__}")
    taken = [name for name in schema.names if name in ALL_COLUMNS or name == ERROR]
    if taken:
        raise InvalidArgument(
            f"the JSON field {taken[0]!r} has the name of a column of messages: leave it out of json_schema, or read "
            "the column 'body' and parse it yourself"
        )
    if not len(schema) or len(set(schema.names)) < len(schema):
        raise InvalidArgument(f"json_schema has the fields {schema.names}; it must have some, and none twice")
    try:
        _read(pa.array([b"{}"]), pa.struct(list(schema)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"json_schema: JSON cannot be read as this: {error}") from None


# ---- parsing


def _parse(bodies: pa.BinaryArray, kind: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the objects in the bodies, and for each body why it is not one (None if it is).

    A body that is not an object gives null, or an object without fields.
    """
    safe = _safe(bodies)
    found = _objects(safe, kind)
    if found is not None:
        return found, pa.nulls(len(bodies), pa.string())
    errors, safe = _without_others(bodies, safe)
    pieces = []
    for first, piece in _pieces(safe, 0, kind):
        if piece is None:
            errors[first] = _why(safe[first : first + 1], kind)
        pieces.append(pa.nulls(1, kind) if piece is None else piece)
    return pa.concat_arrays(pieces), pa.array(errors, pa.string())


def _without_others(bodies: pa.BinaryArray, safe: pa.BinaryArray) -> tuple[list[str | None], pa.BinaryArray]:
    """Return why bodies are not objects, None for the others, and ``safe`` with empty objects in place of those."""
    errors = [_why_no_object(body) for body in bodies.to_pylist()]
    return errors, pc.if_else(pa.array([error is None for error in errors], pa.bool_()), safe, b"{}")


def _safe(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """Return bodies of the same lengths without bytes that have a meaning for the reader."""
    data, bounds = contiguous(bodies)
    blob = data.tobytes()
    if not any(unsafe in blob for unsafe, _ in _UNSAFE):
        return bodies
    for unsafe, harmless in _UNSAFE:
        blob = blob.replace(unsafe, harmless)
    buffers = [None, pa.py_buffer(bounds.astype("int32")), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.binary(), len(bodies), buffers)


def _pieces(bodies: pa.BinaryArray, first: int, kind: pa.StructType | None) -> list[tuple[int, pa.StructArray | None]]:
    """Return the objects in the bodies, piece by piece, each with its first row.

    None takes the place of a body that is not an object.
    """
    found = _objects(bodies, kind)
    if found is not None or len(bodies) <= 1:
        return [(first, found)]
    middle = len(bodies) // 2
    return _pieces(bodies[:middle], first, kind) + _pieces(bodies[middle:], first + middle, kind)


def _objects(bodies: pa.BinaryArray, kind: pa.StructType | None) -> pa.StructArray | None:
    """Return the objects in the bodies, or None if one of them is not an object."""
    try:
        found = _read(bodies, kind)
    except pa.ArrowInvalid:
        return None
    return found if len(found) == len(bodies) and pa.types.is_struct(found.type) and not found.null_count else None


def _read(bodies: pa.BinaryArray, kind: pa.StructType | None) -> pa.Array:
    """Return the values of the bodies, as many as the reader finds. Raises ``ArrowInvalid`` for what it cannot read."""
    lines = pc.binary_join_element_wise(_BEFORE, bodies, _BEHIND, b"")
    blob = contiguous(lines)[0].tobytes()
    explicit = None if kind is None else pa.schema([pa.field(_FIELD, kind)])
    table = pj.read_json(
        io.BytesIO(blob),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(blob) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=explicit, unexpected_field_behavior="infer" if kind is None else "ignore"
        ),
    )
    try:
        found = table[_FIELD].combine_chunks()
    except pa.ArrowIndexError:
        # The reader infers the type of a list that begins with null, such as [null, 1], but breaks its values.
        if kind is not None:
            raise
        return _read(bodies, table.schema.field(_FIELD).type)
    found.validate(full=True)  # strings must be UTF-8, which the reader does not check
    return found


def _why_no_object(body: bytes) -> str | None:
    """Return the reason why a body is not a JSON object, or None if it is one."""
    try:
        value = json.loads(body)
    except ValueError as error:
        return f"not JSON: {error}"[:_ERROR_CHARS_MAX]
    except RecursionError:
        return "not JSON that can be read: it is nested too deeply"
    return None if isinstance(value, dict) else f"JSON, but not an object: {type(value).__name__}"


def _why(body: pa.BinaryArray, kind: pa.StructType) -> str:
    try:
        _read(body, kind)
    except pa.ArrowInvalid as error:
        why = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0").replace(f"/{_FIELD}/", "")
        return why[:_ERROR_CHARS_MAX]
    return "JSON that cannot be read"


# ---- inference


def infer_schema(batches: Iterable[pa.RecordBatch], count: int) -> pa.Schema:
    """Return a schema for the fields of the first ``count`` bodies, the first column of the batches. A field has the
    type of its first values that have one.

    Raises ``InvalidArgument`` if none of the bodies is a JSON object.
    """
    schema, left = pa.schema([]), count
    for batch in batches:
        bodies = batch.column(0)[:left]
        for _, piece in _pieces(_without_others(bodies, _safe(bodies))[1], 0, None):
            for field in piece.type if piece is not None else ():
                schema = _with_field(schema, field)
        left -= len(bodies)
        if not left:
            break
    if not len(schema):
        raise InvalidArgument(
            f"infer: none of the {count - left} messages that were looked at is a JSON object with a field; pass "
            "json_schema="
        )
    return pa.schema([pa.field(field.name, _readable(field.type)) for field in schema])


def _with_field(schema: pa.Schema, field: pa.Field) -> pa.Schema:
    try:
        return pa.unify_schemas([schema, pa.schema([field])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # rows with this type will say so
        return schema


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in place of the type of a field that is always null."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable(field.type)) for field in kind])
    return kind
