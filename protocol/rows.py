"""Rows: what the body of a response lists, declared once for the broker, the client and the screens.

A row is a frozen dataclass whose fields are made with ``column``. The broker's handler builds it and ``pack_rows``
encodes it: as a msgpack map with the fields' names (``row``), or as an array in their order (``array_row``). The client
returns what ``decode_row`` makes of it. Headings and kinds of values serve the command line and the console.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


class ValueKind(Enum):
    """What a value is, which decides how tables show it; a client's ``operator.display`` has the texts."""

    TEXT = "text"
    NAME = "name"
    """Name of a topic or group, shown decoded."""
    COUNT = "count"
    NUMBER = "number"
    """A number that is not grouped by thousands, such as that of a queue."""
    BYTES = "bytes"
    SECONDS = "seconds"
    MOMENT = "moment"
    """A datetime, shown with milliseconds."""
    SECOND = "second"
    """A datetime, shown to the second."""
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Display:
    """How tables show a value. ``spare``: a narrow terminal leaves it out; ``fold``: there it takes several lines."""

    heading: str
    kind: ValueKind = ValueKind.TEXT
    spare: bool = False
    fold: bool = False


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One value of a row on the wire. ``display``: None if tables do not show it; ``of``: class of the rows in it."""

    meaning: str
    display: Display | None
    of: type[Any] | None
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None


def column(
    meaning: str,
    heading: str = "",
    kind: ValueKind = ValueKind.TEXT,
    *,
    default: Any = MISSING,
    spare: bool = False,
    fold: bool = False,
    of: type[Any] | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field of a row. ``of``: the field is a list of these rows; ``encode``, ``decode``: the value for the
    wire, and back; ``default``: value if an older broker does not send it."""
    display = Display(heading, kind, spare, fold) if heading else None
    if of is not None:
        decode = rows_decoder(of)
    return dataclasses.field(default=default, metadata={"column": RowColumn(meaning, display, of, encode, decode)})


def shown(
    heading: str, kind: ValueKind = ValueKind.TEXT, *, spare: bool = False, fold: bool = False
) -> Callable[[MethodT], MethodT]:
    """Decorate the function of a property of a row that tables show."""

    def mark(function: MethodT) -> MethodT:
        function.display = Display(heading, kind, spare, fold)  # type: ignore[attr-defined] # functions have a dict
        return function

    return mark


class RowLayout:
    """Columns of one row class, and its form on the wire."""

    __slots__ = ("cls", "columns", "decoders", "encoders", "is_array", "names", "values")

    def __init__(self, cls: type[Any], *, is_array: bool) -> None:
        self.cls = cls
        self.is_array = is_array
        self.columns: dict[str, RowColumn] = {each.name: each.metadata["column"] for each in dataclasses.fields(cls)}
        self.names = tuple(self.columns)
        assert len(self.names) > 1, "attrgetter returns no tuple for one name"
        self.values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.names)
        self.encoders = {place: each.encode for place, each in enumerate(self.columns.values()) if each.encode}
        self.decoders = {place: each.decode for place, each in enumerate(self.columns.values()) if each.decode}


LAYOUTS: dict[type[Any], RowLayout] = {}
"""By row class, in the order of their definition: those of modules that were imported."""


def layout_of(cls: type[Any]) -> RowLayout:
    """Return the columns of a row class."""
    return LAYOUTS[cls]


@dataclass_transform(frozen_default=True, field_specifiers=(column,))
def row(cls: type[T]) -> type[T]:
    """Make a row class that is a map on the wire. Names that a newer broker adds are ignored."""
    return _made(cls, is_array=False)


@dataclass_transform(frozen_default=True, field_specifiers=(column,))
def array_row(cls: type[T]) -> type[T]:
    """Make a row class that is an array on the wire. Items that a newer broker adds at the end are ignored."""
    return _made(cls, is_array=True)


def _made(cls: type[T], *, is_array: bool) -> type[T]:
    made = dataclass(frozen=True, slots=True)(cls)
    layout = LAYOUTS[made] = RowLayout(made, is_array=is_array)
    meanings = "\n".join(f"- ``{name}``: {each.meaning}" for name, each in layout.columns.items())
    made.__doc__ = f"{made.__doc__}\n\n{meanings}"
    return made


def pack_rows(value: Any) -> bytes:
    """Return msgpack of rows, or of values with rows in them."""
    import msgpack  # the command line, which shows rows, starts without it

    packed: bytes = msgpack.packb(value, default=_encode_row)
    return packed


def _encode_row(value: Any) -> Any:
    layout = LAYOUTS.get(type(value))
    if layout is None:
        raise TypeError(f"a {type(value).__name__} is no row")
    values: Any = layout.values(value)
    if layout.encoders:
        values = list(values)
        for place, encode in layout.encoders.items():
            values[place] = encode(values[place])
    return values if layout.is_array else dict(zip(layout.names, values, strict=True))


def decode_row(cls: type[T], value: Any) -> T:
    """Return a row from its unpacked msgpack. Raises ``TypeError`` if a column is missing, or for another value."""
    layout = LAYOUTS[cls]
    if layout.is_array:
        if type(value) is not list:
            raise TypeError(f"expected {cls.__name__} as an array, got {type(value).__name__}")
        values = value[: len(layout.names)]
        for place, decode in layout.decoders.items():
            if place < len(values):
                values[place] = decode(values[place])
        return cls(*values)
    if type(value) is not dict:
        raise TypeError(f"expected {cls.__name__} as a map, got {type(value).__name__}")
    known = {name: value[name] for name in layout.names if name in value}
    for place, decode in layout.decoders.items():
        name = layout.names[place]
        if name in known:
            known[name] = decode(known[name])
    return cls(**known)


def decode_rows(cls: type[T], value: Any) -> list[T]:
    """Return a list of rows from its unpacked msgpack. Raises ``TypeError``."""
    if type(value) is not list:
        raise TypeError(f"expected a list of {cls.__name__}, got {type(value).__name__}")
    return [decode_row(cls, each) for each in value]


def rows_decoder(cls: type[T]) -> Callable[[Any], list[T]]:
    """Return a function that decodes a list of rows of this class."""
    return lambda value: decode_rows(cls, value)


def displays_of(cls: type[Any], names: Iterable[str]) -> dict[str, Display]:
    """Return how tables show columns and properties of a row class, by name."""
    columns = layout_of(cls).columns
    found = {}
    for name in names:
        display = columns[name].display if name in columns else getattr(cls, name).fget.display
        assert display is not None, f"{cls.__name__}.{name} has no heading"
        found[name] = display
    return found
