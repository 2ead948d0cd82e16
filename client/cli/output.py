"""Rows and records on standard output: as a table, as JSON lines, or plain.

- ``table``: for people; drawn by rich, or as blocks of lines if the terminal is too narrow for a table. Names of topics
  and groups are decoded (``operator/names.py``); the other modes have the real ones.
- ``json``: one object per line. Names are stable; times are ISO 8601 in UTC, sizes in bytes, durations in seconds.
- ``plain``: the same values separated by tabs, one row per line without a heading, for ``cut`` and ``awk``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ...protocol.display import JSON, PLAIN, TABLE, escape, show_bytes, to_json, to_plain
from ...protocol.rows import ValueKind, displays_of
from ..operator.display import show_flag, show_moment, show_second, show_seconds, show_value, shown_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 160
_ANY_WIDTH = 100_000
TIGHT_GAP = 2
FOLD_CHARS_MIN = 16
"""Minimum width of a column that folds."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One value of a row. ``name``: its JSON name; ``show``: function that returns its text in a table; ``number``:
    aligned to the right; ``of``: function that returns the value of a row, instead of what the row has by this name.

    If a terminal is too narrow, the table leaves out the ``spare`` columns, the last one first; then it breaks the text
    of a ``fold`` column into lines.
    """

    name: str
    heading: str
    show: Callable[[Any], str] = str
    number: bool = False
    style: str = ""
    spare: bool = False
    fold: bool = False
    of: Callable[[Any], Any] | None = None

    def value(self, row: Any) -> Any:
        if self.of is not None:
            return self.of(row)
        return row.get(self.name) if isinstance(row, Mapping) else getattr(row, self.name)

    def text(self, row: Any) -> str:
        """Return the escaped text of a table; a dash for None."""
        value = self.value(row)
        return "–" if value is None else escape(self.show(value))


def number(
    name: str, heading: str, show: Callable[[Any], str] = "{:,}".format, of: Callable[[Any], Any] | None = None
) -> TableColumn:
    return TableColumn(name, heading, show, number=True, of=of)


def name_column(name: str, heading: str) -> TableColumn:
    """Return a column of names of topics or groups, which a table shows decoded; JSON and plain have the real ones."""
    return TableColumn(name, heading, shown_name, fold=True)


_SHOWN: dict[ValueKind, tuple[Callable[[Any], str], bool]] = {
    ValueKind.TEXT: (show_value, False),
    ValueKind.NAME: (shown_name, False),
    ValueKind.COUNT: ("{:,}".format, True),
    ValueKind.NUMBER: (str, True),
    ValueKind.BYTES: (show_bytes, False),
    ValueKind.SECONDS: (show_seconds, False),
    ValueKind.MOMENT: (show_moment, False),
    ValueKind.SECOND: (show_second, False),
    ValueKind.FLAG: (show_flag, False),
}
"""How a table shows each kind of value, and whether it is aligned to the right."""


def columns_of(
    cls: type[Any], names: str, values: Mapping[str, Callable[[Any], Any]] | None = None, **shows: Callable[[Any], str]
) -> tuple[TableColumn, ...]:
    """Return columns of a row class, with the headings that it declares. ``names``: of its columns and properties,
    separated by spaces; ``values``: functions of a row that return other values for some of them, such as None for an
    unknown one; ``shows``: functions that show some of them in another way."""
    found = []
    for name, display in displays_of(cls, names.split()).items():
        show, is_number = _SHOWN[display.kind]
        found.append(
            TableColumn(
                name,
                display.heading.upper(),
                shows.get(name, show),
                number=is_number,
                spare=display.spare,
                fold=display.fold,
                of=(values or {}).get(name),
            )
        )
    return tuple(found)


def values_of(columns: Iterable[TableColumn], row: Any) -> dict[str, Any]:
    """Return the values of a row under their JSON names."""
    return {column.name: column.value(row) for column in columns}


def use_colour(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal with colours, and the user has not switched them off (``NO_COLOR``)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Output in one of the three modes. It escapes all values that come from a broker."""

    def __init__(self, mode: str, stream: TextIO) -> None:
        self.mode = mode
        self.colour = use_colour(stream)
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text that is already escaped."""
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        self._stream.buffer.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def line(self, text: str) -> None:
        """Escape and write one line."""
        self.write(escape(text) + "\n")

    def json(self, row: Mapping[str, Any]) -> None:
        """Write one object as a line of JSON, in any mode."""
        self.write(to_json(row) + "\n")

    def rows(self, columns: Sequence[TableColumn], rows: Iterable[Any], *, empty: str = "") -> None:
        """Print mappings, or rows of the protocol. ``empty``: line that a table shows if there are no rows."""
        if self.mode == TABLE:
            several = list(rows)
            if several:
                self._table(columns, several)
            elif empty:
                self.line(empty)
            return
        for row in rows:
            if self.mode == JSON:
                self.json(values_of(columns, row))
            else:
                self.write("\t".join(to_plain(column.value(row)) for column in columns) + "\n")

    def record(self, columns: Sequence[TableColumn], row: Mapping[str, Any]) -> None:
        """Print one record: JSON and plain have all of ``row`` (plain: one name and value per line), a table only
        ``columns``."""
        if self.mode == JSON:
            self.json(row)
        elif self.mode == PLAIN:
            for name, value in row.items():
                self.write(f"{escape(name)}\t{to_plain(value)}\n")
        else:
            self._blocks(columns, [row])

    @property
    def width(self) -> int:
        fallback = WIDTH_WITHOUT_TERMINAL if not self._stream.isatty() else 80
        return shutil.get_terminal_size((fallback, 24)).columns if self._stream.isatty() else fallback

    # ---- tables

    def console(self) -> Console:
        """Return a rich console on standard output that does not interpret markup in texts."""
        from rich.console import Console

        terminal = self._stream.isatty()
        width = None if terminal or os.environ.get("COLUMNS") else WIDTH_WITHOUT_TERMINAL
        return Console(
            file=self._stream,
            highlight=False,
            markup=False,
            emoji=False,
            no_color=not self.colour,
            width=width,
            force_terminal=terminal,
            legacy_windows=False,
        )

    def _table(self, columns: Sequence[TableColumn], rows: list[Any]) -> None:
        from rich.measure import Measurement
        from rich.text import Text

        console = self.console()

        def width(table: Table) -> int:
            return Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum

        # The widest form that fits: with lines, without them, without spare columns, folded, and at last in blocks.
        shown = list(columns)
        table = self._drawn(shown, rows)
        if width(table) > console.width:
            table = self._drawn(shown, rows, tight=True)
        while width(table) > console.width:
            spare = next((column for column in reversed(shown) if column.spare), None)
            if spare is None:
                break
            shown.remove(spare)
            table = self._drawn(shown, rows, tight=True)
        over = width(table) - console.width
        if over > 0:
            table = self._drawn(shown, rows, tight=True, over=over)
            if width(table) > console.width:
                self._blocks(columns, rows)
                return
        console.print(table)
        if len(shown) < len(columns):
            left_out = ", ".join(column.heading for column in columns if column not in shown)
            console.print(Text(f"no room for {left_out}; -o json shows all columns", style="dim"))
        self._stream.flush()  # later writes go to the buffer below this text layer

    @staticmethod
    def _drawn(columns: Sequence[TableColumn], rows: list[Any], *, tight: bool = False, over: int = 0) -> Table:
        """Return the table. ``over``: number of characters by which the widest ``fold`` column is narrowed."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        lengths = {
            column.name: max(len(column.text(row)) for row in rows) for column in columns if over and column.fold
        }
        folded = max(lengths, key=lambda name: lengths[name], default="")
        room = lengths.get(folded, 0) - over
        table = Table(
            box=None if tight else box.SIMPLE_HEAD,
            padding=(0, TIGHT_GAP, 0, 0) if tight else (0, 1),
            show_edge=False,
            pad_edge=False,
            header_style="bold",
        )
        for column in columns:
            justify: Any = "right" if column.number else "left"
            folds = column.name == folded and room >= FOLD_CHARS_MIN
            overflow: Any = "fold" if folds else "crop"
            table.add_column(
                Text(column.heading),
                justify=justify,
                no_wrap=not folds,
                overflow=overflow,
                width=room if folds else None,
            )
        for row in rows:
            table.add_row(*(Text(column.text(row), style=column.style) for column in columns))
        return table

    def _blocks(self, columns: Sequence[TableColumn], rows: list[Any]) -> None:
        """Print each row as lines of heading and value, which fit a terminal of any width."""
        from rich.table import Table
        from rich.text import Text

        console = self.console()
        for place, row in enumerate(rows):
            if place:
                console.print()
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            for column in columns:
                if column.of is not None or not isinstance(row, Mapping) or column.name in row:
                    grid.add_row(Text(column.heading, style="dim"), Text(column.text(row), style=column.style))
            console.print(grid)
        self._stream.flush()
