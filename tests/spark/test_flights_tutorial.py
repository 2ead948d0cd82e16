"""The tutorial ``docs/tutorials/flights.md``: its cells, in order, in this ring's session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BrokerFactory
from tests.document_reader import read_blocks

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "flights.md"


def test_the_tutorial_prints_what_it_shows(
    spark: Any,
    broker: BrokerFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = broker().address
    names: dict[str, Any] = {}
    shown = ""
    for block in read_blocks(TUTORIAL):
        if block.language == "python":
            cell = block.text.replace("127.0.0.1:10911", address)
            exec(cell.replace('"flights-', f'"{tmp_path}/flights-'), names)
            shown = capsys.readouterr().out
        elif block.language == "text":
            assert shown == block.text
    assert names["spark"].sparkContext is spark.sparkContext
