"""``client/spark/README.md`` shows the columns and the options of the code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from flintmq.client.arrow.decoder import COLUMNS, HEADERS, PROPERTIES
from flintmq.client.spark.columns import DDL
from flintmq.client.spark.options import READ_OPTIONS
from flintmq.client.spark.sink_options import WRITE_COLUMNS, WRITE_OPTIONS

README = (Path(__file__).parents[2] / "client" / "spark" / "README.md").read_text(encoding="utf-8")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else "|---" * len(line) + "|" for line in lines)


COLUMN_ROWS = [
    *((f"`{column.name}`", DDL[column.name], column.meaning) for column in COLUMNS),
    (f"`{PROPERTIES.name}`", DDL[PROPERTIES.name], f"{PROPERTIES.meaning}; with `includeProperties`"),
    (f"`{HEADERS.name}`", DDL[HEADERS.name], f"{HEADERS.meaning}; with `includeHeaders`"),
]
GENERATED = {
    "columns": table(("column", "type", "holds"), COLUMN_ROWS),
    "read options": table(("option", "meaning"), [(f"`{each.name}`", each.meaning) for each in READ_OPTIONS]),
    "write columns": table(
        ("column", "type", "meaning"),
        [(f"`{each.name}`", " or ".join(each.types), each.meaning) for each in WRITE_COLUMNS],
    ),
    "write options": table(("option", "meaning"), [(f"`{each.name}`", each.meaning) for each in WRITE_OPTIONS]),
}


@pytest.mark.parametrize("name", GENERATED)
def test_the_readme_matches_the_code(name: str) -> None:
    found = re.findall(rf"<!-- generated: {re.escape(name)} -->\n\n(.*?)\n\n<!-- end -->", README, re.DOTALL)
    assert found == [GENERATED[name]]
