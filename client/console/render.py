"""Templates, and the filters that show figures in them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ...protocol.display import escape, iso, show_bytes
from ...protocol.times import from_millis
from ..operator.display import plural, show_count, show_rate, show_seconds, shown_name

FOLDER = Path(__file__).parent
_NOTHING = "–"
PART_LINES = 100
"""Number of lines of a body that the browser lays out at once; ``.part`` in the style has their height."""


def environment() -> Environment:
    """Return the environment of all templates. Values are escaped, and a missing value is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The templates belong to the release: no page looks whether one has changed.
        auto_reload=False,
    )
    made.filters.update(
        count=show_count,
        size=show_bytes,
        rate=show_rate,
        seconds=show_seconds,
        moment=moment,
        millis=lambda ms: moment(None if ms is None or ms < 0 else from_millis(ms)),
        part=lambda text: quote(str(text), safe=""),
        parts=line_parts,
        visible=lambda text: escape(str(text)),
        named=lambda name: escape(shown_name(name)),
    )
    made.globals.update(plural=plural, query=query)
    return made


def moment(value: datetime | None) -> Markup | str:
    """Return a time element: UTC to the millisecond, which the page's script shows in the browser's zone."""
    if value is None:
        return _NOTHING
    stamp = iso(value)
    # The stamp has digits and punctuation only, so it needs no escaping, which would take most of the time of a list.
    return Markup(f'<time datetime="{stamp}">{stamp[:-1].replace("T", " ")} UTC</time>')  # noqa: S704


def line_parts(text: str) -> list[str]:
    """Return a text in parts of ``PART_LINES`` lines; joined, they are the text."""
    lines = text.split("\n")
    parts = ["\n".join(lines[first : first + PART_LINES]) for first in range(0, len(lines), PART_LINES)]
    return [f"{part}\n" for part in parts[:-1]] + parts[-1:]


def query(**arguments: object) -> str:
    """Return ``?name=value&…`` without the empty arguments."""
    given = {name.rstrip("_"): value for name, value in arguments.items() if value not in (None, "", False)}
    return f"?{urlencode(given)}" if given else "?"
