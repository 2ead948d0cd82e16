"""``docs/arrow.md`` shows the columns and the arguments of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from flintmq.client.arrow import ArrowOptions
from flintmq.client.arrow.decoder import ALL_COLUMNS, COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "arrow.md").read_text(encoding="utf-8")


def rows(head: str) -> list[str]:
    """Return the lines of the table with this head."""
    (found,) = re.findall(rf"^\| {re.escape(head)} \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return str(found).splitlines()


def test_the_page_has_every_column_with_its_type_and_meaning() -> None:
    extra = "; only if `columns` names it"
    expected = [
        f"| `{column.name}` | {column.arrow} | {column.meaning}{extra if column not in COLUMNS else ''} |"
        for column in ALL_COLUMNS.values()
    ]
    assert rows("column | type | holds") == expected


def test_the_page_has_every_argument() -> None:
    named = {name for row in rows("argument | meaning") for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert named == {"from_", "until", *ArrowOptions.__annotations__}
