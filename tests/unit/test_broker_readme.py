"""``broker/store/README.md`` shows the layouts of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.protocol import layout

README = (Path(__file__).parents[2] / "broker" / "store" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["RECORD", "UNIT", "INDEX_HEADER", "INDEX_ENTRY", "CHECKPOINT", "CHECKPOINT_MARK"])
def test_the_readme_lists_every_field_of_the_layout_in_order(name: str) -> None:
    shown: layout.Layout = getattr(layout, name)
    rows = [
        f"| {shown.at[field.name]} | {field.name} | {field.width} | {field.meaning.replace('|', chr(92) + '|')} |"
        for field in shown.fields
    ]
    assert "\n".join(rows) in README, f"replace the rows of {name} in broker/store/README.md with:\n" + "\n".join(rows)
