"""``broker/store/README.md`` shows the layouts of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.storage import layout

README = (Path(__file__).parents[2] / "broker" / "store" / "README.md").read_text(encoding="utf-8")
LAYOUTS = ["RECORD", "UNIT", "INDEX_HEADER", "INDEX_ENTRY", "CHECKPOINT", "CHECKPOINT_MARK"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_readme_lists_every_field_of_the_layout_in_order(name: str) -> None:
    shown: layout.Layout[Any] = getattr(layout, name)
    rows = [
        f"| {shown.at[field.name]} | {field.name} | {field.width} | {field.meaning.replace('|', chr(92) + '|')} |"
        for field in shown.fields
    ]
    table = "\n".join(["| at | field | bytes | meaning |", "|---|---|---|---|", *rows])
    found = re.findall(rf"<!-- generated: {name} -->\n\n(.*?)\n\n<!-- end -->", README, re.DOTALL)
    assert found == [table], f"replace the block {name!r} of broker/store/README.md with the expected one"


def test_every_generated_block_of_the_readme_is_checked() -> None:
    assert re.findall(r"<!-- generated: (.*?) -->", README) == LAYOUTS
